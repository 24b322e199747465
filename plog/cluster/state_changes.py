"""The state a partition should have, as a write over the one it has.

Pure functions from the context to a `StateWrite`, one for each reason to change a
state. Any change of leader or assignment, and any in-sync set that the controller
shrinks, takes a new leader epoch. Never touches the context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plog.cluster.controller_context import ClusterContext, PartitionState
from plog.cluster.controller_events import ElectionType, ProposedIsr, StateWrite
from plog.cluster.elections import (
    Choice,
    elect_first,
    elect_in_sync,
    elect_preferred,
    elect_unclean,
)
from plog.cluster.znodes import NO_LEADER
from plog.errors import ErrorCode
from plog.types import NO_EPOCH, TopicPartition

RECOVERING = 1
"""Leader recovery state after an unclean election (KIP-704)."""


def needed_write(
    context: ClusterContext,
    partition: TopicPartition,
    unclean: Mapping[str, bool] | None,
    ask: set[str],
) -> StateWrite | None:
    """Return what brings a partition's state in line with the live replicas, if it is not.

    `unclean` says which topics allow unclean elections; a topic that it does not name
    and where it matters is added to `ask`, and nothing is written yet.
    """
    replicas, online = context.assignment(partition).replicas, context.online(partition)
    state = context.states.get(partition)
    if state is None:
        first = elect_first(replicas, online)
        return None if first is None else _create(context, partition, first)
    if not state.is_readable:
        return None
    if context.has_leader(partition):
        in_sync = tuple(one for one in state.isr if one in online)
        if in_sync == state.isr or not context.is_eligible(state.leader, partition):
            return None
        return _change(context, partition, Choice(state.leader, in_sync))
    choice = _elect_in_sync(context, partition, replicas, state.isr)
    if choice is None and online:
        if unclean is None or partition.topic not in unclean:
            ask.add(partition.topic)
            return None
        if unclean[partition.topic]:
            choice = elect_unclean(replicas, online)
    if choice is None:
        if state.leader == NO_LEADER:
            return None
        # The in-sync set stays whole: each of its members has all that was acknowledged.
        choice = Choice(NO_LEADER, state.isr)
    return _change(context, partition, choice)


def elect(
    context: ClusterContext, partition: TopicPartition, kind: ElectionType
) -> StateWrite | ErrorCode:
    """Return the write of an election that was asked for, or why there is none."""
    state, online = context.states.get(partition), context.online(partition)
    replicas = context.assignment(partition).replicas
    choice: Choice | None = None
    is_unreadable = state is not None and not state.is_readable
    if kind is ElectionType.UNCLEAN:
        if context.has_leader(partition):
            return ErrorCode.ELECTION_NOT_NEEDED
        if state is not None:
            choice = _elect_in_sync(context, partition, replicas, state.isr)
        choice = choice or elect_unclean(replicas, online)
        if choice is None or is_unreadable:
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    else:
        if state is not None and state.leader == replicas[0] and context.has_leader(partition):
            return ErrorCode.ELECTION_NOT_NEEDED
        if state is not None:
            choice = elect_preferred(replicas, state.isr, online)
        if choice is None:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    if state is None:
        return _create(context, partition, choice)
    return _change(context, partition, choice)


def move_off(
    context: ClusterContext, partition: TopicPartition, broker_id: int
) -> StateWrite | None:
    """Return what takes a broker that is about to stop out of leadership and the in-sync set."""
    state = context.states.get(partition)
    replicas = context.assignment(partition).replicas
    if state is None or not context.is_replicated(partition):
        return None  # nobody else could lead it: it stays until the broker is gone
    if state.leader == broker_id:
        choice = _elect_in_sync(context, partition, replicas, state.isr)
        return None if choice is None else _change(context, partition, choice)
    if broker_id in state.isr and context.is_eligible(state.leader, partition):
        staying = tuple(one for one in state.isr if one != broker_id)
        return _change(context, partition, Choice(state.leader, staying))
    return None


def change_replicas(
    context: ClusterContext, partition: TopicPartition, replicas: tuple[int, ...]
) -> StateWrite:
    """Return the state in which a partition has these replicas.

    Its leader stays, if it is one of them; at least one of those in sync is.
    """
    state = context.states[partition]
    isr = tuple(one for one in state.isr if one in replicas)
    if state.leader in replicas and context.has_leader(partition):
        return _change(context, partition, Choice(state.leader, isr))
    choice = _elect_in_sync(context, partition, replicas, isr) or Choice(NO_LEADER, isr)
    return _change(context, partition, choice)


def move_lead(
    context: ClusterContext, partition: TopicPartition, to: tuple[int, ...]
) -> StateWrite | None:
    """Return the state in which one of these leads that is in sync, if one can."""
    isr = context.states[partition].isr
    choice = elect_in_sync(to, isr, context.online(partition))
    return None if choice is None else _change(context, partition, Choice(choice.leader, isr))


def accept_isr(
    context: ClusterContext, partition: TopicPartition, broker_id: int, proposed: ProposedIsr
) -> StateWrite | ErrorCode:
    """Return the write of an in-sync set that a leader proposes, or why there is none.

    The checks are Kafka's, in its order. NONE: the set is as proposed already.
    """
    state = context.states.get(partition)
    if state is None or proposed.leader_epoch > state.leader_epoch:
        return ErrorCode.NOT_CONTROLLER  # a later controller has written what the leader knows
    if proposed.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if proposed.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if state.leader != broker_id:
        return ErrorCode.INVALID_REQUEST
    recovery = proposed.leader_recovery_state
    if proposed.isr == state.isr and recovery == state.leader_recovery_state:
        return ErrorCode.NONE
    if proposed.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    is_recovering = recovery == RECOVERING
    if is_recovering and (len(proposed.isr) > 1 or state.leader_recovery_state != RECOVERING):
        return ErrorCode.INVALID_REQUEST
    replicas = context.assignment(partition).replicas
    if broker_id not in proposed.isr or not set(proposed.isr) <= set(replicas):
        return ErrorCode.INVALID_REQUEST
    members = zip(proposed.isr, proposed.broker_epochs, strict=True)
    if not all(_is_eligible(context, partition, *member) for member in members):
        return ErrorCode.INELIGIBLE_REPLICA
    changed = state._replace(
        isr=proposed.isr,
        controller_epoch=context.epoch,
        partition_epoch=state.partition_epoch + 1,
        leader_recovery_state=recovery,
    )
    return StateWrite(partition, changed, state.partition_epoch)


def _is_eligible(
    context: ClusterContext, partition: TopicPartition, broker_id: int, broker_epoch: int
) -> bool:
    if not context.is_online(broker_id, partition):
        return False
    return broker_epoch in (NO_EPOCH, context.brokers[broker_id].epoch)


def still_led(context: ClusterContext, broker_id: int) -> list[TopicPartition]:
    """Return the partitions a broker leads although others have replicas of them."""
    return [
        partition
        for partition in context.partitions_on(broker_id)
        if (state := context.states.get(partition)) is not None
        and state.leader == broker_id
        and context.is_replicated(partition)
    ]


def _elect_in_sync(
    context: ClusterContext, partition: TopicPartition, replicas: Sequence[int], isr: Sequence[int]
) -> Choice | None:
    """Choose a leader among those in sync: first one that has said it can lead.

    Another one may refuse, as its log is gone. Then a member that is lost has all acknowledged
    records. So the set stays whole until the leader has taken the lead (`needed_write`).
    """
    online = context.online(partition)
    eligible = tuple(one for one in online if context.is_eligible(one, partition))
    first = elect_in_sync(replicas, isr, eligible)
    if first is not None:
        return Choice(first.leader, tuple(one for one in replicas if one in online and one in isr))
    choice = elect_in_sync(replicas, isr, online)
    return None if choice is None else Choice(choice.leader, tuple(isr))


def _create(context: ClusterContext, partition: TopicPartition, choice: Choice) -> StateWrite:
    state = PartitionState(
        choice.leader,
        0,
        choice.isr,
        context.epoch,
        0,
        leader_broker_epoch=context.broker_epoch(choice.leader),
    )
    return StateWrite(partition, state, None)


def _change(context: ClusterContext, partition: TopicPartition, choice: Choice) -> StateWrite:
    old = context.states[partition]
    state = PartitionState(
        choice.leader,
        old.leader_epoch + 1,
        choice.isr,
        context.epoch,
        old.partition_epoch + 1,
        old.leader_recovery_state,
        context.broker_epoch(choice.leader),
    )
    return StateWrite(partition, state, old.partition_epoch)
