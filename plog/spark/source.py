"""The data source `plog`: what Spark asks of it, answered from the client and the columns kernel.

Plans batch queries, on the driver. Streams are planned in `stream_source`; `task_reader` reads
both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from plog.spark import offsets
from plog.spark.arrow import BASE_SCHEMA, FULL_SCHEMA
from plog.spark.options import parse, wants_headers
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
        """Return a reader of a batch query."""
        return PlogReader(parse(self.options), schema)

    def streamReader(self, schema: StructType) -> PlogStreamReader:  # noqa: N802
        """Return a reader of a streaming query."""
        return PlogStreamReader(parse(self.options, streaming=True), schema)


class PlogReader(TaskReader, DataSourceReader):
    """Plans the ranges of a batch query and reads those of a task."""

    def partitions(self) -> Sequence[TaskRanges]:
        """Resolve topics, times and named ends, and share the ranges out.

        Spark asks once for each DataFrame, so that its actions all see the same records.
        """
        ranges = offsets.plan(self.options)
        shares = offsets.split(ranges, self.options, os.cpu_count() or 1)
        # Spark wants at least one task, if only to learn that there is nothing.
        return [TaskRanges(share) for share in shares] or [TaskRanges([])]
