"""A driver of its own for tests that kill it: copies a topic in a stream, up to its end.

    python -m tests.spark.copy_query MASTER BROKERS SOURCE SINK CHECKPOINT [COUNTS=MODE...]

For each topic COUNTS, another query writes its counts of each key there, in an output mode.
Says `batch N` for each batch that it has finished, and `copied` at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from plog.spark.batch_sink import BatchSink
from plog.spark.session import session
from tests.spark.jvm import FEW_ROWS, QUICK_JVM

ROWS_PER_BATCH = 2_000
COUNTS_PER_BATCH = 10_000


def small() -> dict[str, str]:
    """Return the settings of a session that is small."""
    return {
        **{name.replace(".", "_"): value for name, value in FEW_ROWS.items()},
        "spark_driver_memory": "700m",
        "spark_executor_memory": "700m",
        "spark_task_maxFailures": "4",
        "spark_driver_extraJavaOptions": QUICK_JVM,
        "spark_executor_extraJavaOptions": QUICK_JVM,
    }


def start(master: str, **settings: str) -> Any:
    """Start a session that is small."""
    spark = session("copy", spark_master=master, **small(), **settings)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def copy(
    spark: Any,
    brokers: str,
    source: str,
    sink: str,
    checkpoint: str,
    through: Callable[[Any], Any] = lambda rows: rows,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> None:
    """Copy until everything that is there now is copied.

    Args:
        through: what is done to the rows on their way.
    """
    rows = (
        spark.readStream.format("plog")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(rows_per_batch))
        .load()
    )
    query = (
        through(rows.select("key", "value"))
        .writeStream.format("plog")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    follow(query)
    print("copied", flush=True)


def count_by_key(
    spark: Any, brokers: str, source: str, sink: str, mode: str, checkpoint: str
) -> Any:
    """Count the records of each key, up to their end; return the query."""
    rows = (
        spark.readStream.format("plog")
        .option("kafka.bootstrap.servers", brokers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(COUNTS_PER_BATCH))
        .load()
    )
    written = BatchSink().option("kafka.bootstrap.servers", brokers).option("topic", sink)

    def write(batch: Any, batch_id: int) -> None:
        written(batch.selectExpr("key", f"concat('{batch_id} ', count) AS value"), batch_id)

    counts = rows.groupBy("key").count()
    query = counts.writeStream.outputMode(mode).foreachBatch(write)
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def follow(query: Any) -> None:
    """Wait for a query's end; print each batch that it has finished."""
    told = -1
    while not query.awaitTermination(0.05):
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told:
            told = progress["batchId"]
            print(f"batch {told}", flush=True)


def main() -> None:
    """Run it."""
    master, brokers, source, sink, checkpoint, *more = sys.argv[1:]
    spark = start(master)
    counts = [
        count_by_key(spark, brokers, source, topic, mode, f"{checkpoint}-of-{topic}")
        for topic, mode in (one.split("=") for one in more)
    ]
    copy(spark, brokers, source, sink, checkpoint)
    for query in counts:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
