"""What the controller tells brokers: which partitions, to whom, with which leaders beside them.

Pure functions from the context to the Send effects of the controller's vocabulary.
Never decides what a partition's state should be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from plog.cluster.controller_context import ClusterContext, LiveBroker, PartitionState
from plog.cluster.controller_events import (
    Effect,
    PartitionUpdate,
    SendLeaderAndIsr,
    SendUpdateMetadata,
)
from plog.cluster.znodes import LEADER_DURING_DELETE
from plog.types import NO_EPOCH, TopicPartition


def updates_of(
    context: ClusterContext,
    partitions: Iterable[TopicPartition],
    new: Collection[TopicPartition] = (),
) -> tuple[PartitionUpdate, ...]:
    """Return the updates of partitions; those without a state are left out."""
    return tuple(
        _update(context, partition, context.states[partition], is_new=partition in new)
        for partition in partitions
        if partition in context.states
    )


def complete_updates(
    context: ClusterContext, partitions: Iterable[TopicPartition]
) -> tuple[PartitionUpdate, ...]:
    """Return the updates of partitions; those without a state have no leader."""
    nothing = PartitionState.unreadable(NO_EPOCH)
    return tuple(_update(context, one, context.states.get(one, nothing)) for one in partitions)


def _update(
    context: ClusterContext,
    partition: TopicPartition,
    state: PartitionState,
    *,
    is_new: bool = False,
) -> PartitionUpdate:
    return PartitionUpdate(
        partition,
        context.topics[partition.topic].topic_id,
        state,
        context.assignment(partition),
        context.offline(partition),
        is_new,
    )


def updates_as_deleted(context: ClusterContext, topic: str) -> tuple[PartitionUpdate, ...]:
    """Return what makes brokers forget a topic: its partitions, led by nobody ever again."""
    nobody = PartitionState(LEADER_DURING_DELETE, 0, (), context.epoch, 0)
    return tuple(
        PartitionUpdate(
            partition,
            context.topics[topic].topic_id,
            context.states.get(partition, nobody)._replace(leader=LEADER_DURING_DELETE),
            context.assignment(partition),
        )
        for partition in context.partitions_of(topic)
    )


def update_metadata(
    context: ClusterContext,
    broker_ids: Iterable[int],
    updates: tuple[PartitionUpdate, ...],
) -> list[Effect]:
    """Tell brokers who is live, and about partitions if there are any to tell of."""
    to = tuple(sorted(broker_ids))
    return [SendUpdateMetadata(to, updates, _live(context))] if to else []


def full_update(
    context: ClusterContext,
    broker_ids: Iterable[int],
    partitions: Iterable[TopicPartition],
    deleted: Collection[str] = (),
) -> list[Effect]:
    """Tell brokers all these partitions, and the names of all other topics that exist.

    Topics and partitions that it leaves out are deleted ones: so it has those without a state, too.

    Args:
        deleted: topics whose deletion other brokers have heard of. These hear of it by this.
    """
    named = tuple(partitions)
    updates = complete_updates(context, named)
    untold = context.topic_names() - {one.topic for one in named} - {*deleted}
    to, live = tuple(sorted(broker_ids)), _live(context)
    return [SendUpdateMetadata(to, updates, live, True, tuple(sorted(untold)))] if to else []


def _live(context: ClusterContext) -> tuple[LiveBroker, ...]:
    return tuple(context.brokers[one] for one in sorted(context.brokers))


def leader_and_isr(
    context: ClusterContext,
    broker_id: int,
    partitions: Iterable[TopicPartition],
    new: Collection[TopicPartition] = (),
    *,
    drains: bool = False,
) -> list[Effect]:
    """Tell a broker what it leads and follows, if it does; or what it is to drain.

    Of partitions that it led before it registered again, it hears in their next leader epoch.
    """
    updates = tuple(
        one
        for one in updates_of(context, partitions, new)
        if one.state.is_readable
        and not (one.state.leader == broker_id and context.leader_has_returned(one.partition))
    )
    if not updates:
        return []
    leaders = {one.state.leader for one in updates} & context.brokers.keys()
    live = tuple(context.brokers[one] for one in sorted(leaders))
    return [SendLeaderAndIsr(broker_id, updates, live, drains)]
