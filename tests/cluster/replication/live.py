"""Topics with replicas on live brokers: made, written, read, and compared on every disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plog.client.admin import Admin
from plog.client.consumer import Consumer
from plog.client.producer import Producer
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.waiting import until

EVERY = (0, 1, 2)


def create(
    brokers: Brokers,
    topic: str,
    partitions: int = 1,
    replicas: Sequence[int] = EVERY,
    **configs: str,
) -> None:
    """Create a topic whose partitions all prefer the first replica, and wait until it is led."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    assignments = dict.fromkeys(range(partitions), replicas)
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(topic, assignments=assignments, configs=named)
    until_in_sync(brokers, topic, replicas)


def until_in_sync(brokers: Brokers, topic: str, members: Sequence[int]) -> None:
    """Wait until every partition is led, and these are in sync, as each running broker says."""

    def is_so(admin: Admin) -> bool:
        parts = admin.topics()[topic].partitions.values() if topic in admin.topics() else []
        return bool(parts) and all(
            part.leader_id >= 0 and sorted(part.isr) == sorted(members) for part in parts
        )

    brokers.all_until(is_so)


def until_led_by(brokers: Brokers, topic: str, leader: int) -> None:
    """Wait until each running broker names this leader of partition 0; -1 is none."""
    brokers.all_until(
        lambda admin: (
            topic in admin.topics() and admin.topic(topic).partitions[0].leader_id == leader
        )
    )


def running(brokers: Brokers) -> str:
    """Return the addresses of the brokers that run."""
    return ",".join(one.bootstrap for one in brokers.brokers if one.is_running)


def leader_of(brokers: Brokers, topic: str) -> int:
    with Admin(running(brokers)) as admin:
        return admin.topic(topic).partitions[0].leader_id


def produce(brokers: Brokers, topic: str, values: range, acks: str = "all") -> None:
    """Write values, and wait until all are acknowledged."""
    with Producer(running(brokers), acks=acks, enable_idempotence=acks == "all") as producer:
        sent = [producer.send(topic, str(number).encode(), partition=0) for number in values]
        producer.flush()
        for one in sent:
            one.result(0)


def read(brokers: Brokers, topic: str, count: int) -> list[int]:
    """Read values from the start of partition 0 until there are so many."""
    found: list[int] = []
    with Consumer(running(brokers), auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(found) < count:
            found += [int(record.value or b"") for record in consumer.poll(10_000)]
    return found


def directory_of(brokers: Brokers, broker_id: int, topic: str) -> Path:
    """Return the directory of partition 0, on whichever disk of the broker it is."""
    (found,) = [
        place
        for log_dir in brokers[broker_id].log_dirs
        if (place := Path(log_dir, f"{topic}-0")).exists()
    ]
    return found


def log_of(brokers: Brokers, broker_id: int, topic: str) -> bytes:
    """Return a replica's batches, as they are in its files."""
    files = sorted(directory_of(brokers, broker_id, topic).glob("*.log"))
    return b"".join(file.read_bytes() for file in files)


def until_equal(brokers: Brokers, topic: str, replicas: Sequence[int] = EVERY) -> None:
    """Wait until the files of all replicas have the same batches."""
    until(
        lambda: len({log_of(brokers, one, topic) for one in replicas}) == 1,
        "all replicas have the same bytes",
    )
