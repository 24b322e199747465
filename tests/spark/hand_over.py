"""Runs one query by turns on the formats `kafka` and `plog`, on one checkpoint.

    python -m tests.spark.hand_over BOOTSTRAP TOPIC CHECKPOINT JARS FORMAT ...

Before each turn but the last, some records are produced. Prints, as JSON, the turns with their
batches: [partition, offset] of each row.
"""

from __future__ import annotations

import json
import sys

from plog.client.producer import Producer
from plog.spark.session import session

TURNS = [{0: 3, 1: 2}, {0: 2, 2: 2}, {1: 2}, {1: 1, 2: 1}, {}]


def main(bootstrap: str, topic: str, checkpoint: str, jars: str, *formats: str) -> None:
    """Run the turns; each ends when it has read what is there."""
    spark = session(
        "hand over",
        spark_master="local[2]",
        spark_driver_memory="1g",
        spark_ui_enabled="false",
        spark_jars=jars,
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    spark.sparkContext.setLogLevel("ERROR")
    told = []
    for name, counts in zip(formats, TURNS, strict=True):
        with Producer(bootstrap) as producer:
            for partition, count in counts.items():
                for _ in range(count):
                    producer.send(topic, b"v", partition=partition)
        batches: list[list[list[int]]] = []
        events = (
            spark.readStream.format(name)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            events.select("partition", "offset")
            .writeStream.foreachBatch(
                lambda frame, _, into=batches: into.append(sorted(map(list, frame.collect())))
            )
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        told.append((name, batches))
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
