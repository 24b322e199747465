"""The elections that a controller counts, and the partitions that it moves."""

from __future__ import annotations

import uuid

import pytest

from plog.cluster.controller_context import Assignment, PartitionState, Topic
from plog.cluster.controller_events import StateWrite
from plog.cluster.election_counts import ElectionCounts
from plog.cluster.leadership import Leadership
from plog.cluster.reassignment import count_moving
from plog.cluster.znodes import NO_LEADER
from plog.types import TopicPartition

AT = TopicPartition("t", 0)


def state(leader: int, isr: tuple[int, ...]) -> PartitionState:
    return PartitionState(leader, 3, isr, 1, 7)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, state(1, (1, 2)), (0, 0)),
        (state(1, (1, 2)), state(2, (2,)), (1, 0)),
        (state(1, (1, 2)), state(1, (1,)), (0, 0)),
        (state(1, (1,)), state(NO_LEADER, (1,)), (0, 0)),
        (state(NO_LEADER, (1,)), state(1, (1,)), (1, 0)),
        (state(NO_LEADER, (1,)), state(2, (2,)), (1, 1)),
    ],
)
def test_elections(
    before: PartitionState | None, after: PartitionState, expected: tuple[int, int]
) -> None:
    counts = ElectionCounts()
    counts.add([StateWrite(AT, after, 7)], {} if before is None else {AT: before})
    assert (counts.elections, counts.unclean) == expected


def test_partitions_that_move() -> None:
    parts = {
        0: Assignment((1, 2)),
        1: Assignment((1, 2), adding=(2,)),
        2: Assignment((1, 2), removing=(1,)),
    }
    topics = {"t": Topic(uuid.UUID(int=1), parts), "u": Topic(uuid.UUID(int=2), {0: parts[1]})}
    assert count_moving(topics) == 3


@pytest.mark.parametrize(
    ("isr", "replicas", "adding", "expected"),
    [
        ((1, 2), (1, 2), (), False),
        ((1,), (1, 2), (), True),
        ((1, 2), (1, 2, 3), (3,), False),
        ((1, 3), (1, 2, 3), (3,), True),
    ],
)
def test_replica_that_is_being_added_need_not_be_in_sync(
    isr: tuple[int, ...], replicas: tuple[int, ...], adding: tuple[int, ...], expected: bool
) -> None:
    assert Leadership(1, 1, isr, replicas, 1, 1, adding).is_under_replicated == expected
