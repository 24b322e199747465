"""The data source `plog`: what Spark asks of it, answered from the client and the columns kernel.

Plans on the driver, reads on the executors. Rows never exist in Python: record
sets go straight into the buffers of Arrow record batches.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from plog._native.columns import ColumnBuilder
from plog.client.fetcher import Fetched
from plog.errors import CorruptRecord
from plog.spark import offsets
from plog.spark.arrow import BASE_SCHEMA, FULL_SCHEMA, arrow_schema, take_batch
from plog.spark.offsets import OffsetRange
from plog.spark.options import SourceOptions, parse
from plog.spark.range_reader import RangeReader
from plog.types import TopicPartition

BATCH_ROWS = 5_000
BATCH_BYTES = 4 * 1024 * 1024
"""A record batch ends at whichever comes first; the best of a sweep is broad around these."""


class PlogDataSource(DataSource):
    """`spark.read.format("plog")`, with the options and the schema of Spark's Kafka source.

    A narrower schema (`.schema("value binary")`) leaves the other columns undecoded; Spark has no
    column pruning for Python sources.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "plog"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source; headers only with includeHeaders=true."""
        return FULL_SCHEMA if parse(self.options).include_headers else BASE_SCHEMA

    def reader(self, schema: StructType) -> PlogReader:
        """Return a reader of a batch query."""
        return PlogReader(parse(self.options), schema)


@dataclass
class TaskRanges(InputPartition):
    """What one task reads; no partition is in it twice."""

    ranges: list[OffsetRange]


class PlogReader(DataSourceReader):
    """Plans the ranges of a batch query and reads those of a task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.arrow_schema = arrow_schema(schema)

    def partitions(self) -> Sequence[TaskRanges]:
        """Resolve topics, times and named ends, and share the ranges out.

        Spark asks once for each DataFrame, so that its actions all see the same records.
        """
        ranges = offsets.plan(self.options)
        shares = offsets.split(ranges, self.options, os.cpu_count() or 1)
        # Spark wants at least one task, if only to learn that there is nothing.
        return [TaskRanges(share) for share in shares] or [TaskRanges([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of the task's ranges as record batches."""
        assert isinstance(partition, TaskRanges)
        settle_worker()
        with offsets.open_cluster(self.options) as cluster:
            yield from self.decode(RangeReader(cluster, partition.ranges, self.options))

    def decode(self, pieces: Iterable[tuple[OffsetRange, Fetched]]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the rows in these pieces of ranges, as full as they come."""
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


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""

_settled = False


def settle_worker() -> None:
    """Set up the process for reading; once, however often it is called.

    Spark's worker collects garbage after every task, which walks every module of Spark and Arrow,
    tens of milliseconds a task: what is imported by now is taken out of the collector's sight.
    And malloc is told to keep the buffers of answers and batches, some megabytes each, instead of
    returning them to the system only to fault in every page anew: a quarter of the reader's time.
    """
    global _settled
    if _settled:
        return
    _settled = True
    gc.freeze()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc; other libraries decide for themselves
        libc.mallopt(M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        libc.mallopt(M_TRIM_THRESHOLD, 128 * 1024 * 1024)
