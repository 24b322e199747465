"""How one member comes from what it has to what it is to have (KIP-848): pure, one step at a time.

First a member gives up what it is not to have any more, then it is given what nobody else holds.
It has the group's epoch as soon as it has given up everything; until others have given up what it
waits for, it has the rest. So no partition is ever two members'.

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
"""What a member tells as its epoch when it joins, leaves, and leaves to come back (static)."""


class MemberState(IntEnum):
    """States of a member, by Kafka's names and the numbers of its records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """What a newer broker may have written: the member has to join anew."""


STABLE, UNREVOKED, UNRELEASED, UNKNOWN = MemberState


@dataclass(frozen=True, slots=True)
class Current:
    """Where a member stands.

    Args:
        previous_epoch: its epoch before; it comes with that if it has missed the last answer.
        assigned: what it may use.
        revoking: what it has been told to give up, and may still be using.
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
"""What may follow a state: nothing becomes unknown here."""

IS_DUE: Mapping[MemberState, Callable[[Current, int, Partitions | None], bool]] = {
    STABLE: lambda current, target_epoch, _: current.epoch != target_epoch,
    UNREVOKED: lambda current, _, owned: owned is not None and not owned & current.revoking,
    UNRELEASED: lambda *_: True,
    UNKNOWN: lambda *_: True,
}
"""In each state: whether the next step is to be taken, by the epoch of what the member is to have
and by what it says that it owns (None if it does not say)."""


def reconcile(
    current: Current,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[IdPartition], bool],
) -> Current:
    """Return where a member stands after it was heard of.

    Args:
        target: what it is to have, as of `target_epoch`.
        owned: what it says that it owns; None if it does not say.
        is_free: tells whether nobody else holds a partition.
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
