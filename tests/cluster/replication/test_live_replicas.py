"""Replicas on three real brokers: copies of every record, and a leader after each kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.client.reassignments import ReassignmentAdmin
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.waiting import until

from .live import create, leader_of, produce, read, until_equal, until_in_sync


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    running = Brokers(
        tmp_path,
        zookeeper.bootstrap,
        replica_lag_time_max_ms=4_000,
        offsets_topic_replication_factor=3,
        transaction_state_log_replication_factor=3,
        min_insync_replicas=2,
    )
    with running:
        yield running


def test_every_replica_has_the_leaders_bytes(brokers: Brokers) -> None:
    create(brokers, "t", segment_bytes="20000")
    produce(brokers, "t", range(2_000))
    assert read(brokers, "t", 2_000) == list(range(2_000))
    until_equal(brokers, "t")


def test_next_leader_has_what_was_acknowledged(brokers: Brokers) -> None:
    create(brokers, "t")
    produce(brokers, "t", range(500))
    first = leader_of(brokers, "t")
    brokers.lose(first)
    others = sorted({0, 1, 2} - {first})
    until_in_sync(brokers, "t", others)
    produce(brokers, "t", range(500, 1_000))
    assert read(brokers, "t", 1_000) == list(range(1_000))
    brokers[first].start()
    until_in_sync(brokers, "t", [0, 1, 2])
    second = leader_of(brokers, "t")
    brokers.lose(second)
    until_in_sync(brokers, "t", sorted({0, 1, 2} - {second}))
    assert read(brokers, "t", 1_000) == list(range(1_000))
    brokers[second].start()
    until_in_sync(brokers, "t", [0, 1, 2])
    until_equal(brokers, "t")


def test_deleted_records_are_gone_on_every_replica(brokers: Brokers) -> None:
    at = TopicPartition("t", 0)
    create(brokers, "t")
    produce(brokers, "t", range(100))
    first = leader_of(brokers, "t")
    with Admin(brokers.bootstrap) as admin:
        assert admin.delete_records({at: 60}) == {at: 60}
    brokers[first].kill()
    until_in_sync(brokers, "t", sorted({0, 1, 2} - {first}))
    assert read(brokers, "t", 40) == list(range(60, 100))


def test_partition_moves_to_other_brokers_while_it_is_written(brokers: Brokers) -> None:
    at = TopicPartition("t", 0)
    with ReassignmentAdmin(brokers.bootstrap) as admin:
        admin.create_topic("t", assignments={0: [0]}, configs={"min.insync.replicas": "1"})
        produce(brokers, "t", range(1_000))
        with Producer(brokers.bootstrap) as producer:
            for number, target in enumerate(([1, 2], [2], [0, 1, 2], [1])):
                admin.reassign({at: target})
                for value in range(200):
                    producer.send("t", str(1_000 + 200 * number + value).encode(), partition=0)
                until(lambda: admin.moves() == {}, "the move has ended")
                until_in_sync(brokers, "t", target)
                until(lambda: where(brokers, "t") == sorted(target), "others have no log")  # noqa: B023 - called at once
                assert leader_of(brokers, "t") in target
    assert read(brokers, "t", 1_800) == list(range(1_800))


def where(brokers: Brokers, topic: str) -> list[int]:
    """Return the brokers that have a replica's directory."""
    return [
        number
        for number, broker in enumerate(brokers.brokers)
        if Path(broker.log_dirs[0], f"{topic}-0").exists()
    ]
