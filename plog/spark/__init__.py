"""The Spark data source `plog`: topics as DataFrames.

This module imports neither pyspark nor pyarrow. Programs call `plog.spark.session`,
and `plog.spark.batch_sink` for `foreachBatch`.
"""
