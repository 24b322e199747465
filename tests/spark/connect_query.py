"""A client of Spark Connect, which has no session but a server's.

    python -m tests.spark.connect_query SERVER BROKERS SOURCE WRITTEN SINK CHECKPOINT

Reads the source in a batch query and says what it has found; writes 100 values to a topic in
another; copies it to the sink in a stream, and says what `copy_query` says.
"""

from __future__ import annotations

import sys

from plog.spark.session import session
from tests.spark.cluster_query import LARGE, count
from tests.spark.copy_query import copy


def main() -> None:
    """Run it."""
    server, brokers, source, written, sink, checkpoint = sys.argv[1:]
    spark = session("connect", spark_remote=server)
    print(type(spark).__module__, flush=True)
    count(spark, brokers, source)
    rows = spark.range(100).selectExpr("cast(cast(id AS string) AS binary) AS value")
    writer = rows.write.format("plog").mode("append").option("topic", written)
    writer.option("kafka.bootstrap.servers", brokers).save()
    copy(spark, brokers, source, sink, checkpoint, rows_per_batch=LARGE)
    spark.stop()


if __name__ == "__main__":
    main()
