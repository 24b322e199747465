"""Members of consumer groups that are another project's client: confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import Consumer, TopicPartition

PATIENCE_S = 120


@contextmanager
def member(
    bootstrap: str,
    group: str,
    topic: str,
    offsets: Mapping[int, int] | None = None,
    **settings: str,
) -> Iterator[Consumer]:
    """Be in a group, assigned and with these offsets committed, until the end of the block.

    Settings are confluent-kafka's, with _ for dots.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    try:
        consumer.subscribe([topic])
        until = time.monotonic() + PATIENCE_S
        while not consumer.assignment():
            assert time.monotonic() < until
            consumer.poll(0.1)
        for partition, offset in (offsets or {}).items():
            wanted = TopicPartition(topic, partition, offset)
            (done,) = consumer.commit(offsets=[wanted], asynchronous=False)
            assert done.error is None, done.error
        yield consumer
    finally:
        consumer.close()
