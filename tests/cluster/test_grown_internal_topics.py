"""Partitions added to an internal topic: refused, and without effect if another program does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.cluster import znodes
from plog.cluster.znodes import TopicNode
from plog.coordinator.group_hash import partition_of
from plog.errors import ErrorCode, InvalidTopic
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.handlers.wire import speak
from tests.transactions.transactor import Transactor
from tests.waiting import until

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
COUNT, GROWN = 5, 8
AT = TopicPartition("t", 0)
GROUPS = {f"g{number}": 10 + number for number in range(10)}
"""Groups and what they commit."""
TRANSACTIONAL_ID = "payments"


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    with Brokers(
        tmp_path,
        zookeeper.bootstrap,
        1,
        offsets_topic_num_partitions=COUNT,
        transaction_state_log_num_partitions=COUNT,
        offsets_topic_replication_factor=1,
        transaction_state_log_replication_factor=1,
    ) as running:
        yield running


def grow(brokers: Brokers, topic: str) -> None:
    """Add partitions as another program would."""
    path = znodes.topic_path(topic)
    with closing(brokers.store()) as store:
        data, stat = store.get(path)
        node = TopicNode.decode(data)
        partitions = node.partitions | dict.fromkeys(range(COUNT, GROWN), (0,))
        store.set(path, TopicNode(node.topic_id, partitions).encode(), stat.version)
    brokers.all_until(lambda admin: len(admin.topic(topic).partitions) == GROWN)


def test_groups_and_transactions_keep_their_state(brokers: Brokers) -> None:
    moved = {name for name in GROUPS if partition_of(name, COUNT) != partition_of(name, GROWN)}
    assert moved
    assert partition_of(TRANSACTIONAL_ID, COUNT) != partition_of(TRANSACTIONAL_ID, GROWN)
    with Admin(brokers.bootstrap) as admin, GroupAdmin(brokers.bootstrap) as groups:
        admin.create_topic(AT.topic, partitions=1)
        brokers.all_until(lambda one: AT.topic in one.topics())
        for name, offset in GROUPS.items():
            groups.commit(name, {AT: offset})
        with closing(speak(brokers[0].port)) as wire:
            one = Transactor(wire, TRANSACTIONAL_ID).start()
            one.send(AT, b"v")
            for topic in (OFFSETS, TRANSACTIONS):
                with pytest.raises(InvalidTopic, match="would lose their state"):
                    admin.create_partitions(topic, GROWN)
                grow(brokers, topic)
                line = f"{topic} was extended to {GROWN} partitions: this broker goes on with"
                until(lambda line=line: line in brokers[0].log, line)
            assert one.end(commit=True) is ErrorCode.NONE
        assert {group.group_id for group in groups.groups()} == GROUPS.keys()
        assert {name: groups.committed(name)[AT] for name in GROUPS} == GROUPS
