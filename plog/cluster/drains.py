"""The leads that are about to move in order: their leaders drain first, so that nothing is lost.

Owns which leaders were asked, and which have answered. A leader that has drained takes no records:
it has given its followers all records that were acknowledged with acks=1. Pure; nothing of this is
stored, and leaders take records again by themselves if the controller is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from plog.cluster.announcements import leader_and_isr
from plog.cluster.controller_context import ClusterContext
from plog.cluster.controller_events import Effect
from plog.types import TopicPartition


class _Lead(NamedTuple):
    leader: int
    leader_epoch: int


class Drains:
    """The drains of one controller."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._asked: dict[TopicPartition, _Lead] = {}
        """The leads that have to drain, until their leaders have answered."""
        self._drained: dict[TopicPartition, int] = {}
        """The leader epochs whose leaders have answered."""

    def is_due(self, partition: TopicPartition) -> bool:
        """Return whether a partition's leader has to drain before another one leads."""
        state = self._context.states[partition]
        return (
            self._context.has_leader(partition)
            and len(state.isr) > 1
            and self._drained.get(partition) != state.leader_epoch
        )

    def ask(self, partitions: Iterable[TopicPartition]) -> list[Effect]:
        """Have the leaders of these drain; those that were asked will answer."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            if partition not in self._asked:
                state = self._context.states[partition]
                self._asked[partition] = _Lead(state.leader, state.leader_epoch)
                by_leader.setdefault(state.leader, []).append(partition)
        return [
            effect
            for leader, some in sorted(by_leader.items())
            for effect in leader_and_isr(self._context, leader, some, drains=True)
        ]

    def on_answered(self, broker_id: int, partitions: Iterable[TopicPartition]) -> None:
        """A leader has drained these, or gives up: another one may lead."""
        for partition in partitions:
            lead = self._asked.get(partition)
            if lead is not None and lead.leader == broker_id:
                del self._asked[partition]
                self._drained[partition] = lead.leader_epoch

    def on_brokers_lost(self, gone: Collection[int]) -> list[TopicPartition]:
        """Return the partitions whose drain ends because their leader is gone."""
        ended = [one for one, lead in self._asked.items() if lead.leader in gone]
        for partition in ended:
            del self._asked[partition]
        return ended

    def forget(self, topic: str) -> None:
        """A topic is gone, or another has its name."""
        for kept in (self._asked, self._drained):
            for partition in [one for one in kept if one.topic == topic]:
                del kept[partition]
