"""The Spark data source: topics as DataFrames, found by the name `plog`.

Imports neither pyspark nor pyarrow by itself; `plog.spark.session` has what a program calls.
"""
