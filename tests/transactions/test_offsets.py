"""Offsets that are committed with a transaction: they stand once it does (KIP-98, KIP-447)."""

from __future__ import annotations

import pytest

from plog.client.group_consumer import GroupMetadata
from plog.client.producer import Producer
from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.handlers.wire import Speaker, fresh_name
from tests.servers import BrokerProcess
from tests.transactions.conftest import Enter
from tests.transactions.transactor import committed_offset
from tests.waiting import until

NONE = ErrorCode.NONE


@pytest.fixture
def group() -> str:
    return fresh_name()


@pytest.mark.parametrize("commit", [True, False])
def test_offset_stands_once_its_transaction_does(
    wire: Speaker, enter_any: Enter, at: TopicPartition, group: str, commit: bool
) -> None:
    one = enter_any()
    assert one.add_offsets(group) is NONE
    assert one.commit_offset(group, at, 7) is NONE
    assert committed_offset(wire, group, at) == (NONE, -1)
    assert committed_offset(wire, group, at, require_stable=True) == (
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        -1,
    )
    one.finish(commit=commit)
    expected = (NONE, 7 if commit else -1)
    assert committed_offset(wire, group, at, require_stable=True) == expected


def test_offset_of_before_is_told_meanwhile(
    wire: Speaker, enter_any: Enter, at: TopicPartition, group: str
) -> None:
    one = enter_any()
    for offset in (5, 9):
        until(lambda: one.add_offsets(group) is NONE)
        assert one.commit_offset(group, at, offset) is NONE
        if offset == 9:
            assert committed_offset(wire, group, at) == (NONE, 5)
        one.finish(commit=True)
    assert committed_offset(wire, group, at) == (NONE, 9)


def test_own_client_commits_for_one_group_and_another_in_turn(
    broker: BrokerProcess, wire: Speaker, at: TopicPartition
) -> None:
    groups = [fresh_name(), fresh_name()]
    with Producer(broker.bootstrap, transactional_id=fresh_name()) as producer:
        producer.init_transactions()
        for offset in range(1, 7):
            with producer.transaction():
                producer.send_offsets_to_transaction(
                    {at: offset}, GroupMetadata(groups[offset % 2])
                )
    until(
        lambda: (
            [committed_offset(wire, group, at, require_stable=True) for group in groups]
            == [(NONE, 6), (NONE, 5)]
        )
    )


def test_group_that_is_not_in_the_transaction_commits_nothing(
    wire: Speaker, enter: Enter, at: TopicPartition, group: str
) -> None:
    one = enter()
    one.send(at)
    assert one.commit_offset(group, at, 7) is ErrorCode.INVALID_TXN_STATE
    assert one.commit_offset(group, at, 7, version=4) is ErrorCode.TRANSACTION_ABORTABLE
    one.finish(commit=True)
    assert committed_offset(wire, group, at) == (NONE, -1)


def test_member_that_is_none_commits_nothing(
    enter_any: Enter, at: TopicPartition, group: str
) -> None:
    one = enter_any()
    assert one.add_offsets(group) is NONE
    assert one.commit_offset(group, at, 7, member=("m", 3)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert one.commit_offset(group, at, 7) is NONE
    assert one.commit_offset(group, at, 7, member=("m", 3)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_fenced_producer_commits_nothing(
    wire: Speaker, enter_any: Enter, at: TopicPartition, group: str
) -> None:
    old = enter_any()
    assert old.add_offsets(group) is NONE
    assert old.commit_offset(group, at, 7) is NONE
    enter_any(old.transactional_id)
    assert old.commit_offset(group, at, 8) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed_offset(wire, group, at, require_stable=True) == (NONE, -1)


def test_partition_that_there_is_not(enter_any: Enter, at: TopicPartition, group: str) -> None:
    one = enter_any()
    assert one.add_offsets(group) is NONE
    unknown = TopicPartition(at.topic, 99)
    assert one.commit_offset(group, unknown, 7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    no_topic = TopicPartition(fresh_name(), 0)
    for version in (5, 6):
        assert one.commit_offset(group, no_topic, 7, version=version) is (
            ErrorCode.UNKNOWN_TOPIC_ID if version >= 6 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
