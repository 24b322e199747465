"""Reassignments of partitions on a lone broker: nothing moves, and nothing ever has to."""

from __future__ import annotations

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.handlers.wire import Speaker, create_topic


def reassign(
    connection: Speaker,
    topic: str,
    *moves: tuple[int, list[int] | None],
    version: int = 0,
    may_resize: bool = True,
) -> list[int]:
    partitions = [
        ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in moves
    ]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=partitions)],
        allow_replication_factor_change=may_resize,
    )
    answer = connection.ask(request, version)
    assert answer.allow_replication_factor_change == may_resize
    assert (answer.error_code, answer.error_message) == (0, "" if version == 0 else None)
    (result,) = answer.responses
    assert result.name == topic
    assert [one.partition_index for one in result.partitions] == [index for index, _ in moves]
    assert all(bool(one.error_message) == bool(one.error_code) for one in result.partitions)
    return [one.error_code for one in result.partitions]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([0], ErrorCode.NONE),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ([1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([0, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([0, 0], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_partitions_stay_where_they_are(
    wire: Speaker, topic: str, replicas: list[int] | None, expected: ErrorCode
) -> None:
    assert reassign(wire, topic, (0, replicas)) == [expected]


@pytest.mark.parametrize("may_resize", [True, False])
def test_no_replica_is_added_whether_that_is_allowed_or_not(
    wire: Speaker, topic: str, may_resize: bool
) -> None:
    for replicas, expected in {
        (0,): ErrorCode.NONE,
        (0, 1): ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    }.items():
        moved = reassign(wire, topic, (0, list(replicas)), version=1, may_resize=may_resize)
        assert moved == [expected]


def test_each_partition_has_its_answer(wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=2)
    assert reassign(wire, topic, (1, [0]), (0, [7]), (2, [0])) == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert reassign(wire, "nowhere", (0, [0])) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_replicas_are_checked_before_the_partition(wire: Speaker) -> None:
    assert reassign(wire, "nowhere", (0, [7])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


def test_nothing_is_moving(wire: Speaker, topic: str) -> None:
    asked = ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0])
    for topics in (None, [], [asked]):
        answer = wire.ask(ListPartitionReassignmentsRequest(topics=topics), 0)
        assert (answer.error_code, answer.topics) == (0, [])
