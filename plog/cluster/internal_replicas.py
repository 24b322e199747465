"""Which replicas the brokers' own topics lack: pure.

A lone broker makes these topics with one replica each, as does a cluster with too few brokers whose
settings allow it. Once enough brokers live, the controller has them moved (KIP-455) to as many as
the settings ask for. It takes no replica away: an administrator may want more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from plog.cluster.controller_context import Assignment, ClusterContext
from plog.cluster.controller_events import AssignmentWrite
from plog.cluster.reassignment import begin, is_moving
from plog.types import TopicPartition

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"


def missing_replicas(
    context: ClusterContext, factors: Mapping[str, int], kept: Iterable[TopicPartition]
) -> list[AssignmentWrite]:
    """Return the moves by which partitions get as many replicas as their topics ask for.

    A topic waits as long as fewer brokers live. So does a partition that moves already, or that
    could not move now: one of its replicas is offline, or its state is unreadable.

    Args:
        factors: replicas by topic.
        kept: the partitions of these topics that are not being deleted.
    """
    alive = [one for one in sorted(context.brokers) if one not in context.shutting_down]
    hosted: dict[str, Counter[int]] = {name: Counter() for name in factors}
    preferred: dict[str, Counter[int]] = {name: Counter() for name in factors}
    lacking: list[TopicPartition] = []
    for partition in kept:
        replicas = context.assignment(partition).replicas
        hosted[partition.topic].update(replicas)
        if len(replicas) < factors[partition.topic] and _can_move(context, partition):
            lacking.append(partition)
        else:
            preferred[partition.topic][replicas[0]] += 1
    writes = []
    for partition in lacking:
        factor, assignment = factors[partition.topic], context.assignment(partition)
        if factor > len(alive):
            continue
        replicas = _grown(context, assignment, factor, alive, hosted[partition.topic])
        first = min(replicas, key=lambda one: (preferred[partition.topic][one], one))
        preferred[partition.topic][first] += 1
        in_turn = (first, *(one for one in replicas if one != first))
        writes.append(AssignmentWrite(partition, begin(assignment, in_turn), assignment))
    return writes


def _can_move(context: ClusterContext, partition: TopicPartition) -> bool:
    state = context.states.get(partition)
    return (
        state is not None
        and state.is_readable
        and not is_moving(context.assignment(partition))
        and not context.offline(partition)
    )


def _grown(
    context: ClusterContext,
    assignment: Assignment,
    factor: int,
    alive: Iterable[int],
    hosted: Counter[int],
) -> tuple[int, ...]:
    """Add replicas, in the racks that have fewest of the partition, on the emptiest brokers."""
    replicas = list(assignment.replicas)
    left = [one for one in alive if one not in replicas]
    while len(replicas) < factor and left:
        racks = Counter(context.brokers[one].rack for one in replicas)
        chosen = min(left, key=lambda one: (racks[context.brokers[one].rack], hosted[one], one))
        left.remove(chosen)
        replicas.append(chosen)
        hosted[chosen] += 1
    return tuple(replicas)
