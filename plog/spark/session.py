"""A Spark session set up so that Python data sources are quick and found."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Rows cross between the JVM and Python by a Unix socket instead of TCP: a third faster, and
    # half the cost of each task.
    "spark.python.unix.domain.socket.enabled": "true",
    # Filters on topic, partition, offset and timestamp spare the reader records.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Rows go to Python, to the sink too, in batches of so many at most, and of about so many bytes:
    # what a batch has is weighed behind each row, in a time that grows with the square of their
    # number where they have headers.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "67108864",
}


def session(name: str = "plog", **settings: str) -> SparkSession:
    """Return a session for `format("plog")`; a master that is already configured is kept.

    Args:
        settings: further Spark settings, with _ for the dots of their names.
    """
    from pyspark.sql import SparkSession

    # Workers must be a Python that has plog, or Spark does not find the format.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make the format known to a session that does not find it by name.

    Spark looks for it in the Python of its workers, and finds nothing there when any other
    `pyspark_*` module fails to import.
    """
    from plog.spark.source import PlogDataSource

    spark.dataSource.register(PlogDataSource)
