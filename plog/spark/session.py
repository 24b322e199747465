"""Creates Spark sessions in which the format `plog` is found and fast."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from plog.spark.session_settings import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
