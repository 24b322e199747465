"""Questions to the controller that want an answer for each partition: the machine's other half.

Owns the questions whose writes are under way, and what each partition is answered. A write that
lost against another writer is decided again with what that one wrote. Pure; `state_changes` has
the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from plog.cluster.controller_context import ClusterContext
from plog.cluster.controller_events import (
    DrainsEnded,
    Effect,
    ElectionsAsked,
    Feed,
    IsrsProposed,
    Outcome,
    Reply,
    ShutdownAsked,
    StateWrite,
    WriteStates,
)
from plog.cluster.drains import Drains
from plog.cluster.state_changes import accept_isr, elect, move_off, still_led
from plog.errors import ErrorCode
from plog.types import TopicPartition

Question: TypeAlias = ElectionsAsked | ShutdownAsked | IsrsProposed


@dataclass(slots=True)
class _Pending:
    """A question, while some of its writes are under way."""

    question: Question
    results: dict[TopicPartition, ErrorCode] = field(default_factory=dict)
    draining: set[TopicPartition] = field(default_factory=set)
    """Those whose leaders have to give their followers everything first."""


class Questions:
    """The questions of one controller.

    Args:
        is_kept: returns whether a partition exists and its topic is not being deleted.
    """

    def __init__(
        self, context: ClusterContext, drains: Drains, is_kept: Callable[[TopicPartition], bool]
    ) -> None:
        self._context = context
        self._drains = drains
        self._is_kept = is_kept
        self._pending: dict[int, _Pending] = {}
        self._draining: list[_Pending] = []

    def ask(self, question: Question, partitions: Iterable[TopicPartition]) -> list[Effect]:
        """Write what the question needs, or reply if that is nothing."""
        return self._go_on(_Pending(question), partitions)

    def on_written(
        self, token: int, written: Iterable[TopicPartition], again: Iterable[TopicPartition]
    ) -> list[Effect] | None:
        """Go on with a question after a write; None: it is no question's.

        Args:
            again: those whose write lost, with the other writer's state in the context.
        """
        pending = self._pending.get(token)
        if pending is None:
            return None
        pending.results |= dict.fromkeys(written, ErrorCode.NONE)
        return self._go_on(pending, again)

    def on_drained(self, event: DrainsEnded) -> list[Effect]:
        """Go on with an election that waits for these; the next one decides by what it writes."""
        for pending in self._draining:
            question, some = pending.question, pending.draining & {*event.partitions}
            # One may wait for another leader now: each goes on once.
            if some and not any(one is question for one in event.went_on):
                pending.draining -= some
                if not pending.draining:
                    self._draining.remove(pending)
                effects = self._go_on(pending, sorted(some))
                return [*effects, Feed(replace(event, went_on=(*event.went_on, question)))]
        return []

    def _go_on(self, pending: _Pending, partitions: Iterable[TopicPartition]) -> list[Effect]:
        token = pending.question.token
        writes: list[StateWrite] = []
        draining: list[TopicPartition] = []
        for partition in partitions:
            decided = self._decide(pending.question, partition)
            if isinstance(decided, StateWrite):
                # Stands if another writer gets in between and then nothing is left to do.
                pending.results[partition] = ErrorCode.INVALID_UPDATE_VERSION
                if self._is_to_drain(pending.question, partition):
                    draining.append(partition)
                else:
                    writes.append(decided)
            elif decided is not None:
                pending.results[partition] = decided
        effects: list[Effect] = []
        if draining:
            if not pending.draining:
                self._draining.append(pending)
            pending.draining.update(draining)
            effects += self._drains.ask(draining)
        if writes:
            if token is not None:
                self._pending[token] = pending
            return [*effects, WriteStates(tuple(writes), token)]
        if token is None or pending.draining:
            return effects
        self._pending.pop(token, None)
        return [*effects, Reply(token, self._results(pending))]

    def _is_to_drain(self, question: Question, partition: TopicPartition) -> bool:
        return isinstance(question, ElectionsAsked) and self._drains.is_due(partition)

    def _decide(
        self, question: Question, partition: TopicPartition
    ) -> StateWrite | ErrorCode | None:
        is_kept = self._is_kept(partition)
        match question:
            case ShutdownAsked(broker_id):
                return move_off(self._context, partition, broker_id) if is_kept else None
            case _ if not is_kept:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            case IsrsProposed(broker_id):
                return accept_isr(self._context, partition, broker_id, question.isrs[partition])
            case ElectionsAsked(election_type):
                return elect(self._context, partition, election_type)

    def _results(self, pending: _Pending) -> dict[TopicPartition, Outcome]:
        match pending.question:
            case ShutdownAsked(broker_id):
                return dict.fromkeys(still_led(self._context, broker_id), ErrorCode.NONE)
            case IsrsProposed():
                states = self._context.states
                return {
                    partition: states[partition] if code is ErrorCode.NONE else code
                    for partition, code in pending.results.items()
                }
        return dict(pending.results)
