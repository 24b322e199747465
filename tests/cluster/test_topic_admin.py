"""What administrators may ask of topics, and which error answers the rest."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Callable

import pytest

from plog.cluster import znodes
from plog.cluster.broker_registration import create_persistent_paths
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import Watch, WatchEvent
from plog.cluster.topic_admin import NewTopic, TopicAdmin
from plog.cluster.znodes import BrokerNode, ConfigEntity, Endpoint, TopicNode
from plog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    ReassignmentInProgress,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from plog.runtime.bounded_lines import AT_ONCE
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import DynamicSettings
from tests.bounded import MANY, counted, stand_still, told
from tests.cluster.asked import calls_of
from tests.waiting import until


def register(store: EmbeddedStore, *broker_ids: int) -> None:
    create_persistent_paths(store)
    for broker_id in broker_ids:
        node = BrokerNode((Endpoint("PLAINTEXT", "h", 9092),), 1, f"r{broker_id}")
        store.create(znodes.broker_path(broker_id), node.encode())


def admin_of(store: EmbeddedStore, **settings: str) -> TopicAdmin:
    texts = {key.replace("_", "."): value for key, value in settings.items()}
    return TopicAdmin(store, DynamicSettings(BrokerSettings(texts)), random.Random(1))


@pytest.fixture
def admin(embedded: EmbeddedStore) -> TopicAdmin:
    register(embedded, 0, 1, 2)
    return admin_of(embedded, num_partitions="4", default_replication_factor="2")


CREATED = [
    (NewTopic("t"), 4, 2),
    (NewTopic("t", 1, 3), 1, 3),
    (NewTopic("t", num_partitions=7), 7, 2),
    (NewTopic("t", assignments={1: [2, 1], 0: [0, 1]}), 2, 2),
    (NewTopic("t", 1, 1, configs={"cleanup.policy": "compact,delete"}), 1, 1),
    (NewTopic("x" * 249, 1, 1), 1, 1),
    (NewTopic("A.b_C-9", 1, 1), 1, 1),
]


@pytest.mark.parametrize(("topic", "partitions", "factor"), CREATED)
def test_legal_topic_is_created(admin, embedded, topic: NewTopic, partitions, factor) -> None:
    created = admin.create(topic)
    assert (created.num_partitions, created.replication_factor) == (partitions, factor)
    node = TopicNode.decode(embedded.get(znodes.topic_path(topic.name))[0])
    assert node.topic_id == created.topic_id
    assert sorted(node.partitions) == list(range(partitions))
    assert all(len(set(replicas)) == factor for replicas in node.partitions.values())
    if topic.assignments:
        assert node.partitions == {key: tuple(value) for key, value in topic.assignments.items()}
    stored = znodes.decode_config(embedded.get(ConfigEntity.topic(topic.name).path)[0])
    assert stored == topic.configs


REFUSED = [
    (NewTopic(""), InvalidTopic),
    (NewTopic("."), InvalidTopic),
    (NewTopic(".."), InvalidTopic),
    (NewTopic("a/b"), InvalidTopic),
    (NewTopic("ä"), InvalidTopic),
    (NewTopic("x" * 250), InvalidTopic),
    (NewTopic("__cluster_metadata"), InvalidRequest),
    (NewTopic("there_is"), TopicAlreadyExists),
    (NewTopic("there.is"), InvalidTopic),
    (NewTopic("t", 0, 1), InvalidPartitions),
    (NewTopic("t", -2, 1), InvalidPartitions),
    (NewTopic("t", 1, 0), InvalidReplicationFactor),
    (NewTopic("t", 1, 4), InvalidReplicationFactor),
    (NewTopic("t", 1, -2), InvalidReplicationFactor),
    (NewTopic("t", 1, assignments={0: [0]}), InvalidRequest),
    (NewTopic("t", -1, 1, assignments={0: [0]}), InvalidRequest),
    (NewTopic("t", assignments={1: [0]}), InvalidReplicaAssignment),
    (NewTopic("t", assignments={0: []}), InvalidReplicaAssignment),
    (NewTopic("t", assignments={0: [1, 1]}), InvalidReplicaAssignment),
    (NewTopic("t", assignments={0: [0, 1], 1: [0]}), InvalidReplicaAssignment),
    (NewTopic("t", assignments={0: [9]}), InvalidReplicaAssignment),
    (NewTopic("t", 1, 1, configs={"no.such.key": "1"}), InvalidConfig),
    (NewTopic("t", 1, 1, configs={"retention.ms": "soon"}), InvalidConfig),
    (NewTopic("t", 1, 1, configs={"retention.ms": None}), InvalidConfig),
]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(("topic", "error"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused_topic_leaves_nothing(admin, embedded, topic, error, validate_only) -> None:
    admin.create(NewTopic("there_is", 1, 1))
    zxid = embedded._tree.zxid
    with pytest.raises(error):
        admin.create(topic, validate_only=validate_only)
    assert embedded._tree.zxid == zxid


def test_validated_topic_is_described_and_not_created(admin, embedded) -> None:
    seen = admin.create(NewTopic("t", configs={"retention.ms": "5"}), validate_only=True)
    assert (seen.num_partitions, seen.replication_factor) == (4, 2)
    assert seen.topic_id == uuid.UUID(int=0)
    assert seen.settings.retention_ms == 5
    assert embedded.children(znodes.TOPICS) == []
    assert embedded.children("/config/topics") == []


def test_creation_asks_the_store_in_few_round_trips(admin, embedded, monkeypatch) -> None:
    calls = calls_of(monkeypatch, embedded)
    admin.create(NewTopic("t", configs={"retention.ms": "5"}))
    assert calls == ["exists", "children", "get_many", "multi"]


def test_configs_left_by_half_a_creation_do_not_stand_in_the_way(admin, embedded) -> None:
    embedded.create("/config/topics/t", b'{"version":1,"config":{"retention.ms":"1"}}')
    admin.create(NewTopic("t", 1, 1))
    assert embedded.get("/config/topics/t")[0] == b'{"version":1,"config":{}}'


def test_partitions_are_added_after_those_there_are(admin, embedded) -> None:
    admin.create(NewTopic("t", assignments={0: [1, 2], 1: [2, 0]}))
    before = TopicNode.decode(embedded.get(znodes.topic_path("t"))[0])
    admin.create_partitions("t", 3, validate_only=True)
    admin.create_partitions("t", 3)
    admin.create_partitions("t", 5, [[0, 1], [2, 1]])
    after = TopicNode.decode(embedded.get(znodes.topic_path("t"))[0])
    assert after.topic_id == before.topic_id
    assert {index: after.partitions[index] for index in before.partitions} == before.partitions
    # Round robin goes on where it was: partition 0 is led by broker 1, so 2 by 0.
    assert after.partitions[2][0] == 0
    assert (after.partitions[3], after.partitions[4]) == ((0, 1), (2, 1))


GROWTH_REFUSED = [
    ("nope", 2, None, UnknownTopicOrPartition),
    ("going", 2, None, UnknownTopicOrPartition),
    ("t", 2, None, InvalidPartitions),
    ("t", 1, None, InvalidPartitions),
    ("t", -1, None, InvalidPartitions),
    ("t", 4, [[0, 1]], InvalidReplicaAssignment),
    ("t", 3, [[0]], InvalidReplicaAssignment),
    ("t", 3, [[0, 0]], InvalidReplicaAssignment),
    ("t", 3, [[0, 7]], InvalidReplicaAssignment),
    ("moving", 3, None, ReassignmentInProgress),
    ("__consumer_offsets", 2, None, InvalidTopic),
    ("__transaction_state", 2, [[0]], InvalidTopic),
]


@pytest.mark.parametrize(("name", "count", "assignments", "error"), GROWTH_REFUSED)
def test_refused_growth_leaves_the_topic(admin, embedded, name, count, assignments, error) -> None:
    admin.create(NewTopic("t", assignments={0: [1, 2], 1: [2, 0]}))
    for topic in ("going", "__consumer_offsets", "__transaction_state"):
        admin.create(NewTopic(topic, 1, 1))
    admin.delete("going")
    moving = TopicNode(uuid.UUID(int=5), {0: (1, 2)}, {0: (2,)}, {0: (1,)})
    embedded.create(znodes.topic_path("moving"), moving.encode())
    zxid = embedded._tree.zxid
    with pytest.raises(error):
        admin.create_partitions(name, count, assignments)
    assert embedded._tree.zxid == zxid


def test_deletion_is_asked_for_once(admin, embedded) -> None:
    admin.create(NewTopic("t", 1, 1))
    admin.delete("t")
    admin.delete("t")
    assert embedded.children(znodes.DELETE_TOPICS) == ["t"]
    with pytest.raises(TopicAlreadyExists, match="is marked for deletion"):
        admin.create(NewTopic("t", 1, 1))


def test_what_can_not_be_deleted_is_not(admin, embedded) -> None:
    admin.create(NewTopic("__consumer_offsets", 1, 1))
    with pytest.raises(InvalidTopic):
        admin.delete("__consumer_offsets")
    with pytest.raises(UnknownTopicOrPartition):
        admin.delete("nope")
    admin.create(NewTopic("t", 1, 1))
    with pytest.raises(TopicDeletionDisabled):
        admin_of(embedded, delete_topic_enable="false").delete("t")
    assert embedded.children(znodes.DELETE_TOPICS) == []


def test_without_a_live_broker_there_is_no_topic(embedded: EmbeddedStore) -> None:
    register(embedded)
    with pytest.raises(InvalidReplicationFactor):
        admin_of(embedded).create(NewTopic("t", 1, 1))


def test_lines_of_changes_are_bounded(embedded: EmbeddedStore, caplog, monkeypatch) -> None:
    stand_still(monkeypatch)
    register(embedded, 0)
    admin = admin_of(embedded)
    with caplog.at_level(logging.INFO):
        for number in range(MANY):
            admin.create(NewTopic(f"t{number}", 1, 1))
        until(lambda: counted(caplog, r"(\d+) further topic changes") == MANY - AT_ONCE)
    assert told(caplog, "created topic") == AT_ONCE


def test_watch_of_a_removal_that_is_given_up_before_it_begins_is_cancelled(
    embedded: EmbeddedStore, admin: TopicAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler gives up while the thread that is to begin it waits for the store."""
    cancelled: list[bool] = []
    real = embedded.watch_data

    def watch_data(path: str, callback: Callable[[WatchEvent], None]) -> Watch:
        watch = real(path, callback)
        monkeypatch.setattr(watch, "cancel", lambda: cancelled.append(True), raising=False)
        return watch

    monkeypatch.setattr(embedded, "watch_data", watch_data)
    removal = admin.watch_removal("t", None, lambda: None)
    removal.cancel()
    removal.begin()
    assert cancelled == [True]
    removal = admin.watch_removal("t", None, lambda: None)
    removal.begin()
    assert cancelled == [True]
    removal.cancel()
    assert cancelled == [True, True]
