"""Questions to the controller that wait for drains."""

from __future__ import annotations

from typing import Any

import pytest

from plog.cluster import controller_questions
from plog.cluster.controller_context import ClusterContext, PartitionState
from plog.cluster.controller_events import (
    DrainsEnded,
    ElectionsAsked,
    ElectionType,
    Feed,
    StateWrite,
)
from plog.cluster.controller_questions import Questions
from plog.types import TopicPartition

AT = TopicPartition("t", 0)
ELECTED = StateWrite(AT, PartitionState(0, 6, (0, 1), 1, 9), 8)


class EndlessDrains:
    """Each leader that has drained is followed by another one, which has to."""

    def __init__(self) -> None:
        self.asked = 0

    def is_due(self, partition: TopicPartition) -> bool:
        return True

    def ask(self, partitions: list[TopicPartition]) -> list[Any]:
        self.asked += len(partitions)
        return []


def test_elections_that_wait_for_another_leader_are_asked_once_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_questions, "elect", lambda *_: ELECTED)
    drains: Any = EndlessDrains()
    questions = Questions(ClusterContext(0, 1), drains, lambda partition: True)
    for token in (1, 2):
        questions.ask(ElectionsAsked(ElectionType.PREFERRED, (AT,), token), [AT])
    for turn in (1, 2):
        events = [DrainsEnded((AT,))]
        for event in events:
            events += [one.event for one in questions.on_drained(event) if isinstance(one, Feed)]
            assert len(events) <= 3, "it goes on without end"
        assert drains.asked == 2 + 2 * turn
