"""Creates Spark sessions in which the format `plog` is found and fast."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNIX_SOCKET = "spark.python.unix.domain.socket.enabled"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
BATCH_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
SETTINGS = {
    UNIX_SOCKET: "true",
    PUSHDOWN: "true",
    # Spark re-measures the whole batch after every row; with headers that cost is quadratic.
    BATCH_RECORDS: "2000",
    BATCH_BYTES: "67108864",
}
REASONS = {
    UNIX_SOCKET: "Rows reach Python through a Unix socket: a third faster than TCP.",
    PUSHDOWN: "With the option pushFilters, filters reduce the records to fetch.",
    BATCH_RECORDS: "Smaller batches reach the sink: twice as fast with headers.",
    BATCH_BYTES: "Large rows reach the sink in batches of bounded size.",
}
"""By setting: its effect, in one sentence."""


def session(name: str = "plog", **settings: str) -> SparkSession:
    """Return a session for `format("plog")`; keeps a master that is already configured.

    Args:
        settings: further Spark settings, with _ instead of the dots in their names.
    """
    from pyspark.sql import SparkSession

    # Spark looks for formats in the workers' Python, so that one needs plog.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Register the format in a session that does not find it by name.

    Spark looks for formats in the Python of its workers, and finds none if any other `pyspark_*`
    module there fails to import.
    """
    from plog.spark.source import PlogDataSource

    spark.dataSource.register(PlogDataSource)
