"""Spark finds the format `plog` here: it imports `DefaultSource` from modules `pyspark_*`."""

from plog.spark.source import PlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
