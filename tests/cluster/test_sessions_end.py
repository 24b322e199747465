"""Brokers on ZooKeeper whose sessions end: they register again, and the controller moves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster import znodes
from plog.cluster.zookeeper_store import ZooKeeperStore, end_session
from plog.types import TopicPartition
from tests.cluster.node import WAIT_S, Node
from tests.cluster.test_one_broker import eventually
from tests.compat.live_kafka import ZooKeeper

SESSION_MS = 6_000


class Cluster:
    """Three brokers with three sessions."""

    def __init__(self, directory: Path, zookeeper: ZooKeeper) -> None:
        self.connect = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
        self.stores = [
            ZooKeeperStore(self.connect, session_timeout_ms=SESSION_MS) for _ in range(3)
        ]
        self.nodes: dict[int, Node] = {}
        for broker_id, store in enumerate(self.stores):
            place = directory / f"broker{broker_id}"
            place.mkdir()
            Node(
                [place],
                broker_id,
                store=store,
                peers=self.nodes,
                session_ms=lambda store=store: store.session_timeout_ms,  # type: ignore[misc]
            )

    def expire(self, broker_id: int) -> int:
        """End a broker's session; return its broker epoch once it has registered again."""
        before = self.nodes[broker_id].fence.broker_epoch
        assert end_session(self.connect, self.stores[broker_id].session, within_s=WAIT_S)
        eventually(lambda: self.nodes[broker_id].fence.broker_epoch > before)
        return self.nodes[broker_id].fence.broker_epoch

    @property
    def controller(self) -> int:
        eventually(lambda: sum(node.controller.is_active for node in self.nodes.values()) == 1)
        return next(one for one, node in self.nodes.items() if node.controller.is_active)

    def close(self) -> None:
        for node in self.nodes.values():
            node.stop()
        for store in self.stores:
            store.close()


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Cluster]:
    running = Cluster(tmp_path, zookeeper)
    running.nodes[0].until(lambda snapshot: set(snapshot.brokers) == {0, 1, 2})
    yield running
    running.close()


@pytest.mark.parametrize("who", ["the controller", "another"])
def test_broker_whose_session_ends_is_a_member_again(cluster: Cluster, who: str) -> None:
    cluster.nodes[0].create("a", 3)
    for turn in range(3):
        was = cluster.controller
        victim = was if who == "the controller" else (was + 1) % 3
        epoch = cluster.expire(victim)
        node = znodes.broker_path(victim)
        assert cluster.stores[0].get(node)[1].czxid == epoch
        for one in cluster.nodes.values():
            one.until(lambda snapshot: set(snapshot.brokers) == {0, 1, 2})
            one.until(
                lambda snapshot: all(
                    snapshot.leader_of(TopicPartition("a", index)) >= 0 for index in range(3)
                )
            )
        eventually(lambda: cluster.nodes[0].metadata.snapshot.live_controller_id >= 0)
        cluster.nodes[turn].create(f"t{turn}", 3)
    assert sum(node.controller.is_active for node in cluster.nodes.values()) == 1


def test_settings_changed_while_a_session_ends_are_in_force(cluster: Cluster) -> None:
    cluster.nodes[0].create("a", 1)
    victim = (cluster.controller + 1) % 3
    end_session(cluster.connect, cluster.stores[victim].session, within_s=WAIT_S)
    other = cluster.nodes[(victim + 1) % 3]
    path = znodes.ConfigEntity.topic("a")
    other.store.set(path.path, znodes.encode_config({"retention.ms": "4711"}))
    other.store.create(
        znodes.CONFIG_CHANGE_PREFIX, znodes.encode_config_change(path), sequential=True
    )
    for node in cluster.nodes.values():
        eventually(lambda node=node: node.settings.topic("a").retention_ms == 4711)
