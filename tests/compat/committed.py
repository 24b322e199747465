"""What a group has committed, as each client reads it, and then commits something else itself."""

from __future__ import annotations

import asyncio

from plog.client.offsets import OffsetAndMetadata
from plog.types import NO_EPOCH, TopicPartition
from tests.compat.clients import PATIENCE_S
from tests.compat.programs import Java

TELLS_NO_EPOCH = ("aiokafka",)
"""Clients whose commits, and what they read of others', have no leader epoch."""


def as_committed(client: str | Java, given: OffsetAndMetadata) -> OffsetAndMetadata:
    """Return what is committed when a client is given this to commit."""
    if client == "confluent-kafka":
        # It counts the end of a C string (`py_to_c_parts`, since its pull request 1410), which it
        # does not tell when it reads.
        return given._replace(metadata=given.metadata + "\0")
    return given


def exchange(
    client: str | Java, bootstrap: str, group: str, at: TopicPartition, now: OffsetAndMetadata
) -> OffsetAndMetadata:
    """Have a client read what is committed of a partition, and then commit `now`, with no member.

    Returns what it read.
    """
    if isinstance(client, Java):
        place = [bootstrap, group, at.topic, str(at.partition)]
        given = [str(now.offset), str(now.leader_epoch), now.metadata]
        told = client.run_hosted("CommittedOffsets", [*place, *given])
        offset, leader_epoch, metadata = told.splitlines()
        return OffsetAndMetadata(int(offset), metadata, int(leader_epoch))
    if client == "confluent-kafka":
        return _confluent(bootstrap, group, at, now)
    if client == "kafka-python":
        return _kafka_python(bootstrap, group, at, now)
    return asyncio.run(_aiokafka(bootstrap, group, at, now))


def _confluent(
    bootstrap: str, group: str, at: TopicPartition, now: OffsetAndMetadata
) -> OffsetAndMetadata:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    try:
        (found,) = consumer.committed([Place(*at)], PATIENCE_S)
        # Without one it has None.
        epoch = NO_EPOCH if found.leader_epoch is None else found.leader_epoch
        place = Place(*at, now.offset, metadata=now.metadata, leader_epoch=now.leader_epoch)
        consumer.commit(offsets=[place], asynchronous=False)
        return OffsetAndMetadata(found.offset, found.metadata or "", epoch)
    finally:
        consumer.close()


def _kafka_python(
    bootstrap: str, group: str, at: TopicPartition, now: OffsetAndMetadata
) -> OffsetAndMetadata:
    from kafka import KafkaConsumer
    from kafka.structs import OffsetAndMetadata as Committed
    from kafka.structs import TopicPartition as Place

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    try:
        found = consumer.committed(Place(*at), metadata=True)
        consumer.commit({Place(*at): Committed(now.offset, now.metadata, now.leader_epoch)})
        return OffsetAndMetadata(found.offset, found.metadata, found.leader_epoch)
    finally:
        consumer.close()


async def _aiokafka(
    bootstrap: str, group: str, at: TopicPartition, now: OffsetAndMetadata
) -> OffsetAndMetadata:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.structs import TopicPartition as Place

    place = Place(*at)
    # Its consumer tells the offset alone of what is committed.
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
    )
    try:
        await admin.start()
        await consumer.start()
        consumer.assign([place])
        found = (await admin.list_consumer_group_offsets(group, partitions=[place]))[place]
        assert await consumer.committed(place) == found.offset
        await consumer.commit({place: (now.offset, now.metadata)})
        return OffsetAndMetadata(found.offset, found.metadata)
    finally:
        await consumer.stop()
        await admin.close()
