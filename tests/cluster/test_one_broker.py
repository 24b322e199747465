"""One broker from its nodes to its files: topics come, stay, grow and go."""

from __future__ import annotations

import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog._native.crc32c import crc32c
from plog.cluster import znodes
from plog.cluster.controller_events import ElectionType
from plog.cluster.store import NoNode, Op, OpResult
from plog.cluster.topic_admin import NewTopic
from plog.cluster.znodes import ConfigEntity, TopicNode
from plog.errors import (
    ErrorCode,
    KafkaStorageError,
    NotController,
    NotLeaderOrFollower,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from plog.settings.alterations import Alteration, Operation
from plog.types import TopicPartition, new_topic_id, uuid_to_text
from tests.cluster.node import WAIT_S, Node


@pytest.fixture
def start(log_dirs: list[Path]) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start_again(**settings: str) -> Node:
        if nodes:
            nodes.pop().stop()
        nodes.append(Node(log_dirs, **settings))
        return nodes[-1]

    yield start_again
    for node in nodes:
        node.stop()


def directories(log_dirs: list[Path]) -> set[str]:
    return {one.name for log_dir in log_dirs for one in log_dir.iterdir() if one.is_dir()}


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def test_created_topic_has_directories_leaders_and_nodes(start, log_dirs: list[Path]) -> None:
    node = start()
    created = node.create("a", 3, retention_ms="1000")
    assert directories(log_dirs) == {"a-0", "a-1", "a-2"}
    topic = node.metadata.topic("a")
    assert topic is not None
    assert topic.topic_id == created.topic_id
    assert node.metadata.topic_name(created.topic_id) == "a"
    for index in range(3):
        at = TopicPartition("a", index)
        told = node.metadata.leader(at)
        assert told is not None
        assert (told.leader_id, told.leader_epoch, told.isr) == (0, 0, (0,))
        partition = node.replicas.leader(at, 0)
        assert partition.log.settings.retention_ms == 1000
        assert partition is node.replicas.by_id(created.topic_id, index)
        path = znodes.partition_state_path(at)
        assert node.store.get(path)[0] == (
            b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0],'
            b'"leader_broker_epoch":%d}' % node.fence.broker_epoch
        )
    assert (
        node.store.get("/brokers/topics/a")[0]
        == (
            b'{"version":3,"topic_id":"%s","partitions":{"0":[0],"1":[0],"2":[0]},'
            b'"adding_replicas":{},"removing_replicas":{}}'
        )
        % uuid_to_text(created.topic_id).encode()
    )
    assert node.store.get("/config/topics/a")[0] == (
        b'{"version":1,"config":{"retention.ms":"1000"}}'
    )
    snapshot = node.metadata.snapshot
    assert snapshot.live_controller_id == 0
    assert snapshot.brokers[0].endpoint("PLAINTEXT").port == 9092
    assert snapshot.brokers[0].endpoint("OTHER") is None


def test_restart_keeps_topics_ids_and_epochs(start) -> None:
    node = start()
    created = node.create("a", 2, retention_ms="1000")
    first_epoch = node.fence.broker_epoch
    node = start()
    node.until(lambda snapshot: snapshot.has_leaders("a", 2))
    assert node.metadata.topic("a").topic_id == created.topic_id
    assert node.replicas.leader(TopicPartition("a", 1), 0).settings.retention_ms == 1000
    assert node.fence.broker_epoch > first_epoch
    assert node.controller.epoch == 2
    assert node.fence.controller_epoch == 2


def test_deleted_topic_is_gone_and_its_name_is_free(start, log_dirs: list[Path]) -> None:
    node = start()
    first = node.create("a", 2)
    partition = node.replicas.leader(TopicPartition("a", 0))
    node.delete("a")
    eventually(lambda: node.store.children("/brokers/topics") == [])
    with pytest.raises(UnknownTopicOrPartition):
        node.replicas.leader(TopicPartition("a", 0))
    with pytest.raises(NotLeaderOrFollower):
        partition.check_leader()
    assert not {"a-0", "a-1"} & directories(log_dirs)
    for path in ("/config/topics/a", "/admin/delete_topics/a"):
        with pytest.raises(NoNode):
            node.store.get(path)
    second = node.create("a", 1)
    assert second.topic_id != first.topic_id
    assert node.metadata.topic_name(first.topic_id) is None
    node.replicas.leader(TopicPartition("a", 0))


def test_topic_being_deleted_blocks_its_name(start) -> None:
    node = start()
    node.create("a")
    node.controller.stop()
    node.topics.delete("a")
    node.topics.delete("a")
    with pytest.raises(TopicAlreadyExists):
        node.create("a")
    # The next start finishes the deletion.
    node = start()
    eventually(lambda: node.store.exists("/brokers/topics/a") is None)
    assert node.logs.get(TopicPartition("a", 0)) is None


def test_topic_that_goes_before_the_controller_has_seen_it_goes(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller reads what is to be deleted first, for another topic's sake."""
    node = start()
    is_reading, go_on = threading.Event(), threading.Event()
    children = node.store.children

    def held(path: str) -> list[str]:
        if path == znodes.DELETE_TOPICS and not go_on.is_set():
            is_reading.set()
            assert go_on.wait(WAIT_S)
        return children(path)

    monkeypatch.setattr(node.store, "children", held)
    node.store.create(znodes.delete_topic_path("gone"))
    assert is_reading.wait(WAIT_S)
    node.topics.create(NewTopic("a", 1))
    node.topics.delete("a")
    go_on.set()
    eventually(lambda: node.store.exists(znodes.topic_path("a")) is None)
    eventually(lambda: not children(znodes.DELETE_TOPICS))


def test_topic_that_comes_and_goes_while_a_controller_takes_over_goes(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it has read which topics there are, and before it tells anybody."""
    node = start()
    node.controller.stop()
    read_state, names = node.store.children, []

    def meanwhile(path: str) -> list[str]:
        found = read_state(path)
        if path == znodes.TOPICS and not names:
            names.append("a")
            node.topics.create(NewTopic("a", 1))
            node.topics.delete("a")
        return found

    monkeypatch.setattr(node.store, "children", meanwhile)
    node.take_over()
    eventually(lambda: names and node.store.exists(znodes.topic_path("a")) is None)


def test_topic_that_is_created_again_while_it_grows_keeps_its_own_id(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller took it for the old topic, and its deletion never ended."""
    node = start()
    node.create("a")
    multi, second = node.store.multi, []

    def meanwhile(ops):
        if not second and any(op.path == znodes.topic_path("a") for op in ops):
            monkeypatch.undo()
            node.delete("a")
            eventually(lambda: node.store.exists(znodes.topic_path("a")) is None)
            second.append(node.create("a"))
        return multi(ops)

    monkeypatch.setattr(node.store, "multi", meanwhile)
    assert node.topics.create_partitions("a", 3) == second[0].topic_id
    node.until(lambda snapshot: snapshot.has_leaders("a", 3))
    assert node.metadata.topic_name(second[0].topic_id) == "a"
    node.delete("a")
    eventually(lambda: not node.store.children(znodes.DELETE_TOPICS))


def remove_nodes(node: Node) -> None:
    for path in node.store.descendants(znodes.topic_path("a")):
        node.store.delete(path)


def give_another_id(node: Node) -> None:
    node.store.set(znodes.topic_path("a"), TopicNode(new_topic_id(), {0: (0,)}).encode())


@pytest.mark.parametrize("change", [remove_nodes, give_another_id])
def test_request_to_delete_does_not_outlive_nodes_that_change_meanwhile(start, change) -> None:
    node = start()
    # The deletion waits for broker 1.
    node.store.create(znodes.topic_path("a"), TopicNode(new_topic_id(), {0: (0, 1)}).encode())
    node.until(lambda snapshot: snapshot.has_leaders("a", 1))
    node.topics.delete("a")
    eventually(lambda: "a" in node.controller.loop.machine.deletions)
    change(node)
    eventually(lambda: node.store.children(znodes.DELETE_TOPICS) == [])
    assert node.store.exists(znodes.topic_path("a")) is None


def test_topic_is_left_alone_whose_id_is_another(start) -> None:
    node = start()
    created = node.create("a")
    with pytest.raises(UnknownTopicId):
        node.topics.delete("a", new_topic_id())
    assert node.topics.delete("a", created.topic_id) == created.topic_id
    eventually(lambda: node.store.exists(znodes.topic_path("a")) is None)


def test_request_to_delete_goes_with_its_topic_alone(start) -> None:
    node = start()
    with pytest.raises(UnknownTopicOrPartition):
        node.topics.delete("a")
    assert node.store.children(znodes.DELETE_TOPICS) == []


def test_configs_that_go_while_a_topic_is_made_are_made_anew(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    path = ConfigEntity.topic("a").path
    node.store.create(path, b'{"version":1,"config":{}}')
    multi = node.store.multi

    def late(ops: list[Op]) -> list[OpResult]:
        monkeypatch.undo()
        node.store.delete(path)
        return multi(ops)

    monkeypatch.setattr(node.store, "multi", late)
    node.topics.create(NewTopic("a", 1, configs={"retention.ms": "1000"}))
    assert b"1000" in node.store.get(path)[0]


def test_added_partitions_are_led_at_once(start) -> None:
    node = start()
    node.create("a", 1)
    node.topics.create_partitions("a", 4)
    node.until(lambda snapshot: snapshot.has_leaders("a", 4))
    assert {one.topic_partition.partition for one in node.replicas.partitions} == {0, 1, 2, 3}


def test_appended_records_survive_a_restart(start) -> None:
    node = start()
    node.create("a", 1)
    at = TopicPartition("a", 0)
    partition = node.replicas.leader(at)
    batch = bytearray(one_batch())
    node.changed.clear()
    appended = partition.append(batch, acks=-1, now_ms=node.clock.now_ms())
    assert appended.base_offset == 0
    assert node.changed == [at]
    assert partition.readable_end(read_committed=False) == 1
    assert partition.readable_end(read_committed=True) == 1
    node = start()
    node.until(lambda snapshot: snapshot.has_leaders("a", 1))
    assert node.replicas.leader(at).readable_end(read_committed=False) == 1


def one_batch() -> bytes:
    record = b"\x10\x00\x00\x00\x01\x04hi\x00"
    body = struct.pack(">hiqqqhii", 0, 0, 1, 1, -1, -1, -1, 1) + record
    header = struct.pack(">qiib", 0, len(body) + 9, -1, 2)
    return header + struct.pack(">I", crc32c(body)) + body


def test_changed_configs_reach_the_log_and_last(start) -> None:
    node = start()
    node.create("a", 1)
    log = node.replicas.leader(TopicPartition("a", 0)).log
    node.configs.alter(ConfigEntity.topic("a"), [Alteration("retention.ms", Operation.SET, "7")])
    eventually(lambda: log.settings.retention_ms == 7)
    node.configs.alter(
        ConfigEntity.broker(None), [Alteration("log.retention.bytes", Operation.SET, "99")]
    )
    eventually(lambda: log.settings.retention_bytes == 99)
    assert log.settings.retention_ms == 7
    node = start()
    node.until(lambda snapshot: snapshot.has_leaders("a", 1))
    log = node.replicas.leader(TopicPartition("a", 0)).log
    assert (log.settings.retention_ms, log.settings.retention_bytes) == (7, 99)


def test_elections_that_are_not_needed_say_so(start) -> None:
    node = start()
    node.create("a", 1)
    at, nowhere = TopicPartition("a", 0), TopicPartition("b", 0)
    asked = node.controller.elect_leaders(ElectionType.PREFERRED, [at, nowhere])
    assert asked.result(WAIT_S) == {
        at: ErrorCode.ELECTION_NOT_NEEDED,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    node.store.create(znodes.PREFERRED_ELECTION, znodes.encode_partitions([at]))
    eventually(lambda: node.store.exists(znodes.PREFERRED_ELECTION) is None)


def test_deposed_controller_steps_down_and_writes_nothing(start) -> None:
    node = start()
    node.create("a", 1)
    # Somebody else takes over: the epoch moves on, and /controller with it.
    epoch = int(node.store.get("/controller_epoch")[0])
    node.store.set("/controller_epoch", b"%d" % (epoch + 1))
    states = node.store.get("/brokers/topics/a/partitions/0/state")
    node.topics.create_partitions("a", 2)
    # Fenced, it steps down; as nobody else is there, it is elected again with a newer epoch.
    node.store.delete("/controller")
    node.until(lambda snapshot: snapshot.has_leaders("a", 2))
    assert node.controller.epoch == epoch + 2
    assert node.store.get("/brokers/topics/a/partitions/0/state") == states


def test_stopped_controller_refuses_questions(start) -> None:
    node = start()
    node.controller.stop()
    assert not node.controller.is_active
    assert node.store.exists("/controller") is None


def test_failed_log_dir_takes_only_its_partitions_offline(start, log_dirs: list[Path]) -> None:
    node = start()
    node.create("a", 4)
    lost = {
        one.topic_partition for one in node.replicas.partitions if one.log.log_dir == log_dirs[1]
    }
    kept = {one.topic_partition for one in node.replicas.partitions} - lost
    assert len(lost) == len(kept) == 2
    node.logs.fail_log_dir(log_dirs[1], OSError(5, "Input/output error"))
    node.until(lambda snapshot: all(snapshot.partition(at).leader_id == -1 for at in lost))
    for at in lost:
        assert node.metadata.snapshot.partition(at).offline_replicas == (0,)
        with pytest.raises(KafkaStorageError, match="Input/output error"):
            node.replicas.leader(at)
    for at in kept:
        node.replicas.leader(at)
    assert node.store.children("/log_dir_event_notification") == []
    # New partitions go where a disk works.
    node.create("b", 1)
    assert node.replicas.leader(TopicPartition("b", 0)).log.log_dir == log_dirs[0]
    # With the disk back at the next start, the partitions are led again, in a newer epoch.
    node = start()
    node.until(lambda snapshot: snapshot.has_leaders("a", 4))
    assert {node.replicas.leader(at).leadership.leader_epoch for at in lost} == {2}
    assert {node.replicas.leader(at).leadership.leader_epoch for at in kept} == {0}


def test_damaged_partition_is_known_answers_its_error_and_can_be_deleted(start) -> None:
    node = start()
    node.create("a", 2)
    at = TopicPartition("a", 0)
    log = node.replicas.leader(at).log
    node.logs.on_damage(log, "made to be damaged")
    node.until(lambda snapshot: snapshot.partition(at).leader_id == -1)
    with pytest.raises(KafkaStorageError, match="made to be damaged"):
        node.replicas.leader(at)
    node.replicas.leader(TopicPartition("a", 1))
    node.delete("a")
    eventually(lambda: node.store.exists("/brokers/topics/a") is None)
    node.create("a", 1)
    node.replicas.leader(at)


def test_log_of_another_topic_of_that_name_is_not_served(start) -> None:
    node = start()
    old = node.create("a", 1)
    # The store forgets the topic behind everybody's back, and it is created anew.
    for path in node.store.descendants("/brokers/topics/a"):
        node.store.delete(path)
    node.until(lambda snapshot: "a" not in snapshot.topics)
    node.topics.create(NewTopic("a", 1, 1))
    node.until(lambda snapshot: "a" in snapshot.topics)
    node.settled()
    # The files of the old topic are still here: its records must not be taken for the new one's.
    assert node.replicas.leader(TopicPartition("a", 0)).topic_id == old.topic_id
    node = start()
    with pytest.raises(NotLeaderOrFollower):
        node.replicas.leader(TopicPartition("a", 0))


def test_a_thousand_partitions_all_get_leaders(start) -> None:
    node = start()
    started = time.monotonic()
    node.create("big", 1000)
    print(f"1000 partitions: {time.monotonic() - started:.2f} s")


def test_not_controller_is_what_questions_get_after_a_resignation(start) -> None:
    node = start()
    node.controller._enqueue("", node.controller.loop.resign)
    with pytest.raises(NotController):
        node.controller.elect_leaders(ElectionType.PREFERRED, None).result(WAIT_S)


def test_full_disk_costs_the_controller_its_rule_but_not_its_life(start, monkeypatch) -> None:
    node = start()
    node.create("a", 1)

    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    real = {copy: copy.apply for copy in node.store._copies}
    with monkeypatch.context() as disk:
        # The topic's nodes still fit, its partition states do not.
        room = {copy: iter([True]) for copy in node.store._copies}

        def fill(copy, *args):
            return real[copy](*args) if next(room[copy], False) else full()

        for copy in node.store._copies:
            disk.setattr(copy, "apply", lambda *args, copy=copy: fill(copy, *args))
        node.topics.create(NewTopic("b", 1, 1))
        eventually(lambda: not node.controller.is_active)
        node.replicas.leader(TopicPartition("a", 0))
    node.until(lambda snapshot: snapshot.has_leaders("b", 1))
    eventually(lambda: node.controller.is_active)
