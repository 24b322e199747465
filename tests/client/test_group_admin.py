"""Consumer groups as administrators see them: real groups, and coordinators that move."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection
from contextlib import closing
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plog.client import fetcher, group_lag
from plog.client.admin import Admin
from plog.client.connection import Connection
from plog.client.fetcher import Ask, Limits
from plog.client.group_admin import GroupAdmin
from plog.client.group_descriptions import decode_assignment
from plog.client.group_lag import PartitionLag
from plog.client.producer import Producer
from plog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    GroupIdNotFound,
    KafkaError,
    NonEmptyGroup,
    UnknownTopicOrPartition,
)
from plog.protocol import codec
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, TopicPartitions
from plog.protocol.messages.group_admin import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ListedGroup,
    ListGroupsResponse,
)
from plog.protocol.messages.groups import FindCoordinatorResponse
from plog.types import NO_OFFSET, TopicPartition
from tests.client.fake_broker import FakeBroker
from tests.coordinator.members import ByHand
from tests.group_members import member
from tests.servers import BrokerProcess
from tests.waiting import until

NOW_MS = 1_700_000_000_000
_numbers = itertools.count()


@pytest.fixture
def group() -> str:
    return f"group{next(_numbers)}"


@pytest.fixture
def groups(bootstrap: str):
    with GroupAdmin(bootstrap) as admin:
        yield admin


def produce(bootstrap: str, topic: str, *ages_ms: int, partition: int = 0) -> None:
    """Write a record for each age, in a batch of its own."""
    with Producer(bootstrap) as producer:
        for age_ms in ages_ms:
            producer.send(topic, b"v", partition=partition, timestamp_ms=NOW_MS - age_ms)
            producer.flush()


# -- groups ----------------------------------------------------------------------------------------


def test_group_nobody_has_heard_of_is_said_so(groups: GroupAdmin, group: str) -> None:
    assert groups.committed(group) == {}
    for ask in (groups.describe, groups.delete, lambda name: groups.delete_offsets(name, [])):
        with pytest.raises(GroupIdNotFound, match=f"{group!r}: it does not exist"):
            ask(group)


def test_members_are_described_with_their_partitions(
    groups: GroupAdmin, broker: BrokerProcess, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    with member(broker.bootstrap, group, topic):
        described = groups.describe(group)
        assert (described.state, described.protocol_type) == ("Stable", "consumer")
        assert described.assignor == "range"
        assert described.coordinator.node_id in broker.ids
        (one,) = described.members
        assert one.member_id.startswith("reader-")
        assert (one.client_id, one.host, one.instance_id) == ("reader", "127.0.0.1", None)
        assert one.assigned == (TopicPartition(topic, 0), TopicPartition(topic, 1))
        assert group in {one.group_id for one in groups.groups(["stable"])}
        assert group not in {one.group_id for one in groups.groups(["Empty"])}
    assert groups.describe(group).members == []
    (listed,) = [one for one in groups.groups(["Empty"]) if one.group_id == group]
    assert listed == (group, "Empty", "consumer", "classic")


def test_assignment_of_another_form_is_not_told(
    groups: GroupAdmin, broker: BrokerProcess, group: str
) -> None:
    groups.committed(group)  # waits for the coordinator
    by_hand = ByHand(broker.port, group)
    with closing(by_hand):
        by_hand.enter()
        (one,) = groups.describe(group).members
        assert (one.member_id, one.assigned) == (by_hand.member_id, None)
        by_hand.leave()
    assert groups.describe(group).members == []


def test_group_with_members_is_left_alone(
    groups: GroupAdmin, bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(1)
    at = TopicPartition(topic, 0)
    produce(bootstrap, topic, 0, 0)
    with member(bootstrap, group, topic, {0: 2}):
        with pytest.raises(NonEmptyGroup, match="stop its consumers first"):
            groups.delete(group)
        with pytest.raises(NonEmptyGroup, match="stop its consumers first"):
            groups.commit(group, {at: 0})
        with pytest.raises(KafkaError, match="its members consume the topic"):
            groups.delete_offsets(group, [at])
        assert groups.committed(group) == {at: 2}
    groups.delete_offsets(group, [at])
    assert groups.committed(group) == {}
    # With nobody in it and nothing committed, nothing is left of it.
    with pytest.raises(GroupIdNotFound):
        groups.describe(group)


def test_offsets_are_committed_for_a_group_without_members(
    groups: GroupAdmin, new_topic: Callable[..., str], group: str
) -> None:
    one, other = new_topic(2), new_topic(1)
    offsets = {TopicPartition(other, 0): 7, TopicPartition(one, 1): 3}
    groups.commit(group, offsets)
    assert groups.committed(group) == offsets
    assert groups.describe(group).state == "Empty"
    with pytest.raises(UnknownTopicOrPartition, match="nowhere-0"):
        groups.commit(group, {TopicPartition("nowhere", 0): 3})


# -- lag -------------------------------------------------------------------------------------------


def test_lag_is_told_in_records_and_in_time(
    groups: GroupAdmin, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    at = TopicPartition(topic, 0)
    produce(bootstrap, topic, 5_000, 3_000, 1_000)

    def lag(offset: int | None, partition: TopicPartition = at) -> PartitionLag:
        return groups.lags({partition: offset}, NOW_MS)[partition]

    assert lag(0) == (3, 3, 5_000)
    assert lag(1) == (3, 2, 3_000)
    assert lag(2) == (3, 1, 1_000)
    assert lag(3) == (3, 0, 0)
    assert lag(5) == (3, -2, None)
    assert lag(None) == (3, None, None)
    assert lag(0, TopicPartition(topic, 1)) == (0, 0, 0)
    assert lag(0, TopicPartition(topic, 7)) == (None, None, None)
    assert lag(0, TopicPartition("nowhere", 0)) == (None, None, None)
    assert groups.lags({}, NOW_MS) == {}


def test_partitions_of_a_leader_are_asked_about_together(
    groups: GroupAdmin,
    bootstrap: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for batches that leave no room for others: of these every answer has one."""
    topic = new_topic(20)
    large = {3, 7}
    with Producer(bootstrap) as producer:
        for number in range(20):
            value = b"v" * (100_000 if number in large else 1)
            producer.send(topic, value, partition=number, timestamp_ms=NOW_MS - number)
    asked: list[int] = []

    def send_fetch(connection: Connection, asks: Collection[Ask], limits: Limits) -> None:
        asked.append(len(asks))
        fetcher.send_fetch(connection, asks, limits)

    monkeypatch.setattr(
        group_lag, "fetcher", SimpleNamespace(**{**vars(fetcher), "send_fetch": send_fetch})
    )
    lags = groups.lags({TopicPartition(topic, number): 0 for number in range(20)}, NOW_MS)
    assert [lag.age_ms for lag in lags.values()] == list(range(20))
    assert asked[0] == 20
    assert len(asked) <= 1 + len(large)


@pytest.mark.parametrize("partition_max_bytes", [1, group_lag.FIRST_BATCHES.partition_max_bytes])
def test_what_is_no_record_is_passed_over(
    groups: GroupAdmin,
    bootstrap: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    partition_max_bytes: int,
) -> None:
    topic = new_topic(1)
    at = TopicPartition(topic, 0)
    with Producer(bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for age_ms in (2_000, 1_000):
            producer.begin_transaction()
            producer.send(topic, b"v", partition=0, timestamp_ms=NOW_MS - age_ms)
            producer.commit_transaction()  # the offsets 1 and 3
    limits = group_lag.FIRST_BATCHES._replace(partition_max_bytes=partition_max_bytes)
    monkeypatch.setattr(group_lag, "FIRST_BATCHES", limits)
    until(lambda: groups.lags({at: 0}, NOW_MS)[at].log_end == 4, "the last marker written")
    found = [groups.lags({at: offset}, NOW_MS)[at] for offset in range(5)]
    assert found == [(4, 4, 2_000), (4, 3, 1_000), (4, 2, 1_000), (4, 1, None), (4, 0, 0)]


def test_record_within_a_batch_tells_its_own_time(
    groups: GroupAdmin, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    at = TopicPartition(topic, 0)
    with Producer(bootstrap, linger_ms=1000, compression_type="zstd") as producer:
        for age_ms in (400, 300, 200):
            producer.send(topic, b"v", partition=0, timestamp_ms=NOW_MS - age_ms)
    ages = [groups.lags({at: offset}, NOW_MS)[at].age_ms for offset in range(4)]
    assert ages == [400, 300, 200, 0]


def test_time_of_a_record_that_is_gone_or_of_the_future_is_not_made_up(
    groups: GroupAdmin, admin: Admin, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    at = TopicPartition(topic, 0)
    produce(bootstrap, topic, 5_000, 3_000, -60_000)
    admin.delete_records({at: 2})
    assert groups.lags({at: 0}, NOW_MS)[at] == (3, 3, None)
    assert groups.lags({at: 2}, NOW_MS)[at] == (3, 1, 0)


def test_offsets_by_bounds_and_by_time(
    groups: GroupAdmin, admin: Admin, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    at = TopicPartition(topic, 0)
    produce(bootstrap, topic, 5_000, 3_000, 1_000)
    admin.delete_records({at: 1})
    assert groups.bounds([at]) == {at: (1, 3)}
    assert groups.offsets_at([at], NOW_MS - 2_000) == {at: 2}
    assert groups.offsets_at([at], NOW_MS) == {at: NO_OFFSET}


# -- assignments -----------------------------------------------------------------------------------

ASSIGNMENT = ConsumerProtocolAssignment(
    assigned_partitions=[
        TopicPartitions(topic="b", partitions=[2, 0]),
        TopicPartitions(topic="a", partitions=[1]),
    ],
    user_data=b"u",
)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_assignment_is_read_in_every_version(version: int) -> None:
    data = version.to_bytes(2, "big") + codec.encode(ASSIGNMENT, min(version, 3))
    expected = (TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("b", 2))
    assert decode_assignment(data) == expected
    assert decode_assignment(data + b"tail") == expected
    for cut in range(1, len(data)):
        assert decode_assignment(data[:cut]) is None


@given(st.binary())
def test_assignment_of_another_form_is_no_error(data: bytes) -> None:
    found = decode_assignment(data)
    assert found is None or all(isinstance(at, TopicPartition) for at in found)


# -- coordinators ----------------------------------------------------------------------------------


def coordinator(error: ErrorCode = ErrorCode.NONE) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(error_code=error, node_id=1, host="ignored", port=1)


def test_coordinator_that_is_chosen_and_moves_and_loads_is_waited_for() -> None:
    found = iter([ErrorCode.COORDINATOR_NOT_AVAILABLE, *[ErrorCode.NONE] * 9])
    deleted = iter(
        [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE]
    )
    listed = iter([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE])
    with FakeBroker() as fake, GroupAdmin(fake.bootstrap) as groups:
        fake.answers[ApiKey.FIND_COORDINATOR] = lambda *_: coordinator(next(found))
        fake.answers[ApiKey.DELETE_GROUPS] = lambda *_: DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id="g", error_code=next(deleted))]
        )
        fake.answers[ApiKey.LIST_GROUPS] = lambda *_: ListGroupsResponse(
            error_code=next(listed),
            groups=[
                ListedGroup(
                    group_id="g", protocol_type="p", group_state="Empty", group_type="classic"
                )
            ],
        )
        groups.delete("g")
        assert fake.count(DeleteGroupsRequest) == 3
        assert groups.groups() == [("g", "Empty", "p", "classic")]


def test_coordinator_that_does_not_come_is_given_up() -> None:
    with FakeBroker() as fake, GroupAdmin(fake.bootstrap, request_timeout_ms=500) as groups:
        fake.answers[ApiKey.FIND_COORDINATOR] = lambda *_: coordinator(
            ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        begun = time.monotonic()
        with pytest.raises(CoordinatorNotAvailable, match="'g': no broker coordinates it"):
            groups.describe("g")
        assert time.monotonic() - begun >= 0.5
