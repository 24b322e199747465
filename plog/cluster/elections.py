"""Who leads a partition: the rules, one function per occasion.

Pure choices over replica lists. Knows no epochs, no store and no requests; the
controller's machine turns a choice into a state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Choice(NamedTuple):
    """A leader and the in-sync set it starts with, in assignment order."""

    leader: int
    isr: tuple[int, ...]


def elect_first(replicas: Sequence[int], online: Collection[int]) -> Choice | None:
    """Choose for a new partition: the first online replica leads, all online ones are in sync."""
    live = tuple(replica for replica in replicas if replica in online)
    return Choice(live[0], live) if live else None


def elect_in_sync(
    replicas: Sequence[int], isr: Collection[int], online: Collection[int]
) -> Choice | None:
    """Choose after the leader is lost: the first online replica that is in sync."""
    live = tuple(replica for replica in replicas if replica in online and replica in isr)
    return Choice(live[0], live) if live else None


def elect_unclean(replicas: Sequence[int], online: Collection[int]) -> Choice | None:
    """Choose any online replica; what it lacks of the acknowledged records is lost."""
    leader = next((replica for replica in replicas if replica in online), None)
    return None if leader is None else Choice(leader, (leader,))


def elect_preferred(
    replicas: Sequence[int], isr: Collection[int], online: Collection[int]
) -> Choice | None:
    """Give the lead to the first replica of the assignment, if it is online and in sync."""
    if not replicas or replicas[0] not in online or replicas[0] not in isr:
        return None
    return Choice(replicas[0], tuple(isr))
