"""Plans where replicas go when brokers are added, drained, replaced or removed: pure.

Owns the choice. What can stay stays. A replica that has to go finds the broker with the most room
that is allowed and has none of its partition, in a rack that has none, if there is one. Balancing
moves replicas from the fullest broker to the emptiest, as long as that brings them closer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from plog.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from plog.types import TopicPartition

Replicas = tuple[int, ...]

CLOSE_ENOUGH: Final = 0.1
"""Brokers whose bytes differ by at most this part of the fuller one's are in balance."""


class Room(NamedTuple):
    """A broker that may have replicas.

    Attributes:
        free_bytes: on the disks of its log directories; None where it does not say.
    """

    rack: str | None = None
    free_bytes: int | None = None


class Partition(NamedTuple):
    """A partition as it is now, and how many bytes a new copy of it takes."""

    replicas: Replicas
    size_bytes: int


class Move(NamedTuple):
    """A partition whose replicas change."""

    partition: TopicPartition
    before: Replicas
    after: Replicas
    size_bytes: int

    @property
    def added(self) -> Replicas:
        """The brokers that get a copy."""
        return tuple(one for one in self.after if one not in self.before)

    @property
    def copied_bytes(self) -> int:
        """The bytes that brokers copy for it."""
        return self.size_bytes * len(self.added)


class Plan(NamedTuple):
    """The moves, in the order of their partitions.

    Attributes:
        bytes_before, bytes_after: of replicas on each broker.
        copied_bytes: what each broker gets, before it loses anything.
    """

    moves: tuple[Move, ...]
    bytes_before: Mapping[int, int]
    bytes_after: Mapping[int, int]
    copied_bytes: Mapping[int, int]


@dataclass
class Planner:
    """One plan.

    Args:
        partitions: all of the cluster; they count for the brokers' bytes.
        rooms: the live brokers that may have replicas.
        chosen: the partitions that may move.
    """

    partitions: Mapping[TopicPartition, Partition]
    rooms: Mapping[int, Room]
    chosen: Collection[TopicPartition]
    _after: dict[TopicPartition, Replicas] = field(default_factory=dict)
    _bytes: Counter[int] = field(default_factory=Counter)
    _in_place: set[TopicPartition] = field(default_factory=set)
    """Those whose new broker leads where the old one did."""

    def __post_init__(self) -> None:
        for at, partition in self.partitions.items():
            self._after[at] = partition.replicas
            for broker_id in partition.replicas:
                self._bytes[broker_id] += partition.size_bytes
        self._before = Counter(self._bytes)

    # -- steps -------------------------------------------------------------------------------

    def replace(self, old: int, new: int) -> None:
        """Give everything of one broker to another, which must be live.

        Raises:
            InvalidReplicaAssignment: it is not, or has a replica of such a partition already.
        """
        if new not in self.rooms:
            raise InvalidReplicaAssignment(f"broker {new} is not in the cluster, or is drained")
        for at in self._chosen():
            replicas = self._after[at]
            if old not in replicas:
                continue
            if new in replicas:
                raise InvalidReplicaAssignment(f"{at} has replicas on both broker {old} and {new}")
            self._set(at, tuple(new if one == old else one for one in replicas))
            self._in_place.add(at)

    def vacate(self) -> None:
        """Move the replicas on brokers that may have none.

        Raises:
            InvalidReplicaAssignment: too few brokers are left.
        """
        for at in self._by_size():
            for broker_id in self._after[at]:
                if broker_id not in self.rooms:
                    others = [one for one in self._after[at] if one != broker_id]
                    new = self._find(at, others)
                    after = [new if one == broker_id else one for one in self._after[at]]
                    self._set(at, tuple(after))

    def set_factor(self, factor: int) -> None:
        """Give each partition so many replicas. Those that have to go anyway go, then the last.

        Raises:
            InvalidReplicationFactor: there are fewer brokers.
        """
        if not 1 <= factor <= len(self.rooms):
            raise InvalidReplicationFactor(
                f"{factor} replicas of each partition need as many brokers, and there are"
                f" {len(self.rooms)}: start more, or give a --factor of at most {len(self.rooms)}"
            )
        for at in self._by_size():
            staying = sorted(self._after[at], key=lambda one: one not in self.rooms)
            replicas = [one for one in self._after[at] if one in staying[:factor]]
            while len(replicas) < factor:
                replicas.append(self._find(at, replicas))
            self._set(at, tuple(replicas))

    def balance(self) -> None:
        """Move replicas from full brokers to empty ones, the largest that help."""
        while (better := self._better()) is not None:
            at, old, new = better
            self._set(at, tuple(new if one == old else one for one in self._after[at]))

    def plan(self) -> Plan:
        """Return the plan. The brokers that lead are spread over the new replicas."""
        moves = []
        copied: Counter[int] = Counter()
        leads = Counter(replicas[0] for replicas in self._after.values())
        for at in sorted(self._after):
            before, after = self.partitions[at].replicas, self._after[at]
            if before == after:
                continue
            if at not in self._in_place:
                after = _spread(before, after, leads)
            move = Move(at, before, after, self.partitions[at].size_bytes)
            copied.update(dict.fromkeys(move.added, move.size_bytes))
            moves.append(move)
        return Plan(tuple(moves), dict(self._before), dict(self._bytes), dict(copied))

    # -- how ---------------------------------------------------------------------------------

    def _chosen(self) -> list[TopicPartition]:
        return sorted(set(self.chosen) & self.partitions.keys())

    def _by_size(self) -> list[TopicPartition]:
        """The largest first: the small ones level out what these leave."""
        return sorted(self._chosen(), key=lambda at: (-self.partitions[at].size_bytes, at))

    def _set(self, at: TopicPartition, replicas: Replicas) -> None:
        size = self.partitions[at].size_bytes
        for broker_id in self._after[at]:
            self._bytes[broker_id] -= size
        for broker_id in replicas:
            self._bytes[broker_id] += size
        self._after[at] = replicas

    def _find(self, at: TopicPartition, others: Sequence[int]) -> int:
        """Return the broker that gets a replica beside the others."""
        free = [one for one in self.rooms if one not in others]
        if not free:
            raise InvalidReplicaAssignment(
                f"{at} has {len(others) + 1} replicas, and {len(self.rooms)} brokers are left for"
                f" them: start another one, or give a --factor of {len(self.rooms)}"
            )
        racks = {self.rooms[one].rack for one in others if one in self.rooms}
        first = others[0] if others else -1

        def cost(one: int) -> tuple[bool, int, int, bool, int]:
            # Of equal ones that after the first replica's: else all partitions would choose one.
            is_in_rack = self._is_in(one, racks)
            return is_in_rack, self._bytes[one], self._count(one), one < first, one

        return min(free, key=cost)

    def _is_in(self, broker_id: int, racks: Collection[str | None]) -> bool:
        rack = self.rooms[broker_id].rack
        return rack is not None and rack in racks

    def _count(self, broker_id: int) -> int:
        return sum(broker_id in replicas for replicas in self._after.values())

    def _better(self) -> tuple[TopicPartition, int, int] | None:
        """Return a replica whose move brings the fullest and the emptiest broker closer."""
        full = max(self.rooms, key=lambda one: (self._bytes[one], -one))
        empty = min(self.rooms, key=lambda one: (self._bytes[one], one))
        gap = self._bytes[full] - self._bytes[empty]
        if gap <= CLOSE_ENOUGH * self._bytes[full]:
            return None
        for at in self._by_size():
            replicas, size = self._after[at], self.partitions[at].size_bytes
            if full not in replicas or empty in replicas or not 0 < size < gap:
                continue
            others = {self.rooms[one].rack for one in replicas if one in self.rooms and one != full}
            if not self._is_in(empty, others) or self._is_in(full, others):
                return at, full, empty
        return None


def _spread(before: Replicas, after: Replicas, leads: Counter[int]) -> Replicas:
    """Put the broker first that leads least, where the one that was first has gone."""
    if after[0] == before[0] or before[0] in after:
        return after
    first = min(after, key=lambda one: (leads[one], after.index(one)))
    leads[after[0]] -= 1
    leads[first] += 1
    return (first, *(one for one in after if one != first))


def shortages(plan: Plan, rooms: Mapping[int, Room]) -> dict[int, tuple[int, int]]:
    """Return the brokers whose disks are too small: the bytes that they get, and those free."""
    found = {}
    for broker_id, size in sorted(plan.copied_bytes.items()):
        free = rooms[broker_id].free_bytes
        if free is not None and size > free:
            found[broker_id] = (size, free)
    return found
