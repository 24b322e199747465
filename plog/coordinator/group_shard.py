"""The groups that one partition of `__consumer_offsets` keeps, as they are in memory.

Owns how a partition's records become groups, and when a group or an offset may be forgotten.
Executes nothing: `group_coordinator` does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from plog.coordinator import group_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.group_log import CommittedOffset, GroupKey, OffsetKey
from plog.coordinator.group_offsets import GroupOffsets
from plog.coordinator.group_states import GroupState
from plog.coordinator.replay import Entry, Replayed, Table
from plog.coordinator.subscriptions import subscribed_topics
from plog.errors import CorruptRecord
from plog.runtime.bounded_lines import BoundedLines
from plog.types import NO_TIMESTAMP, TopicPartition

log = logging.getLogger(__name__)

UNREADABLE = "%d further records say nothing"


@dataclass(slots=True)
class Group:
    """A group and what it has committed; `since_ms` is when it came into its state."""

    classic: ClassicGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    since_ms: int = NO_TIMESTAMP
    is_stored: bool = False
    """Whether the group itself has a record; one that only commits has none."""

    @property
    def is_forgettable(self) -> bool:
        """Whether nobody would miss it."""
        return (
            self.classic.state is GroupState.EMPTY
            and not self.classic.pending
            and self.offsets.is_forgettable
        )

    def expired(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Return the partitions whose offsets have expired (KIP-211)."""
        if self.classic.state is GroupState.EMPTY:
            return self.offsets.expired(
                now_ms, retention_ms, unused_since_ms=self.since_ms, but_topics=()
            )
        if self.classic.state is not GroupState.STABLE:
            return []
        topics = subscribed_topics(self.classic)
        if topics is None:
            return []
        return self.offsets.expired(
            now_ms, retention_ms, unused_since_ms=NO_TIMESTAMP, but_topics=topics
        )


@dataclass(slots=True)
class Shard:
    """One partition's groups."""

    partition: int
    leader_epoch: int
    initial_delay_ms: int = 0
    groups: dict[str, Group] = field(default_factory=dict)
    ended_meanwhile: list[tuple[int, bool]] = field(default_factory=list)
    """While its log is read: by which producers transactions were ended, and whether by commit."""
    _in_transactions: dict[int, set[str]] = field(default_factory=dict)  # by producer id

    def __iter__(self) -> Iterator[Group]:
        """Iterate over the groups that there are now."""
        return iter(list(self.groups.values()))

    def group(self, group_id: str) -> Group:
        """Return a group, made if it is not there."""
        found = self.groups.get(group_id)
        if found is None:
            found = Group(ClassicGroup(group_id, self.initial_delay_ms))
            self.groups[group_id] = found
        return found

    def commit_in_transaction(
        self,
        group: Group,
        producer_id: int,
        at: TopicPartition,
        committed: CommittedOffset,
        position: int,
    ) -> None:
        """Take in a commit that stands once its producer's transaction is committed."""
        group.offsets.commit_in_transaction(producer_id, at, committed, position)
        self._in_transactions.setdefault(producer_id, set()).add(group.classic.group_id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Take in what became of a producer's transaction; without commits here it is nothing."""
        for group_id in self._in_transactions.pop(producer_id, ()):
            if (group := self.groups.get(group_id)) is not None:
                group.offsets.end_transaction(producer_id, is_commit=is_commit)

    def fill(self, replayed: Replayed) -> None:
        """Make the groups that a log says. A record that cannot be read is told, and left out."""
        unreadable = BoundedLines(log, UNREADABLE)
        tables: list[tuple[int | None, Table]] = [(None, replayed.table)]
        for producer_id, table in [*tables, *replayed.undecided.items()]:
            for key, entry in table.items():
                try:
                    self._take(key, entry, producer_id)
                except CorruptRecord as damage:
                    unreadable.error(
                        "__consumer_offsets-%d: the record at offset %d says nothing: %s",
                        self.partition,
                        entry.offset,
                        damage,
                    )
        unreadable.tell_rest()

    def _take(self, key: bytes, entry: Entry, producer_id: int | None) -> None:
        assert entry.value is not None
        match group_log.decode_key(key):
            case OffsetKey(group_id, at):
                group = self.group(group_id)
                committed = group_log.decode_offset(entry.value)
                if producer_id is None:
                    group.offsets.commit(at, committed, entry.offset)
                else:
                    self.commit_in_transaction(group, producer_id, at, committed, entry.offset)
            case GroupKey(group_id):
                self._take_group(group_id, entry.value)

    def _take_group(self, group_id: str, value: bytes) -> None:
        group = self.group(group_id)
        group.classic = group_log.decode_group(
            group_id, value, initial_delay_ms=self.initial_delay_ms
        )
        group.since_ms = group_log.group_since_ms(value)
        group.is_stored = True
