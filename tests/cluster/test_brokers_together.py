"""Several brokers with one store: one controller, roles by its word, and what a loss does.

A broker is lost by deleting its node: with the embedded store they share a session. Followers do
not fetch here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster.controller_events import ElectionType
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import Store
from plog.cluster.znodes import broker_path
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import ErrorCode, NotController, NotLeaderOrFollower
from plog.runtime.clock import SystemClock
from plog.types import TopicPartition
from tests.cluster.node import WAIT_S, Node
from tests.cluster.test_one_broker import eventually

A0 = TopicPartition("a", 0)


@pytest.fixture(params=["embedded", "zookeeper"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Store]]:
    """The store of each broker: one for all, or a session of each with ZooKeeper."""
    if request.param == "embedded":
        (tmp_path / "store").mkdir()
        opened: list[Store] = [EmbeddedStore([tmp_path / "store"], clock=SystemClock())] * 3
    else:
        connect = f"{request.getfixturevalue('zookeeper').bootstrap}/{uuid.uuid4()}"
        opened = [ZooKeeperStore(connect) for _ in range(3)]
    yield opened
    for store in opened:
        store.close()


@pytest.fixture
def brokers(tmp_path: Path, stores: list[Store]) -> Iterator[dict[int, Node]]:
    nodes: dict[int, Node] = {}
    for broker_id, store in enumerate(stores):
        directory = tmp_path / f"broker{broker_id}"
        directory.mkdir()
        Node([directory], broker_id, store=store, peers=nodes)
    nodes[2].until(lambda snapshot: set(snapshot.brokers) == {0, 1, 2})
    yield nodes
    for node in nodes.values():
        node.stop()


def on_all(brokers: dict[int, Node], predicate) -> None:
    for node in brokers.values():
        node.until(predicate)


def test_one_is_the_controller_and_everybody_knows_everything(brokers) -> None:
    assert [node.controller.is_active for node in brokers.values()] == [True, False, False]
    created = brokers[1].create("a", 6, 3)
    on_all(brokers, lambda snapshot: snapshot.has_leaders("a", 6))
    led = [
        [one.topic_partition.partition for one in node.replicas.partitions if one.is_leader]
        for node in brokers.values()
    ]
    assert sorted(index for one in led for index in one) == list(range(6))
    assert {len(one) for one in led} == {2}
    for node in brokers.values():
        assert len(node.replicas.partitions) == 6
        assert node.metadata.topic("a").topic_id == created.topic_id
        assert node.metadata.snapshot.live_controller_id == 0
    with pytest.raises(NotController):
        brokers[1].controller.elect_leaders(ElectionType.PREFERRED, None).result(WAIT_S)


def test_lost_broker_loses_its_leads_and_gets_them_back(brokers) -> None:
    brokers[0].create("a", 3, 3)
    (lost,) = [
        number for number, node in brokers.items() if node.metadata.leader(A0).leader_id == number
    ]
    others = {number: node for number, node in brokers.items() if number != lost}
    data, _ = brokers[0].store.get(broker_path(lost))
    brokers[0].store.delete(broker_path(lost))
    on_all(others, lambda snapshot: snapshot.leader_of(A0) not in (lost, -1))
    told = brokers[0 if lost else 1].metadata.leader(A0)
    assert told.leader_epoch == 1
    assert set(told.isr) == set(others)
    assert told.offline_replicas == (lost,)
    others[told.leader_id].replicas.leader(A0, 1)
    # Nobody told the lost one: it believes it leads, and is fenced by its epoch's end elsewhere.
    assert brokers[lost].replicas.leader(A0, 0)
    brokers[0].store.create(broker_path(lost), data, ephemeral=True)
    brokers[lost].fence.broker_epoch = brokers[0].store.get(broker_path(lost))[1].czxid
    eventually(lambda: not brokers[lost].replicas.get(A0).is_leader)
    with pytest.raises(NotLeaderOrFollower):
        brokers[lost].replicas.leader(A0)


def test_controller_that_stops_is_followed_by_another(brokers) -> None:
    brokers[0].create("a", 1, 3)
    brokers[0].controller.stop()
    eventually(lambda: brokers[1].controller.is_active or brokers[2].controller.is_active)
    brokers[2].create("b", 1, 3)
    new = 1 if brokers[1].controller.is_active else 2
    assert brokers[new].controller.epoch == 2
    on_all(brokers, lambda snapshot: snapshot.controller_id == new)
    on_all(brokers, lambda snapshot: snapshot.has_leaders("b", 1))
    assert {node.fence.controller_epoch for node in brokers.values()} == {2}


def test_broker_that_stops_in_order_hands_its_leads_over(brokers) -> None:
    brokers[0].create("a", 6, 2)
    asked = brokers[0].controller.controlled_shutdown(1, brokers[1].fence.broker_epoch)
    assert asked.result(WAIT_S) == {}
    assert not any(one.is_leader for one in brokers[1].replicas.partitions)
    on_all(brokers, lambda snapshot: snapshot.has_leaders("a", 6))
    for told in brokers[0].metadata.topic("a").partitions.values():
        assert 1 not in told.isr


def test_preferred_leaders_lead_again_when_asked(brokers) -> None:
    brokers[0].create("a", 1, 3)
    preferred = brokers[0].metadata.snapshot.partition(A0).replicas[0]
    asked = brokers[0].controller.elect_leaders(ElectionType.PREFERRED, [A0])
    assert asked.result(WAIT_S) == {A0: ErrorCode.ELECTION_NOT_NEEDED}
    assert brokers[preferred].replicas.leader(A0)


def test_deleted_topic_is_gone_everywhere(brokers) -> None:
    brokers[0].create("a", 3, 3)
    brokers[1].delete("a")
    eventually(lambda: brokers[0].store.children("/brokers/topics") == [])
    for node in brokers.values():
        assert node.replicas.partitions == []
        assert node.logs.logs() == []
