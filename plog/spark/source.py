"""The data source `plog`: implements Spark's interface with the client and the columns kernel.

Plans batch queries, on the driver. `stream_source` plans streams; `task_reader` reads both, and
`sink` writes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter
from pyspark.sql.types import StructType

from plog.spark import offsets, sink
from plog.spark.arrow import BASE_SCHEMA, FULL_SCHEMA
from plog.spark.filters import from_offsets, is_answered, min_timestamp, narrow
from plog.spark.offsets import OffsetRange
from plog.spark.options import SourceOptions, parse, wants_headers
from plog.spark.settings_check import missing_in_planning, warn_once
from plog.spark.stream_source import PlogStreamReader
from plog.spark.task_reader import TaskRanges, TaskReader


class PlogDataSource(DataSource):
    """`format("plog")`, with the options and the schema of Spark's Kafka source.

    A narrower schema (`.schema("value binary")`) leaves the other columns undecoded; Spark has no
    column pruning for Python sources.
    """

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "plog"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source; headers only with includeHeaders=true."""
        return FULL_SCHEMA if wants_headers(self.options) else BASE_SCHEMA

    def reader(self, schema: StructType) -> PlogReader:
        """Return a reader of a batch query.

        Spark 4.3 keeps the plan of the last pushed filters for all queries of a DataFrame, also for
        those without filters. They would lack records, so filters are pushed by an option only.
        """
        options = parse(self.options)
        # A reader that overrides pushFilters fails if spark.sql.python.filterPushdown.enabled is
        # not set. So only the process that pushes filters gets such a reader.
        warn_once(missing_in_planning(pushes_filters=options.push_filters))
        pushes = options.push_filters and sys.argv[-1].endswith("data_source_pushdown_filters")
        return (FilteringReader if pushes else PlogReader)(options, schema)

    def streamReader(self, schema: StructType) -> PlogStreamReader:  # noqa: N802
        """Return a reader of a streaming query."""
        warn_once(missing_in_planning())
        return PlogStreamReader(parse(self.options, streaming=True), schema)

    def writer(
        self, schema: StructType, overwrite: bool
    ) -> sink.PlogWriter | sink.ForeachBatchWriter:
        """Return the writer of a batch query; topics are appended to."""
        return sink.writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> sink.PlogStreamWriter:  # noqa: N802
        """Return the writer of a streaming query."""
        return sink.stream_writer(self.options, schema)


class PlogReader(TaskReader, DataSourceReader):
    """Plans the ranges of a batch query and reads those of a task."""

    def partitions(self) -> Sequence[TaskRanges]:
        """Resolve topics, times and named ends, and split the ranges into tasks.

        Spark calls this once per DataFrame, so that all its actions see the same records.
        """
        ranges = self.plan()
        shares = offsets.split(ranges, self.options, os.cpu_count() or 1)
        # Spark requires at least one task, even an empty one.
        return [TaskRanges(share) for share in shares] or [TaskRanges([])]

    def plan(self) -> list[OffsetRange]:
        """Return the ranges to read."""
        return offsets.plan(self.options)


class FilteringReader(PlogReader):
    """Applies the query's filters on topic, partition, offset and timestamp to the ranges."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        """Accept the filters; yield those that Spark still has to apply."""
        self.filters = filters
        return (wanted for wanted in filters if not is_answered(wanted))

    def plan(self) -> list[OffsetRange]:
        """Return the ranges to read, without offsets that the filters exclude."""
        ranges = narrow(super().plan(), self.filters)
        at_ms = min_timestamp(self.filters)
        if at_ms is None or at_ms <= 0 or not ranges:
            return ranges
        # All records before the first one at or after that time are earlier, in any order.
        first = offsets.plan_offsets_at(self.options, [r.partition for r in ranges], at_ms)
        return from_offsets(ranges, first)
