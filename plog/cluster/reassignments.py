"""The partitions that the controller moves to other brokers, and what it does for it (KIP-455).

Owns the steps of a move: which replicas a partition's next state names, and which are stopped after
it. A move begins with its topic's node, so that the next controller goes on with it; the node hears
of its end last. `reassignment` has the rules. A broker that is away sets its log aside when it is
back (`stray_logs`): no move waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from plog.cluster.controller_context import Assignment, ClusterContext
from plog.cluster.controller_events import (
    AssignmentsWritten,
    AssignmentWrite,
    Effect,
    ReassignmentsAsked,
    Reply,
    SendStopReplica,
    StateWrite,
    WriteAssignments,
    WriteStates,
)
from plog.cluster.drains import Drains
from plog.cluster.reassignment import begin, cancel, is_complete, is_moving, target
from plog.cluster.state_changes import change_replicas, move_lead
from plog.errors import ErrorCode
from plog.types import TopicPartition

Replicas = tuple[int, ...]


class _Step(NamedTuple):
    """The replicas that a state names, and whether a move ends with it."""

    replicas: Replicas
    ends: bool


class Reassignments:
    """The moves of one controller."""

    def __init__(self, context: ClusterContext, drains: Drains) -> None:
        self._context = context
        self._drains = drains
        self._asked: dict[int, dict[TopicPartition, ErrorCode]] = {}
        self._known: dict[TopicPartition, Replicas] = {}
        """The replicas that brokers know, of partitions that move or have been moving."""
        self._writing: dict[TopicPartition, _Step] = {}
        """The steps whose states are being written."""
        self._awaited: dict[TopicPartition, int] = {}
        """Leaders that have not said yet that they lead: until then no replica goes."""
        self._leaving: dict[TopicPartition, set[int]] = {}

    def moving(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those whose replicas come or go."""
        return [one for one in partitions if is_moving(self._context.assignment(one))]

    # -- questions ---------------------------------------------------------------------------

    def ask(self, event: ReassignmentsAsked, kept: Collection[TopicPartition]) -> list[Effect]:
        """Write the moves that are asked for and possible, or reply if there is none.

        Args:
            kept: those of the partitions that exist, and whose topics are not being deleted.
        """
        results: dict[TopicPartition, ErrorCode] = {}
        writes: list[AssignmentWrite] = []
        for partition, replicas in event.targets.items():
            decided = self._decide(partition, replicas, event, is_kept=partition in kept)
            if isinstance(decided, Assignment):
                expected = self._context.assignment(partition)
                writes.append(AssignmentWrite(partition, decided, expected))
            else:
                results[partition] = decided
        if not writes:
            return [Reply(event.token, results)]
        self._asked[event.token] = results
        return [WriteAssignments(tuple(writes), event.token)]

    def _decide(
        self,
        partition: TopicPartition,
        replicas: Replicas | None,
        event: ReassignmentsAsked,
        *,
        is_kept: bool,
    ) -> Assignment | ErrorCode:
        """The checks are Kafka's, in its order."""
        context = self._context
        if replicas is None:
            if not is_kept or not is_moving(context.assignment(partition)):
                return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
            known = context.assignment(partition)
            wanted = cancel(known)
        else:
            if not replicas or len(set(replicas)) < len(replicas):
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT
            if not context.brokers.keys() >= set(replicas):
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT
            if not is_kept:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            known = context.assignment(partition)
            if not event.may_change_factor and len(replicas) != len(target(known)):
                return ErrorCode.INVALID_REPLICATION_FACTOR
            wanted = begin(known, replicas)
        if wanted == known:
            return ErrorCode.NONE
        state = context.states.get(partition)
        if state is not None:
            staying = {*state.isr} & {*wanted.replicas}
            if context.has_leader(partition):
                # One that is lost, or may lack records, may still be in sync (`needed_write`).
                staying &= {
                    one
                    for one in context.online(partition)
                    if one == state.leader or context.is_eligible(one, partition)
                }
            if not staying:
                # All records are on replicas alone that would go.
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        return wanted

    # -- steps -------------------------------------------------------------------------------

    def on_assignments_written(self, event: AssignmentsWritten) -> list[Effect]:
        """Take over what the topics' nodes say now; answer who has asked."""
        for partition, assignment, _ in event.written:
            self._take_in(partition, assignment)
        for partition, assignment in event.found.items():
            self._take_in(partition, assignment)
        if event.token is None:
            return []
        results = self._asked.pop(event.token)
        for one in event.written:
            results[one.partition] = ErrorCode.NONE
        for partition in event.found:
            # Another has changed the topic's node meanwhile.
            results.setdefault(partition, ErrorCode.REASSIGNMENT_IN_PROGRESS)
        return [Reply(event.token, results)]

    def go_on(self, partitions: Iterable[TopicPartition]) -> list[Effect]:
        """Have brokers hear of moves and of their ends, and topics' nodes of ends alone.

        Each state takes a new leader epoch: a broker ignores an order in one that it knows.
        """
        states: list[StateWrite] = []
        draining: list[TopicPartition] = []
        ended: list[AssignmentWrite] = []
        for partition in partitions:
            state = self._context.states.get(partition)
            if partition in self._writing or state is None or not state.is_readable:
                continue
            assignment = self._context.assignment(partition)
            ends = is_complete(assignment, state.isr)
            if not is_moving(assignment) and partition not in self._known:
                continue
            replicas = target(assignment) if ends else assignment.replicas
            if ends and state.leader not in replicas:
                write = move_lead(self._context, partition, replicas)
                if write is not None and self._drains.is_due(partition):
                    draining.append(partition)
                elif write is not None:
                    self._writing[partition] = _Step(assignment.replicas, ends=False)
                    states.append(write)
            elif ends and partition in self._awaited:
                continue
            elif self._known.get(partition) != replicas:
                if state.leader not in replicas and self._drains.is_due(partition):
                    draining.append(partition)
                    continue
                self._writing[partition] = _Step(replicas, ends)
                states.append(change_replicas(self._context, partition, replicas))
            elif ends:
                ended.append(AssignmentWrite(partition, Assignment(replicas), assignment))
        effects = self._drains.ask(draining)
        if states:
            effects.append(WriteStates(tuple(states)))
        return [*effects, WriteAssignments(tuple(ended))] if ended else effects

    def on_states_written(
        self,
        written: Iterable[TopicPartition],
        again: Iterable[TopicPartition],
        has_new_epoch: Iterable[TopicPartition],
    ) -> list[Effect]:
        """Take the replicas over that written states name, before they are announced.

        Args:
            again: those whose write lost.
            has_new_epoch: those whose leaders have an order to take up.

        Returns:
            what topics' nodes are to say of moves that have ended.
        """
        for partition in again:
            self._writing.pop(partition, None)
        ended = []
        for partition in written:
            step = self._writing.pop(partition, None)
            if step is None:
                continue
            self._known[partition] = step.replicas
            if step.ends:
                before = self._context.assignment(partition)
                ended.append(AssignmentWrite(partition, Assignment(step.replicas), before))
                self._take_in(partition, Assignment(step.replicas))
        for partition in self.moving(has_new_epoch):
            self._awaited[partition] = self._context.states[partition].leader
        return [WriteAssignments(tuple(ended))] if ended else []

    def on_failover(self) -> None:
        """Let no replica go until the leaders of now have said that they lead."""
        for partition in self.moving(self._context.partitions()):
            state = self._context.states.get(partition)
            if state is not None and is_complete(self._context.assignment(partition), state.isr):
                self._awaited[partition] = state.leader

    def on_taken_up(self, broker_id: int, partitions: Iterable[TopicPartition]) -> list[Effect]:
        """A broker leads and follows as ordered; go on with moves that wait for that."""
        released = [one for one in partitions if self._awaited.get(one) == broker_id]
        for partition in released:
            del self._awaited[partition]
        return self.go_on(one for one in released if self._context.knows(one))

    def stops(self, written: Iterable[TopicPartition]) -> list[Effect]:
        """Have those replicas deleted that are none any more. After their state is announced."""
        by_broker: dict[int, list[TopicPartition]] = {}
        for partition in written:
            for broker_id in sorted(self._leaving.pop(partition, ())):
                if broker_id in self._context.brokers:
                    by_broker.setdefault(broker_id, []).append(partition)
        states = self._context.states
        return [
            SendStopReplica(
                broker_id,
                tuple(partitions),
                tuple(states[one].leader_epoch for one in partitions),
                delete=True,
            )
            for broker_id, partitions in sorted(by_broker.items())
        ]

    def forget(self, topic: str) -> None:
        """A topic is gone, or another has its name."""
        for kept in (self._known, self._writing, self._awaited, self._leaving):
            for partition in [one for one in kept if one.topic == topic]:
                del kept[partition]

    def _take_in(self, partition: TopicPartition, assignment: Assignment) -> None:
        if not self._context.knows(partition):
            return
        partitions = self._context.topics[partition.topic].partitions
        before, partitions[partition.partition] = partitions[partition.partition], assignment
        gone = {*before.replicas} - {*assignment.replicas}
        if gone:
            self._leaving.setdefault(partition, set()).update(gone)
