"""What librdkafka has a broker's coordinators keep: transactions and committed offsets."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from plog.types import TopicPartition
from tests.compat.clients import PATIENCE_S
from tests.waiting import until

LOADING = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE)
"""A broker that has just started, or is slow, may not be able to commit yet."""


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    """Return a producer of this id; what was open by it is aborted."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def begin(producer: Producer, topic: str, records: Sequence[bytes]) -> None:
    """Write records in a transaction, and leave it open."""
    producer.begin_transaction()
    for record in records:
        producer.produce(topic, record, partition=0)
    producer.flush(PATIENCE_S)


def commit_offset(bootstrap: str, at: TopicPartition, offset: int) -> None:
    """Commit an offset as a consumer without a partition does. It tries again where it may."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "group"})

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[Place(*at, offset)], asynchronous=False)
        except KafkaException as refused:
            if refused.args[0].code() not in LOADING:
                raise
            return False
        return True

    until(is_committed, "committed", PATIENCE_S)
    consumer.close()


def committed_offset(bootstrap: str, at: TopicPartition) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "group"})
    (found,) = consumer.committed([Place(*at)], PATIENCE_S)
    consumer.close()
    return found.offset


def read_committed(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Return the committed values of partition 0, which are so many."""
    found = [message.value() for message in read_to_end(bootstrap, topic)]
    assert len(found) == count, found
    return found


def read_to_end(bootstrap: str, topic: str) -> list[Message]:
    """Return what is committed in partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([Place(topic, 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(5)
        if message is None:
            continue
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        found.append(message)
    else:
        raise AssertionError(f"no end of {topic}: {found}")
    consumer.close()
    return found
