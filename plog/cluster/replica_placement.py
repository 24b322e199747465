"""Which brokers get the replicas of new partitions.

A pure function: leaders go round the brokers from a drawn start, and each partition's
followers begin a little further on than those of the round before, so that what a lost
broker led spreads over all the others. With racks known, brokers are first dealt out
rack by rack, and a rack gets a second replica of a partition only when every rack has one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from plog.errors import InvalidReplicationFactor


class Candidate(NamedTuple):
    """A broker that may get replicas."""

    broker_id: int
    rack: str | None = None


def place_replicas(
    candidates: Sequence[Candidate],
    partition_count: int,
    replication_factor: int,
    rng: random.Random,
    *,
    first_partition: int = 0,
    start: int | None = None,
) -> dict[int, tuple[int, ...]]:
    """Return the replicas of partitions `first_partition` and on, preferred leader first.

    `start` is the position (among brokers in order) of partition 0's leader, for
    partitions that are added to a topic; without it, it is drawn.

    Raises:
        InvalidReplicationFactor: there are fewer brokers than replicas, or none wanted.
    """
    if replication_factor < 1:
        raise InvalidReplicationFactor(
            f"a replication factor is at least 1, not {replication_factor}"
        )
    if replication_factor > len(candidates):
        raise InvalidReplicationFactor(
            f"a replication factor of {replication_factor} needs as many live brokers, and there"
            f" {'is' if len(candidates) == 1 else 'are'} only {len(candidates)}"
        )
    racks = {candidate.rack for candidate in candidates}
    # Where some racks are unknown, none are used.
    ring = (
        _dealt_by_rack(candidates)
        if None not in racks
        else [Candidate(one.broker_id) for one in sorted(candidates)]
    )
    count = len(ring)
    begin = rng.randrange(count) if start is None else start
    shift = rng.randrange(count)
    placed: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partition_count):
        leader = (begin + partition) % count
        lag = (shift + partition // count) % max(count - 1, 1)
        others = [
            ring[(leader + 1 + (lag + step) % (count - 1)) % count] for step in range(count - 1)
        ]
        placed[partition] = _spread(ring[leader], others, replication_factor)
    return placed


def _dealt_by_rack(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order brokers so that neighbours are in different racks as far as possible."""
    racks: dict[str | None, list[Candidate]] = {}
    for candidate in sorted(candidates):
        racks.setdefault(candidate.rack, []).append(candidate)
    rows = [racks[rack] for rack in sorted(racks, key=str)]
    return [row[turn] for turn in range(max(map(len, rows))) for row in rows if turn < len(row)]


def _spread(leader: Candidate, others: Sequence[Candidate], count: int) -> tuple[int, ...]:
    """Take followers in the order of `others`, from the racks that have fewest replicas first."""
    chosen = [leader]
    left = list(others)
    while len(chosen) < count:
        used = [candidate.rack for candidate in chosen]
        best = min(left, key=lambda candidate: used.count(candidate.rack) if candidate.rack else 0)
        left.remove(best)
        chosen.append(best)
    return tuple(candidate.broker_id for candidate in chosen)
