"""Topics that a new controller can name and no more are not deleted ones, for any broker.

Their nodes are malformed, or are being deleted. Broker 1 is fresh, and knows nothing else. Broker 0
knows the topics from before.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster import znodes
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.metadata_cache import MetadataCache
from plog.runtime.clock import SystemClock
from plog.types import TopicPartition
from tests.cluster.node import WAIT_S, Node
from tests.waiting import until

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
TOPIC = znodes.topic_path("a")
ID = uuid.UUID(int=5)
NODE = znodes.TopicNode(ID, {0: (0,), 1: (0,)})


class Cluster:
    """A broker with a topic, and later another one, that share a store."""

    def __init__(self, directory: Path, topic: znodes.TopicNode) -> None:
        self._directory = directory
        self.store = EmbeddedStore([directory], clock=SystemClock())
        self.nodes: dict[int, Node] = {}
        self.old = self.start(0)
        self.store.create(TOPIC, topic.encode())
        self.old.until(lambda snapshot: snapshot.has_leaders("a", 1))

    def start(self, broker_id: int) -> Node:
        directory = self._directory / str(broker_id)
        directory.mkdir()
        return Node([directory], broker_id, store=self.store, peers=self.nodes)

    def elect_again(self) -> None:
        """Have broker 0 be a controller that knows what the store says."""
        epoch = self.old.controller.epoch
        self.old.controller.stop()
        self.old.take_over()
        self.old.until(lambda snapshot: snapshot.controller_epoch > epoch)
        self.old.settled()

    def join(self) -> MetadataCache:
        """Start broker 1; return its metadata after the first full update."""
        fresh = self.start(1).metadata
        assert fresh.wait_until(lambda snapshot: snapshot.is_complete, WAIT_S)
        return fresh

    def close(self) -> None:
        for node in self.nodes.values():
            node.stop()
        self.store.close()


@pytest.fixture
def topic() -> znodes.TopicNode:
    return NODE


@pytest.fixture
def cluster(tmp_path: Path, topic: znodes.TopicNode) -> Iterator[Cluster]:
    made = Cluster(tmp_path, topic)
    yield made
    made.close()


@pytest.fixture
def fresh(cluster: Cluster) -> MetadataCache:
    """The metadata of broker 1, which joins while the topic's node is malformed."""
    cluster.old.until(lambda snapshot: snapshot.has_leaders("a", 2))
    known = cluster.old.metadata.topic("a")
    cluster.store.set(TOPIC, b"junk")
    cluster.elect_again()
    joined = cluster.join()
    assert cluster.old.metadata.topic("a") == known
    assert joined.topic("a") is None
    assert not joined.is_deleted(A0)
    return joined


def test_malformed_topic_is_known_again_once_its_node_is_mended(cluster, fresh) -> None:
    before = cluster.old.metadata.topic("a")
    cluster.store.set(TOPIC, NODE.encode())
    assert fresh.wait_until(lambda snapshot: snapshot.has_leaders("a", 2), WAIT_S)
    assert cluster.old.metadata.topic("a") == before == fresh.topic("a")


def test_malformed_topic_whose_next_id_differs_was_deleted(cluster, fresh) -> None:
    cluster.store.set(TOPIC, znodes.TopicNode(uuid.uuid4(), {0: (0,)}).encode())
    cluster.old.until(lambda snapshot: ID not in snapshot.topic_names)
    assert cluster.old.metadata.is_deleted(A1)


@pytest.mark.parametrize("by", ["request", "another program"])
def test_malformed_topic_that_is_removed_is_forgotten_by_all(cluster, fresh, by: str) -> None:
    if by == "request":
        cluster.old.topics.delete("a")
    else:
        for path in cluster.store.descendants(TOPIC):
            cluster.store.delete(path)
    for metadata in (cluster.old.metadata, fresh):
        assert metadata.wait_until(lambda snapshot: snapshot.is_deleted(A0), WAIT_S)
        assert metadata.topic("a") is None
        assert metadata.topic_name(ID) is None


@pytest.mark.parametrize("topic", [znodes.TopicNode(ID, {0: (0, 7)})], ids=["broker 7 is away"])
def test_deletion_that_waits_has_deleted_nothing_yet(cluster) -> None:
    cluster.old.topics.delete("a")
    until(lambda: "a" in cluster.old.controller.loop.machine.deletions)
    cluster.elect_again()
    assert "a" in cluster.old.controller.loop.machine.deletions
    fresh = cluster.join()
    assert cluster.old.metadata.contains(A0)
    assert not fresh.is_deleted(A0)


@pytest.mark.parametrize("topic", [znodes.TopicNode(ID, {0: (0,), 1: (7,)})], ids=["7 is away"])
def test_partition_without_a_state_is_not_a_deleted_one(cluster) -> None:
    cluster.elect_again()
    for metadata in (cluster.old.metadata, cluster.join()):
        assert metadata.contains(A1)
        assert metadata.snapshot.leader_of(A1) == -1
        assert metadata.is_deleted(TopicPartition("a", 2))
