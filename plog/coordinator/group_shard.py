"""The groups of one partition of `__consumer_offsets`, in memory.

Owns building groups from a partition's records, and when a group or an offset may be deleted.
Executes nothing: `group_coordinator` does.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from plog.coordinator import consumer_log, group_log
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.consumer_events import Beat
from plog.coordinator.consumer_group import ConsumerGroup
from plog.coordinator.consumer_log import ConsumerKey
from plog.coordinator.consumer_store import Unsafe
from plog.coordinator.consumer_table import EPOCH, Key, Record, Table
from plog.coordinator.group_events import NO_MEMBER, Join, Sync
from plog.coordinator.group_log import CommittedOffset, GroupKey, OffsetKey
from plog.coordinator.group_offsets import GroupOffsets
from plog.coordinator.group_states import GroupState
from plog.coordinator.replay import Entry, Replayed
from plog.coordinator.replay import Table as LogTable
from plog.coordinator.subscriptions import subscribed_topics
from plog.errors import CorruptRecord, ErrorCode
from plog.runtime.bounded_lines import BoundedLines
from plog.types import NO_TIMESTAMP, TopicPartition

log = logging.getLogger(__name__)

UNREADABLE = "%d further records cannot be read"


@dataclass(slots=True)
class Group:
    """A group of either protocol, and its committed offsets.

    `since_ms` is the time when a classic group entered its state.
    """

    machine: ClassicGroup | ConsumerGroup
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    since_ms: int = NO_TIMESTAMP
    is_stored: bool = False
    """Whether a classic group may have a record of its own; a group with offsets only has none."""
    stored: Table = field(default_factory=Table)
    """The committed records of a consumer group."""
    unsafe: Unsafe = field(default_factory=Unsafe)
    """The records that are not committed yet, and the requests that wait for them."""

    @property
    def group_id(self) -> str:
        """The group's name."""
        return self.machine.group_id

    @property
    def is_empty(self) -> bool:
        """Whether it has no members and no pending ones."""
        if isinstance(self.machine, ConsumerGroup):
            return not (self.machine.is_dead or self.machine.table.members)
        return self.machine.state is GroupState.EMPTY and not self.machine.pending

    @property
    def member_count(self) -> int:
        """Number of members."""
        if isinstance(self.machine, ConsumerGroup):
            return len(self.machine.table.members)
        return len(self.machine.roster)

    @property
    def members_size(self) -> int:
        """Approximate memory of the members in bytes."""
        if isinstance(self.machine, ConsumerGroup):
            return self.machine.table.size
        return self.machine.roster.size

    def members_size_with(self, asked: Join | Sync | Beat) -> int:
        """Return the approximate `members_size` after this request."""
        size = self.members_size
        match asked, self.machine:
            case Join(), ClassicGroup(roster=roster):
                return roster.size_with(asked)
            case Sync(member_id=leader), ClassicGroup(roster=roster, state=state):
                if state is GroupState.COMPLETING_REBALANCE and leader == roster.leader:
                    return roster.size_with_assignments(asked.assignments)
            case Join(), ConsumerGroup(table=table):
                return table.size_with(
                    asked.member_id,
                    asked.instance_id,
                    asked.client_id,
                    asked.client_host,
                    protocols=asked.protocols,
                )
            case Beat(topics=topics, regex=regex), machine if topics is not None or regex:
                table = machine.table if isinstance(machine, ConsumerGroup) else Table(size=size)
                return table.size_with(
                    asked.member_id,
                    asked.instance_id,
                    asked.rack_id,
                    asked.client_id,
                    asked.client_host,
                    regex,
                    topics=topics or (),
                )
        return size

    @property
    def is_forgettable(self) -> bool:
        """Whether the group is unused: no members, no offsets, nothing pending."""
        return self.is_empty and not self.unsafe and self.offsets.is_forgettable

    @property
    def is_in_log(self) -> bool:
        """Whether the log may have records of the group other than offsets."""
        return self.is_stored or bool(self.consumer_keys())

    def consumer_keys(self) -> set[Key]:
        """Return the keys under which a consumer group may have records, committed or not."""
        return {record.key for record in self.stored} | self.unsafe.suspects

    def subscribed_topics(self) -> set[str] | None:
        """Return the topics to which members are subscribed; None if unknown."""
        if isinstance(self.machine, ConsumerGroup):
            return None if self.machine.unresolved else self.machine.subscribed_topics()
        if self.machine.state is GroupState.EMPTY:
            return set()
        return subscribed_topics(self.machine)

    def refuse_commit(
        self, member_id: str, instance_id: str | None, generation: int, version: int
    ) -> ErrorCode:
        """Return the error of an OffsetCommit; NONE to accept it."""
        if isinstance(self.machine, ConsumerGroup):
            return self.machine.refuse_commit(member_id, generation, version)
        return self.machine.refuse_commit(member_id, instance_id, generation)

    def refuse_transactional_commit(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Return the error of a transactional offset commit; NONE to accept it."""
        if isinstance(self.machine, ConsumerGroup):
            return self.machine.refuse_commit(member_id, generation, None)
        return self.machine.refuse_transactional_commit(member_id, instance_id, generation)

    def refuse_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return the error of an OffsetFetch; NONE to accept it."""
        if not isinstance(self.machine, ConsumerGroup) or (not member_id and epoch < 0):
            return ErrorCode.NONE
        return self.machine.refuse_epoch(member_id or NO_MEMBER, epoch)

    def expired(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Return the partitions whose offsets have expired (KIP-211)."""
        if self.machine.state is GroupState.EMPTY:
            return self.offsets.expired(
                now_ms, retention_ms, unused_since_ms=self.since_ms, but_topics=()
            )
        if isinstance(self.machine, ClassicGroup) and self.machine.state is not GroupState.STABLE:
            return []
        topics = self.subscribed_topics()
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
    """While the log is read: (producer id, is commit) of transactions that ended meanwhile."""
    deleted_meanwhile: dict[str, uuid.UUID] = field(default_factory=dict)
    """While the log is read: ids of topics that were deleted meanwhile, by name."""
    _in_transactions: dict[int, set[str]] = field(default_factory=dict)  # by producer id
    _tables: dict[str, Table] = field(default_factory=dict)  # while its log is read

    def __iter__(self) -> Iterator[Group]:
        """Iterate over a copy of the groups."""
        return iter(list(self.groups.values()))

    def group(self, group_id: str) -> Group:
        """Return a group; create it if it does not exist."""
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
        """Add an offset that counts once its producer's transaction is committed."""
        group.offsets.commit_in_transaction(producer_id, at, committed, position)
        self._in_transactions.setdefault(producer_id, set()).add(group.group_id)

    def end_transaction(
        self, producer_id: int, *, is_commit: bool
    ) -> list[tuple[Group, list[TopicPartition]]]:
        """Commit or drop the pending offsets of a transaction; return their partitions."""
        return [
            (group, group.offsets.end_transaction(producer_id, is_commit=is_commit))
            for group_id in self._in_transactions.pop(producer_id, ())
            if (group := self.groups.get(group_id)) is not None
        ]

    def fill(self, replayed: Replayed) -> None:
        """Build the groups from a log. Logs and skips a record that cannot be read."""
        unreadable = BoundedLines(log, UNREADABLE)
        tables: list[tuple[int | None, LogTable]] = [(None, replayed.table)]
        for producer_id, table in [*tables, *replayed.undecided.items()]:
            for key, entry in table.items():
                try:
                    self._take(key, entry, producer_id)
                except CorruptRecord as damage:
                    unreadable.error(
                        "__consumer_offsets-%d: cannot read the record at offset %d: %s",
                        self.partition,
                        entry.offset,
                        damage,
                    )
        unreadable.tell_rest()
        self._make_consumer_groups(replayed)

    def _make_consumer_groups(self, replayed: Replayed) -> None:
        """Build the groups with an epoch; of records of both types the later one counts."""
        for group_id, table in self._tables.items():
            begun = replayed.table.get(consumer_log.encode_key(group_id, EPOCH))
            classic = replayed.table.get(group_log.encode_group_key(group_id))
            if begun is None or (classic is not None and classic.offset > begun.offset):
                continue
            group = self.group(group_id)
            group.machine = ConsumerGroup(group_id, table=table)
            group.stored = table.copy()
        self._tables.clear()

    def _take(self, key: bytes, entry: Entry, producer_id: int | None) -> None:
        assert entry.value is not None
        match consumer_log.decode_key(key) or group_log.decode_key(key):
            case ConsumerKey(group_id, name):
                value = consumer_log.decode_value(name.kind, entry.value)
                self._tables.setdefault(group_id, Table()).apply(Record(name, value))
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
        group.machine = group_log.decode_group(
            group_id, value, initial_delay_ms=self.initial_delay_ms
        )
        group.since_ms = group_log.group_since_ms(value)
        group.is_stored = True
