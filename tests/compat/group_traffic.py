"""What clients do in groups and transactions, for the sake of the requests: they come, copy and go.

Everything is done to groups and by transactional ids of fixed names, on a topic that has records.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.compat.clients import PATIENCE_S
from tests.compat.groups import GroupSettings, Members
from tests.compat.programs import Java
from tests.compat.workers import Job, Worker
from tests.waiting import until

GROUP, TRANSACTIONAL_ID = "group", "transactional-id"
WORKERS = "group-of-workers"
GIVEN = "group-of-nobody"
"""Its offsets are set by an administrator, and it is deleted then."""
SESSION_MS = 6_000


def consume_and_copy(client: str | Java, bootstrap: str, topic: str, partitions: int) -> None:
    """Have a member and a static one share a topic, and a worker copy it to itself."""
    with tempfile.TemporaryDirectory() as logs:
        settings = GroupSettings(bootstrap, GROUP, topic, session_ms=SESSION_MS)
        members = Members(settings, partitions, Path(logs))
        try:
            first = members.start(client)
            members.await_share(first)
            second = members.start(client, instance="instance")
            members.await_share(first, second)
            until(lambda: first.read or second.read, "records are read", PATIENCE_S)
            _copy(
                client,
                Job(
                    bootstrap, WORKERS, topic, topic, batch=5, abort_every=2, session_ms=SESSION_MS
                ),
                Path(logs),
            )
            first.leave()
            second.leave()
        finally:
            members.end()


def _copy(client: str | Java, job: Job, logs: Path) -> None:
    worker = Worker(job, client, TRANSACTIONAL_ID, logs / "worker.log", may_be_killed=False)
    try:

        def is_done() -> bool:
            assert worker.is_alive, worker
            return worker.committed > 0 and worker.aborted > 0

        until(is_done, "committed and aborted", PATIENCE_S)
        worker.leave()
    finally:
        worker.end()


# -- administrators


def administer_by_confluent(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    given = ConsumerGroupTopicPartitions(GIVEN, [TopicPartition(topic, 0, 1)])
    every = ConsumerGroupTopicPartitions(GIVEN)
    admin.list_consumer_groups().result(PATIENCE_S)
    for futures in (
        admin.alter_consumer_group_offsets([given]),
        admin.list_consumer_group_offsets([every]),
        admin.describe_consumer_groups([GROUP, GIVEN]),
        admin.delete_consumer_groups([GIVEN]),
    ):
        for future in futures.values():
            future.result(PATIENCE_S)
    # A group of KIP-848, in which no other client here is.
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "new-protocol",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.1) is not None, "a record")
    consumer.close()


def administer_by_kafka_python(bootstrap: str, topic: str) -> None:
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.admin import AbortTransactionSpec
    from kafka.structs import OffsetAndMetadata

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    at = TopicPartition(topic, 0)
    try:
        admin.alter_group_offsets(GIVEN, {at: OffsetAndMetadata(1, "m", -1)})
        admin.list_groups()
        admin.list_group_offsets({GIVEN: None})
        admin.describe_groups([GROUP, GIVEN])
        admin.delete_group_offsets(GIVEN, [at])
        admin.delete_groups([WORKERS])
        admin.list_transactions()
        admin.describe_transactions([TRANSACTIONAL_ID])
        admin.describe_producers([at])
        admin.abort_transaction(AbortTransactionSpec(at, 12345, 0))
    finally:
        admin.close()


def administer_by_aiokafka(bootstrap: str, topic: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.list_consumer_groups()
            await admin.describe_consumer_groups([GROUP])
            await admin.list_consumer_group_offsets(GROUP)
        finally:
            await admin.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


ADMINISTRATORS: dict[str, Callable[[str, str], None]] = {
    "confluent-kafka": administer_by_confluent,
    "kafka-python": administer_by_kafka_python,
    "aiokafka": administer_by_aiokafka,
}
