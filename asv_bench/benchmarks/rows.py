"""Arrow columns to record batches; moved by the copies, and by rows that are far apart."""

import struct

from plog._native import records as native_records
from plog._native import rows as native
from plog._reference import records as reference_records
from plog._reference import rows as reference

from . import common

ENGINES = {"native": (native, native_records), "reference": (reference, reference_records)}
PARTITIONS = 12
ROWS = {"native": 10_000, "reference": 100}
BATCH_BYTES = 16384


def column(rows, size, data):
    """Return values that are all of one size."""
    return [
        None,
        struct.pack(f"={rows + 1}i", *range(0, size * rows + 1, size)),
        data[: size * rows],
    ]


def columns(rows, value_bytes, headers):
    made = {
        "key": column(rows, 16, common.NOISE),
        "value": column(rows, value_bytes, common.JSON_EVENTS * 10),
    }
    if headers:
        made["headers"] = column(rows, 2, b"")[:2]
        made["headers.key"] = column(rows * 2, 4, common.JSON_EVENTS)
        made["headers.value"] = column(rows * 2, 8, common.NOISE)
    return made


class RowColumns:
    params = (common.ENGINES, [100, 1000], [False, True])
    param_names = ("engine", "value_bytes", "headers")

    def setup(self, engine, value_bytes, headers):
        self.engine, self.records = ENGINES[engine]
        self.rows = ROWS[engine]
        self.columns = columns(self.rows, value_bytes, headers)
        self.held = self.engine.RowColumns(self.rows, self.columns)
        self.order, self.starts = self.engine.group(
            self.held.partitions(PARTITIONS, PARTITIONS), PARTITIONS + 1
        )

    def time_check(self, engine, value_bytes, headers):
        self.engine.RowColumns(self.rows, self.columns)

    def time_partitions(self, engine, value_bytes, headers):
        self.held.partitions(PARTITIONS, PARTITIONS)

    def time_fill(self, engine, value_bytes, headers):
        at, end = 0, self.rows
        while at < end:
            builder = self.records.BatchBuilder()
            at = self.held.fill(builder, self.order, at, end, common.BATCH_TIME_MS, BATCH_BYTES)


class Group:
    params = (common.ENGINES, [1, 12, 1000])
    param_names = ("engine", "partitions")

    def setup(self, engine, partitions):
        self.engine = ENGINES[engine][0]
        rows = ROWS[engine]
        held = self.engine.RowColumns(rows, columns(rows, 1, headers=False))
        self.partitions = held.partitions(partitions, partitions)

    def time_group(self, engine, partitions):
        self.engine.group(self.partitions, partitions + 1)
