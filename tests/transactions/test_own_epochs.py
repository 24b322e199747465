"""Transactions of version 2: each has an epoch of its own, and what is written joins (KIP-890)."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from plog.cluster.own_appends import OwnAppends
from plog.cluster.partition import Partition
from plog.coordinator.txn_events import Producer
from plog.errors import ErrorCode, NotLeaderOrFollower
from plog.handlers import produce_callouts
from plog.handlers.transactional_writes import Permission
from plog.protocol.messages.topics import DeleteTopicsRequest
from plog.types import TopicPartition
from tests.coordinator.conftest import GROUP, await_coordinator
from tests.handlers.running import Running
from tests.handlers.wire import WAIT_MS, Speaker, create_topic, fresh_name, speak
from tests.oracle import produce as oracle
from tests.planes import Plane
from tests.transactions.conftest import Enter
from tests.transactions.transactor import Transactor, committed_offset, read

NONE = ErrorCode.NONE


def test_what_is_written_joins_and_each_end_raises_the_epoch(
    wire: Speaker, enter_2: Enter, at: TopicPartition
) -> None:
    one = enter_2()
    first, group = one.producer, fresh_name()
    assert one.produce(at, b"a").error_code == NONE
    other = TopicPartition(at.topic, 1)
    assert one.produce(other, b"b").error_code == NONE
    assert one.commit_offset(group, at, 5) is NONE
    (topics, offsets) = sorted(one.described().topics, key=lambda topic: len(topic.partitions))[
        ::-1
    ]
    assert (topics.topic, sorted(topics.partitions)) == (at.topic, [0, 1])
    assert offsets.topic == "__consumer_offsets"
    one.finish(commit=True)
    assert one.producer == Producer(first.id, first.epoch + 1)
    assert read(wire, at) == [b"a"]
    assert committed_offset(wire, group, at, require_stable=True) == (NONE, 5)
    assert one.produce(at, b"no").error_code == NONE
    one.finish(commit=False)
    assert one.producer == Producer(first.id, first.epoch + 2)
    assert read(wire, at) == [b"a"]


def test_nothing_late_touches_the_next_transaction(
    wire: Speaker, enter_2: Enter, at: TopicPartition
) -> None:
    one = enter_2()
    group, late = fresh_name(), one.producer
    one.send(at, b"a")
    one.finish(commit=True)
    one.send(at, b"b")
    now, sequences = one.producer, dict(one.sequences)
    one.producer = late
    assert one.produce(at, b"late", sequence=1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    other = TopicPartition(at.topic, 1)
    assert one.produce(other, b"late").error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert one.commit_offset(group, at, 5) is ErrorCode.INVALID_PRODUCER_EPOCH
    for commit in (True, False):
        assert one.end(commit=commit) is ErrorCode.PRODUCER_FENCED
    one.producer, one.sequences = now, sequences
    assert one.described().transaction_state == "Ongoing"
    one.finish(commit=False)
    assert read(wire, at) == [b"a"]
    assert read(wire, other, committed=False) == []


def test_transaction_begins_with_its_first_batch_and_no_later_one(
    wire: Speaker, enter_2: Enter, at: TopicPartition
) -> None:
    one = enter_2()
    second = one.produce(at, b"second", sequence=1)
    assert second.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert one.produce(at, b"first", sequence=0).error_code == NONE
    assert one.produce(at, b"second", sequence=1).error_code == NONE
    one.finish(commit=True)
    assert read(wire, at) == [b"first", b"second"]


def test_end_that_is_asked_for_again_is_told_the_same(enter_2: Enter, at: TopicPartition) -> None:
    one = enter_2()
    before = one.producer
    assert one.end(commit=True) is ErrorCode.INVALID_TXN_STATE
    one.send(at)
    one.finish(commit=True)
    after, one.producer = one.producer, before
    assert one.end(commit=False) is ErrorCode.INVALID_TXN_STATE
    assert one.end(commit=True) is NONE
    assert one.producer == after


@pytest.mark.parametrize("order", ["v1-v2", "v2-v1"])
def test_clients_of_both_versions_may_follow_each_other(
    wire: Speaker, enter: Enter, enter_2: Enter, at: TopicPartition, order: str
) -> None:
    first, second = (enter, enter_2) if order == "v1-v2" else (enter_2, enter)
    one = first()
    one.send(at, b"a")
    one.finish(commit=True)
    other = second(one.transactional_id)
    other.send(at, b"b")
    other.finish(commit=True)
    assert one.produce(at, b"zombie").error_code != NONE
    assert read(wire, at) == [b"a", b"b"]


def test_strangers_join_nothing(wire: Speaker, enter_2: Enter, at: TopicPartition) -> None:
    one = enter_2()
    one.producer = Producer(one.producer.id + 1_000_000, 0)
    assert one.produce(at).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert one.commit_offset("g", at, 1) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert one.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert read(wire, at, committed=False) == []


@pytest.mark.parametrize("own_epochs", [False, True])
def test_write_whose_log_comes_back_before_its_append_is_told_to_come_again(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_epochs: bool
) -> None:
    running = Running(
        tmp_path, transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1
    )
    create_topic(running.wire, "t")
    at, offsets = TopicPartition("t", 0), TopicPartition("__consumer_offsets", 0)
    await_coordinator(running.wire, "g", GROUP)
    one = Transactor(running.wire, "its-name", own_epochs=own_epochs).start()
    one.join(at)
    assert one.add_offsets("g") is NONE
    replicas = running.broker._replicas
    leader = replicas.leader
    away = [at, offsets]

    def leader_but_once(asked: TopicPartition, *more: object) -> Partition:
        if asked in away:
            away.remove(asked)
            raise NotLeaderOrFollower(f"{asked} moves")
        return leader(asked, *more)

    monkeypatch.setattr(replicas, "leader", leader_but_once)
    assert one.produce(at).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert one.produce(at).error_code == ErrorCode.NONE
    assert one.commit_offset("g", at, 5) is ErrorCode.NOT_COORDINATOR
    assert one.commit_offset("g", at, 5) is NONE
    one.finish(commit=True)
    assert read(running.wire, at) == [b"v"]
    assert committed_offset(running.wire, "g", at) == (NONE, 5)
    running.stop()


@pytest.mark.parametrize("own_epochs", [False, True])
def test_write_whose_log_is_made_anew_before_its_append_is_told_to_come_again(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_epochs: bool
) -> None:
    running = Running(tmp_path, transaction_state_log_num_partitions=1)
    create_topic(running.wire, "t")
    at = TopicPartition("t", 0)
    one = Transactor(running.wire, "its-name", own_epochs=own_epochs).start()
    one.join(at)
    asking = produce_callouts if plane is Plane.FAST else oracle
    ask = asking.permission_to_begin

    def make_anew() -> None:
        with closing(speak(running.port)) as other:
            other.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=WAIT_MS), 5)
            create_topic(other, "t")

    async def ask_before_it_is_made_anew(
        *asked: Any, **how: Any
    ) -> dict[TopicPartition, Permission]:
        found = await ask(*asked, **how)
        monkeypatch.setattr(asking, "permission_to_begin", ask)
        await asyncio.to_thread(make_anew)
        return found

    monkeypatch.setattr(asking, "permission_to_begin", ask_before_it_is_made_anew)
    told = one.produce(at)
    assert told.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, told
    assert "its verification belongs to" in (told.error_message or "")
    assert one.produce(at).error_code == NONE
    one.finish(commit=True)
    assert read(running.wire, at) == [b"v"]
    running.stop()


def test_write_that_waits_for_the_markers_before_it_is_appended(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = OwnAppends.append_marker

    async def append_later(self: OwnAppends, *what: Any) -> None:
        await asyncio.sleep(0.2)  # the next transaction asks meanwhile
        await append(self, *what)

    monkeypatch.setattr(OwnAppends, "append_marker", append_later)
    running = Running(tmp_path, transaction_state_log_num_partitions=1)
    create_topic(running.wire, "t")
    at = TopicPartition("t", 0)
    one = Transactor(running.wire, "its-name", own_epochs=True).start()
    for number in range(3):
        assert one.produce(at, b"%d" % number).error_code == NONE
        assert one.end(commit=True) is NONE
    one.produce(at, b"not committed")
    assert read(running.wire, at) == [b"0", b"1", b"2"]
    running.stop()
