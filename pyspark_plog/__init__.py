"""Where Spark finds the format `plog`: in `DefaultSource` of a top-level module `pyspark_*`."""

from plog.spark.source import PlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
