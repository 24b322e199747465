"""Runs one query by turns on the formats `kafka` and `plog`, on one checkpoint."""

from __future__ import annotations

from plog.client.producer import Producer
from tests.spark.connector_queries import running

TURNS = [{0: 3, 1: 2}, {0: 2, 2: 2}, {1: 2}, {1: 1, 2: 1}, {}]
Turn = tuple[str, list[list[list[int]]]]


def take_turns(bootstrap: str, topic: str, checkpoint: str, formats: list[str]) -> list[Turn]:
    """Run the turns; each ends when it has read what is there.

    Before each turn but the last, some records are produced. Returns the format of each turn with
    its batches: [partition, offset] of each row.
    """
    told = []
    for name, counts in zip(formats, TURNS, strict=True):
        with Producer(bootstrap) as producer:
            for partition, count in counts.items():
                for _ in range(count):
                    producer.send(topic, b"v", partition=partition)
        batches: list[list[list[int]]] = []
        events = (
            running()
            .readStream.format(name)
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
    return told
