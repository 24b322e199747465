"""Unreadable nodes: the controller says so in one line, and goes on with the rest.

Another program, or an administrator's slip, may write anything into ZooKeeper.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.cluster import znodes
from plog.cluster.broker_registration import create_persistent_paths
from plog.cluster.controller_events import ElectionType
from plog.cluster.controller_store import ControllerStore
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.features import GROUP_VERSION, Change, Direction, Features
from plog.cluster.producer_ids import ProducerIds
from plog.cluster.store import Store
from plog.cluster.stray_logs import Topics
from plog.cluster.topic_admin import NewTopic
from plog.cluster.znodes import ConfigEntity, ControllerNode, PartitionStateNode
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import ErrorCode, InvalidTopic, KafkaError
from plog.runtime.clock import SystemClock
from plog.settings.alterations import Alteration, Operation
from plog.types import TopicPartition
from tests.cluster.node import WAIT_S, Node
from tests.waiting import until

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
STATE = znodes.partition_state_path(A0)
TOPIC = znodes.topic_path("a")
GARBAGE = [b"junk", b"", b"\xff\xfe\x00", b"null", b"{}", b"[" * 100_000]
WRONG_VALUES = {
    STATE: [
        b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":1e999,"isr":[0]}',
        b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":-1,"isr":[0]}',
        b'{"controller_epoch":1,"leader":4294967296,"version":1,"leader_epoch":0,"isr":[0]}',
        b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":"0"}',
    ],
    TOPIC: [
        b'{"version":1,"partitions":{}}',
        b'{"version":1,"partitions":{"0":[]}}',
        b'{"version":1,"partitions":{"-1":[0]}}',
        b'{"version":1,"partitions":{"0":[4294967296]}}',
    ],
    znodes.broker_path(7): [
        b'{"version":5,"endpoints":["X://h:1"],"jmx_port":-1,"timestamp":"1"}',
        b'{"version":5,"endpoints":["PLAINTEXT://h:65536"],"jmx_port":-1,"timestamp":"1"}',
        b'{"version":1,"host":null,"port":9092,"jmx_port":-1,"timestamp":"1"}',
    ],
}
PATHS = [
    *WRONG_VALUES,
    ConfigEntity.topic("a").path,
    znodes.PREFERRED_ELECTION,
    f"{znodes.LOG_DIR_EVENTS}/log_dir_event_0000000000",
]
MALFORMED = [
    *((path, data, False) for path in PATHS for data in GARBAGE),
    *((path, data, False) for path, wrong in WRONG_VALUES.items() for data in wrong),
    *((path, GARBAGE[0], True) for path in PATHS),
]
REQUESTS: dict[str, Callable[[Node, Features], object]] = {
    "create": lambda node, _: node.topics.create(NewTopic("c", 2)),
    "grow": lambda node, _: node.topics.create_partitions("a", 3),
    "alter": lambda node, _: node.configs.alter(
        ConfigEntity.topic("a"), [Alteration("retention.ms", Operation.SET, "1")]
    ),
    "replace": lambda node, _: node.configs.replace(ConfigEntity.topic("a"), {}),
    "lower": lambda _, features: features.update(Change(GROUP_VERSION, 0, Direction.DOWN)),
    "raise": lambda _, features: features.update(Change(GROUP_VERSION, 1, Direction.UP)),
    "ids": lambda node, _: ProducerIds(node.store, 0).next(),
    "delete": lambda node, _: node.topics.delete("a"),
}
READ_BY_REQUESTS = [
    *((path, data) for path, data, is_active in MALFORMED if not is_active),
    *((path, data) for path in (znodes.FEATURES, znodes.PRODUCER_ID_BLOCK) for data in GARBAGE),
    (f"{znodes.BROKER_IDS}/x", b"junk"),
]
REFUSED = {
    TOPIC: {"grow"},
    znodes.broker_path(7): {"raise"},
    f"{znodes.BROKER_IDS}/x": {"raise"},
    ConfigEntity.topic("a").path: {"alter", "replace"},
    znodes.PRODUCER_ID_BLOCK: {"ids"},
}
"""Requests that need the node. The others are done."""
CONSUMED = (znodes.PREFERRED_ELECTION, znodes.LOG_DIR_EVENTS)
"""What the controller removes once it has read it."""


def write(store: Store, path: str, data: bytes) -> None:
    if store.exists(path) is None:
        store.create(path, data)
    else:
        store.set(path, data)


@pytest.fixture
def node(log_dirs: list[Path]) -> Iterator[Node]:
    running = Node(log_dirs, unclean_leader_election_enable="true")
    yield running
    running.stop()


def lines(caplog: pytest.LogCaptureFixture, path: str) -> list[str]:
    """Return what the controller said of a node's fault."""
    said = [one for one in caplog.records if one.name.startswith("plog.cluster.controller")]
    return [text for text in (one.getMessage() for one in said) if f"{path}: " in text]


@pytest.mark.parametrize(("path", "data", "is_active"), MALFORMED, ids=lambda one: str(one)[:90])
def test_controller_goes_on_beside_a_malformed_node(node, caplog, path, data, is_active) -> None:
    node.create("a", 2)
    node.create("b", 1)
    if not is_active:
        node.controller.stop()
    write(node.store, path, data)
    if not is_active:
        node.take_over()
    node.create("c", 1)
    node.until(lambda snapshot: snapshot.has_leaders("b", 1) and 7 not in snapshot.brokers)
    node.settled()
    assert node.controller.is_active
    assert "cannot go on" not in caplog.text
    said = lines(caplog, path)
    assert len(said) <= 1
    assert all(len(one) < 1_000 for one in said)
    if not path.startswith(CONSUMED):
        assert node.store.get(path)[0] == data


@pytest.mark.parametrize(("path", "data"), READ_BY_REQUESTS, ids=lambda one: str(one)[:90])
def test_request_is_refused_only_if_it_needs_the_malformed_node(node, path, data) -> None:
    node.create("a", 2)
    features = Features(node.store)
    write(node.store, path, data)
    refused = {}
    for name, request in REQUESTS.items():
        try:
            request(node, features)
        except KafkaError as refusal:
            refused[name] = str(refusal)
    features.stop()
    needed = REFUSED.get(path, set())
    assert refused.keys() == needed if data == b"junk" else refused.keys() <= needed
    assert all(path in reason for reason in refused.values())


UNREADABLE = [STATE, TOPIC]


@pytest.mark.parametrize("path", [*UNREADABLE, znodes.broker_path(7)])
def test_new_controller_names_a_malformed_node_once(node, caplog, path: str) -> None:
    node.create("a", 2)
    node.controller.stop()
    write(node.store, path, b"junk")
    node.take_over()
    for name in ("c", "d"):
        node.create(name)
    node.settled()
    assert len(lines(caplog, path)) == 1
    assert "b'junk'" in lines(caplog, path)[0]


def test_partition_with_a_malformed_state_has_no_leader_until_the_node_is_mended(
    node, caplog
) -> None:
    node.create("a", 2)
    written = node.store.get(STATE)[0]
    node.controller.stop()
    node.store.set(STATE, b"junk")
    node.take_over()
    node.until(lambda snapshot: snapshot.leader_of(A1) == 0 and snapshot.leader_of(A0) == -1)
    assert len(node.metadata.topic("a").partitions) == 2
    for kind in ElectionType:
        asked = node.controller.elect_leaders(kind, [A0]).result(WAIT_S)
        assert asked[A0] in (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        )
    assert node.store.get(STATE)[0] == b"junk"
    node.store.set(STATE, written)
    node.until(lambda snapshot: snapshot.has_leaders("a", 2))
    assert node.replicas.leader(A0).leadership.leader_epoch == 0


def test_malformed_state_that_is_removed_is_written_again(node) -> None:
    node.create("a", 1)
    node.controller.stop()
    node.store.set(STATE, b"junk")
    node.take_over()
    node.until(lambda snapshot: snapshot.leader_of(A0) == -1)
    node.store.delete(STATE)
    node.until(lambda snapshot: snapshot.has_leaders("a", 1))
    assert PartitionStateNode.decode(node.store.get(STATE)[0]).leader == 0


def test_active_controller_keeps_a_topic_whose_node_is_overwritten(node, caplog) -> None:
    node.create("a", 2)
    node.store.set(TOPIC, b"junk")
    until(lambda: lines(caplog, TOPIC), "the controller has read the node")
    node.settled()
    assert node.metadata.snapshot.has_leaders("a", 2)


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("path", UNREADABLE)
def test_topic_with_a_malformed_node_can_be_deleted_and_made_again(
    node, log_dirs, path: str, is_known: bool
) -> None:
    old = node.create("a", 2)
    if not is_known:
        node.controller.stop()
    node.store.set(path, b"junk")
    if not is_known:
        node.take_over()
    node.topics.delete("a")
    until(lambda: node.store.exists(TOPIC) is None)
    until(lambda: node.logs.get(A0) is None and node.logs.get(A1) is None)
    assert node.store.children(znodes.DELETE_TOPICS) == []
    new = node.create("a", 3)
    assert new.topic_id != old.topic_id
    assert node.replicas.leader(A0).topic_id == new.topic_id


def test_deletion_that_waits_for_a_broker_outlives_a_malformed_topic(node, caplog) -> None:
    node.store.create(TOPIC, znodes.TopicNode(uuid.uuid4(), {0: (0, 7)}).encode())
    node.until(lambda snapshot: snapshot.has_leaders("a", 1))
    node.topics.delete("a")
    until(lambda: "a" in node.controller.loop.machine.deletions)
    node.store.set(TOPIC, b"junk")
    until(lambda: lines(caplog, TOPIC))
    node.settled()
    assert node.store.children(znodes.DELETE_TOPICS) == ["a"]
    assert "a" in node.controller.loop.machine.deletions


def test_state_that_is_malformed_when_the_controller_writes_it(tmp_path: Path, caplog) -> None:
    store = EmbeddedStore([tmp_path], clock=SystemClock())
    peers: dict[int, Node] = {}
    for broker_id in range(2):
        directory = tmp_path / str(broker_id)
        directory.mkdir()
        Node([directory], broker_id, store=store, peers=peers)
    peers[0].until(lambda snapshot: len(snapshot.brokers) == 2)
    peers[0].topics.create(NewTopic("a", assignments={0: (1, 0), 1: (0, 1)}))
    peers[0].until(lambda snapshot: snapshot.has_leaders("a", 2))
    written = store.get(STATE)[0]
    store.set(STATE, b"junk")
    store.delete(znodes.broker_path(1))
    peers[0].until(lambda snapshot: snapshot.leader_of(A0) == -1)
    assert peers[0].metadata.leader(A1).isr == (0,)
    assert store.get(STATE)[0] == b"junk"
    assert len(lines(caplog, STATE)) == 1
    store.set(STATE, written)
    peers[0].until(lambda snapshot: snapshot.leader_of(A0) == 0)
    for node in peers.values():
        node.stop()
    store.close()


def test_live_broker_whose_node_is_overwritten_stays_one(nodes, embedded, caplog) -> None:
    path = znodes.broker_path(3)
    text = znodes.BrokerNode((znodes.Endpoint("PLAINTEXT", "h", 1),), 1).encode()
    embedded.create(path, text)
    known = nodes.read_brokers()
    embedded.set(path, b"junk")
    assert nodes.read_brokers() == known
    embedded.delete(path)
    embedded.create(path, b"junk")
    assert nodes.read_brokers() == {}
    assert len(lines(caplog, path)) == 2


def test_new_topic_is_placed_on_the_brokers_that_can_be_read(node) -> None:
    node.store.create(znodes.broker_path(7), b"junk")
    node.store.create(f"{znodes.BROKER_IDS}/x", b"junk")
    node.create("c", 4)
    assert node.metadata.topic("c").partitions[3].replicas == (0,)


def test_malformed_topic_cannot_grow(node) -> None:
    node.create("a", 1)
    node.store.set(TOPIC, b"junk")
    with pytest.raises(InvalidTopic, match="not what Kafka writes"):
        node.topics.create_partitions("a", 3)


def test_log_of_a_malformed_topic_is_no_stray_one(embedded: EmbeddedStore) -> None:
    create_persistent_paths(embedded)
    embedded.create(TOPIC, b"junk")
    topics = Topics(embedded)
    assert topics.why_stray(A0, uuid.uuid4(), 0) is None
    assert topics.why_stray(TopicPartition("b", 0), uuid.uuid4(), 0) is not None


# -- the election ------------------------------------------------------------------------------


@pytest.fixture
def nodes(embedded: EmbeddedStore, clock) -> ControllerStore:
    create_persistent_paths(embedded)
    return ControllerStore(embedded, 0, clock)


def test_controller_whose_own_node_is_overwritten_rules_on(node, caplog) -> None:
    node.store.set(znodes.CONTROLLER, b"junk")
    until(lambda: lines(caplog, znodes.CONTROLLER))
    node.create("a")
    assert (node.controller.is_active, node.controller.epoch) == (True, 1)


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Iterator[list[Store]]:
    """Two sessions with one ZooKeeper."""
    connect = f"{request.getfixturevalue('zookeeper').bootstrap}/{uuid.uuid4()}"
    opened: list[Store] = [ZooKeeperStore(connect) for _ in range(2)]
    yield opened
    for store in opened:
        store.close()


def test_malformed_controller_node_of_another_is_waited_for(
    other: list[Store], tmp_path: Path, caplog
) -> None:
    mine, theirs = other
    create_persistent_paths(theirs)
    theirs.create(znodes.CONTROLLER, b"junk", ephemeral=True)
    node = Node([tmp_path], store=mine)
    until(lambda: lines(caplog, znodes.CONTROLLER))
    node.controller.on_unclean_enabled(None)  # whatever wakes it, it says no more
    with pytest.raises(Exception, match="is not the controller"):
        node.settled()
    assert node.controller.loop.seconds_to_timer() is None
    assert len(lines(caplog, znodes.CONTROLLER)) == 1
    theirs.delete(znodes.CONTROLLER)
    assert node.controller.wait_active(WAIT_S)
    node.stop()


@pytest.mark.parametrize("data", [b"", b"junk", b"-1", b"1.5", b"99999999999", b"\xff"])
@pytest.mark.parametrize("is_active", [False, True], ids=["new-controller", "same-controller"])
def test_no_controller_until_a_malformed_epoch_is_mended(node, caplog, data, is_active) -> None:
    node.create("a")
    if not is_active:
        node.controller.stop()
    node.store.set(znodes.CONTROLLER_EPOCH, data)
    if is_active:
        node.topics.create(NewTopic("b"))  # whose states it cannot write
    else:
        node.controller = node.new_controller()
        node.controller.start()
    until(lambda: lines(caplog, znodes.CONTROLLER_EPOCH))
    until(lambda: not node.controller.is_active)
    assert node.controller.loop.seconds_to_timer() is None
    assert len(lines(caplog, znodes.CONTROLLER_EPOCH)) == 1
    assert node.store.get(znodes.CONTROLLER_EPOCH)[0] == data
    node.store.set(znodes.CONTROLLER_EPOCH, b"6")
    assert node.controller.wait_active(WAIT_S)
    node.create("c")
    if not is_active:
        assert node.store.get(znodes.CONTROLLER_EPOCH)[0] == b"7"


def test_malformed_nodes_of_the_election_are_named(nodes, embedded) -> None:
    embedded.create(znodes.CONTROLLER_EPOCH, b"4")
    nodes.try_elect()
    embedded.set(znodes.CONTROLLER, ControllerNode(5, 1).encode())
    assert nodes.read_controller() == 5
    embedded.set(znodes.CONTROLLER_EPOCH, b"x")
    with pytest.raises(znodes.MalformedNode, match=r"^/controller_epoch: "):
        nodes.resume()
