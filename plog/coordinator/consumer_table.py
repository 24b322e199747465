"""The state of a consumer group (KIP-848): its records of `__consumer_offsets`, as values.

Owns the tables that the records form, and what follows from them (the holder of a partition, the
member of an instance). New records and those read at a start are applied the same way, so that the
state always matches the log. Decides nothing.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from sys import getsizeof
from typing import NamedTuple, TypeAlias, TypeVar

from plog.coordinator.assignors import NOTHING, IdPartition, Partitions
from plog.coordinator.group_events import Protocol
from plog.coordinator.member_sizes import size_of
from plog.coordinator.reconciliation import Current

NO_TIMEOUT = -1

V = TypeVar("V")


class ClassicSide(NamedTuple):
    """The JoinGroup data of a member of the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member's own data; `classic` is None for the consumer protocol."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    assignor: str | None = None
    classic: ClassicSide | None = None

    @property
    def size(self) -> int:
        """Approximate memory in bytes, without its id and its partitions."""
        return size_of(
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.regex,
            topics=self.topics,
            protocols=() if self.classic is None else self.classic.protocols,
        )


class Topic(NamedTuple):
    """A topic at the group's last look at the metadata."""

    topic_id: uuid.UUID
    size: int


class Resolved(NamedTuple):
    """The topics that match a regular expression, and the time of the resolution."""

    topics: frozenset[str]
    version: int
    at_ms: int

    @property
    def size(self) -> int:
        """Approximate memory in bytes; the metadata owns the names."""
        return getsizeof(self.topics)


class Kind(IntEnum):
    """Types of records, with the versions of their keys."""

    EPOCH = 3
    TOPICS = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


class Key(NamedTuple):
    """The key of a record; `name` is a member id, or a regular expression."""

    kind: Kind
    name: str = ""


EPOCH, TOPICS, TARGET_EPOCH = Key(Kind.EPOCH), Key(Kind.TOPICS), Key(Kind.TARGET_EPOCH)

Value: TypeAlias = int | dict[str, Topic] | Subscriber | Partitions | Current | Resolved


class Record(NamedTuple):
    """A record; without a value it removes the key."""

    key: Key
    value: Value | None


@dataclass(slots=True)
class Table:
    """The records of one group, by type.

    `size` is the approximate memory of the members and of their expressions' matches, in bytes.
    """

    size: int = 0
    epoch: int = 0
    target_epoch: int = 0
    topics: dict[str, Topic] = field(default_factory=dict)
    members: dict[str, Subscriber] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    currents: dict[str, Current] = field(default_factory=dict)
    regexes: dict[str, Resolved] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    """Member id by group instance id."""
    wanted_regexes: Counter[str] = field(default_factory=Counter)
    """Number of members by regular expression."""
    _holders: dict[IdPartition, str] = field(default_factory=dict)
    _values: dict[Key, Value] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the current records."""
        return (Record(key, value) for key, value in list(self._values.items()))

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, or None."""
        return self._values.get(key)

    def copy(self) -> Table:
        """Return a copy."""
        other = Table()
        for record in self:
            other.apply(record)
        return other

    def holder(self, at: IdPartition) -> str | None:
        """Return the member that may be using a partition, or None."""
        return self._holders.get(at)

    def current(self, member_id: str) -> Current:
        """Return the current assignment of a member; an empty one for a new member."""
        return self.currents.get(member_id) or Current()

    def target(self, member_id: str) -> Partitions:
        """Return the target assignment of a member."""
        return self.targets.get(member_id, NOTHING)

    def size_with(
        self,
        member_id: str,
        instance_id: str | None,
        *words: str | None,
        topics: Collection[str] = (),
        protocols: Iterable[Protocol] = (),
    ) -> int:
        """Return the approximate `size` after this update of a member."""
        static = self.instances.get(instance_id or "", "")
        before = self.members.get(member_id) or self.members.get(static)
        after = size_of(instance_id, *words, topics=topics, protocols=protocols)
        return self.size + after - (before.size if before else 0)

    def apply(self, record: Record) -> None:
        """Apply a record."""
        (kind, name), value = record
        if value is None:
            self._values.pop(record.key, None)
        else:
            self._values[record.key] = value
        match kind, value:
            case Kind.EPOCH, int() | None:
                self.epoch = value or 0
            case Kind.TARGET_EPOCH, int() | None:
                self.target_epoch = value or 0
            case Kind.TOPICS, dict() | None:
                self.topics = value or {}
            case Kind.MEMBER, Subscriber() | None:
                self._apply_member(name, value)
            case Kind.TARGET, frozenset() | None:
                _put(self.targets, name, value)
            case Kind.CURRENT, Current() | None:
                self._apply_current(name, value)
            case Kind.REGEX, Resolved() | None:
                before = self.regexes.get(name)
                self.size += (value.size if value else 0) - (before.size if before else 0)
                _put(self.regexes, name, value)
            case _:
                raise TypeError(f"{value!r} is not a value of {kind.name}")

    def _apply_member(self, member_id: str, member: Subscriber | None) -> None:
        before = self.members.get(member_id)
        self.size += (member.size if member else 0) - (before.size if before else 0)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and self.instances.get(instance_id) == member_id:
            del self.instances[instance_id]
        if before is not None and before.regex:
            self.wanted_regexes[before.regex] -= 1
            self.wanted_regexes += Counter()  # drops zero counts
        if member is not None and member.regex:
            self.wanted_regexes[member.regex] += 1
        _put(self.members, member_id, member)
        if member is not None and member.instance_id is not None:
            self.instances[member.instance_id] = member_id

    def _apply_current(self, member_id: str, current: Current | None) -> None:
        before = self.current(member_id)
        for at in before.assigned | before.revoking:
            if self._holders.get(at) == member_id:
                del self._holders[at]
        _put(self.currents, member_id, current)
        if current is not None:
            for at in current.assigned | current.revoking:
                self._holders[at] = member_id


def _put(table: dict[str, V], name: str, value: V | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value
