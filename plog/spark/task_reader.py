"""Reads a task's ranges as Arrow record batches, for batch queries and streams.

Runs on the executors. Rows never exist in Python: record sets go straight into the buffers of
Arrow record batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from plog._native.columns import ColumnBuilder
from plog.client.fetcher import Fetched
from plog.errors import CorruptRecord
from plog.spark import offsets
from plog.spark.arrow import arrow_schema, take_batch
from plog.spark.offsets import OffsetRange
from plog.spark.options import SourceOptions
from plog.spark.range_reader import RangeReader
from plog.spark.worker import set_up_worker
from plog.types import TopicPartition

BATCH_ROWS = 5_000
BATCH_BYTES = 4 * 1024 * 1024
"""A record batch ends at the first of these limits; measured, with a broad optimum around them."""


@dataclass
class TaskRanges(InputPartition):
    """The ranges of one task; at most one per partition."""

    ranges: list[OffsetRange]


class TaskReader:
    """Reads the ranges of a task. Picklable: it travels to the executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.arrow_schema = arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of the task's ranges as record batches."""
        assert isinstance(partition, TaskRanges)
        set_up_worker()
        with offsets.open_cluster(self.options) as cluster:
            yield from self.decode(RangeReader(cluster, partition.ranges, self.options))

    def decode(self, pieces: Iterable[tuple[OffsetRange, Fetched]]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the rows in these pieces of ranges, as full as possible."""
        names = frozenset(self.arrow_schema.names)
        reading: TopicPartition | None = None
        builder = ColumnBuilder(names, "", 0)
        for wanted, fetched in pieces:
            if wanted.partition != reading:
                if len(builder) > 0:
                    yield take_batch(builder, self.arrow_schema)
                reading = wanted.partition
                builder = ColumnBuilder(names, *reading)
            aborted = fetched.aborted if self.options.read_committed else None
            position, end = wanted.start, min(wanted.end, fetched.next_offset)
            while position < end:
                before = position
                try:
                    position = builder.append(
                        fetched.records, position, end, BATCH_ROWS, aborted, BATCH_BYTES
                    )
                except CorruptRecord as fault:
                    raise CorruptRecord(f"{reading}, after offset {before}: {fault}") from fault
                full = len(builder) >= BATCH_ROWS or builder.data_bytes >= BATCH_BYTES
                if full or (position < end and len(builder) > 0):
                    yield take_batch(builder, self.arrow_schema)
                elif position < end:
                    raise CorruptRecord(f"{reading}: no record from offset {position} to {end}")
        if len(builder) > 0:
            yield take_batch(builder, self.arrow_schema)
