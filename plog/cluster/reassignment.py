"""A partition's replicas on their way to other brokers (KIP-455): pure.

While it moves, an assignment names all replicas, old and new. The new ones copy and join the
in-sync set. Once all that are to stay are in sync, the others go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from plog.cluster.controller_context import Assignment, Topic


def is_moving(assignment: Assignment) -> bool:
    """Return whether replicas come or go."""
    return bool(assignment.adding or assignment.removing)


def original(assignment: Assignment) -> tuple[int, ...]:
    """Return the replicas without those that the move adds."""
    return tuple(one for one in assignment.replicas if one not in assignment.adding)


def target(assignment: Assignment) -> tuple[int, ...]:
    """Return the replicas that are to stay."""
    return tuple(one for one in assignment.replicas if one not in assignment.removing)


def begin(assignment: Assignment, replicas: Sequence[int]) -> Assignment:
    """Return the assignment by which these replicas come, in this order.

    A move that is under way ends: it is as if it had not begun.
    """
    before = original(assignment)
    everyone = tuple(dict.fromkeys([*replicas, *before]))
    return Assignment(
        everyone,
        tuple(one for one in everyone if one not in before),
        tuple(one for one in everyone if one not in replicas),
    )


def cancel(assignment: Assignment) -> Assignment:
    """Return the assignment without the move that is under way."""
    return Assignment(original(assignment))


def is_complete(assignment: Assignment, isr: Collection[int]) -> bool:
    """Return whether all replicas that are to stay are in sync."""
    return is_moving(assignment) and set(target(assignment)) <= set(isr)


def count_moving(topics: Mapping[str, Topic]) -> int:
    """Return how many partitions move. Any thread: it copies the tables, and their values stay."""
    return sum(
        is_moving(assignment)
        for topic in list(topics.values())
        for assignment in list(topic.partitions.values())
    )
