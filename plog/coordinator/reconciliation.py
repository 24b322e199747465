"""Moves one member from its current to its target assignment (KIP-848), one pure step at a time.

First a member gives up the partitions outside its target, then it gets those that are free. It has
the group's epoch once it has given up everything. While others still hold some of its target
partitions, it uses the rest. So two members never have the same partition.

    STABLE ---- it must give something up ----> UNREVOKED_PARTITIONS --- it has ---.
      ^  '-- what it is to have is others' -> UNRELEASED_PARTITIONS <--------------+
      '-------------------- it has everything ---------------'---------------------'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from plog.coordinator.assignors import NOTHING, IdPartition, Partitions

JOINING_EPOCH, LEAVING_EPOCH, AWAY_EPOCH = 0, -1, -2
"""The epochs with which a member joins, leaves, and leaves for a restart (static members)."""


class MemberState(IntEnum):
    """States of a member, with Kafka's names and the numbers in its records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """Written by a newer broker: the member has to join again."""


STABLE, UNREVOKED, UNRELEASED, UNKNOWN = MemberState


@dataclass(frozen=True, slots=True)
class Current:
    """The current assignment of a member.

    Args:
        previous_epoch: its epoch before; it sends this one if it has missed the last response.
        assigned: the partitions that it may use.
        revoking: the partitions that it must give up, and may still be using.
    """

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING


NEXT_STATES: Mapping[MemberState, frozenset[MemberState]] = {
    STABLE: frozenset({STABLE, UNREVOKED, UNRELEASED}),
    UNREVOKED: frozenset({STABLE, UNREVOKED, UNRELEASED}),
    UNRELEASED: frozenset({STABLE, UNREVOKED, UNRELEASED}),
    UNKNOWN: frozenset({STABLE, UNREVOKED, UNRELEASED}),
}
"""The possible next states; UNKNOWN is not among them."""

IS_DUE: Mapping[MemberState, Callable[[Current, int, Partitions | None], bool]] = {
    STABLE: lambda current, target_epoch, _: current.epoch != target_epoch,
    UNREVOKED: lambda current, _, owned: owned is not None and not owned & current.revoking,
    UNRELEASED: lambda *_: True,
    UNKNOWN: lambda *_: True,
}
"""For each state: whether to take the next step, given the target epoch and the partitions that the
member reports as owned (None if it reports none)."""


def reconcile(
    current: Current,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[IdPartition], bool],
) -> Current:
    """Return the current assignment of a member after its request.

    Args:
        target: its target assignment at `target_epoch`.
        owned: the partitions that it reports as owned; None if it reports none.
        is_free: returns whether no other member holds a partition.
    """
    if not IS_DUE[current.state](current, target_epoch, owned):
        return current
    keeps = current.assigned & target
    gives_up = current.assigned - target
    if gives_up and (owned is None or owned & gives_up):
        following = Current(
            current.epoch, current.previous_epoch, UNREVOKED, assigned=keeps, revoking=gives_up
        )
    else:
        missing = target - keeps
        free = frozenset(at for at in missing if is_free(at))
        following = Current(
            target_epoch,
            current.epoch if current.epoch != target_epoch else current.previous_epoch,
            STABLE if free == missing else UNRELEASED,
            assigned=keeps | free,
        )
    assert following.state in NEXT_STATES[current.state], (current, following)
    return following
