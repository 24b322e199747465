"""The committed offsets of one group, and the pending ones of open transactions.

Owns the committed offset of each partition, in the order of the log: of two commits the later one
in `__consumer_offsets` counts, in whatever order they are applied. A transactional commit counts at
its own position, not at that of the transaction's marker. A deletion also removes earlier pending
offsets of open transactions, as in Kafka 4 (OffsetMetadataManager). Does no I/O and has no clock.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from plog.coordinator.group_log import CommittedOffset
from plog.types import NO_TIMESTAMP, ZERO_UUID, TopicPartition

_topic = attrgetter("topic")


class Placed(NamedTuple):
    """A commit with its position in the partition of `__consumer_offsets`."""

    committed: CommittedOffset
    position: int


@dataclass(slots=True)
class GroupOffsets:
    """One group's offsets."""

    _committed: dict[TopicPartition, Placed] = field(default_factory=dict)
    _undecided: dict[int, dict[TopicPartition, Placed]] = field(default_factory=dict)
    _under_way: Counter[TopicPartition] = field(default_factory=Counter)

    def __len__(self) -> int:
        """Return the number of partitions with a committed offset."""
        return len(self._committed)

    def __iter__(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """Iterate over the committed offsets, in no order."""
        return ((at, placed.committed) for at, placed in list(self._committed.items()))

    def get(self, at: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset of a partition, or None."""
        placed = self._committed.get(at)
        return None if placed is None else placed.committed

    def topics(self) -> set[str]:
        """Return the topics with committed offsets."""
        return set(map(_topic, list(self._committed)))

    @property
    def is_forgettable(self) -> bool:
        """Whether there are no committed, pending or in-progress offsets."""
        return not (self._committed or self._undecided or self._under_way)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions with committed offsets, or with pending ones of open transactions."""
        undecided = (at for offsets in self._undecided.values() for at in offsets)
        return list(dict.fromkeys([*self._committed, *undecided]))

    @property
    def is_being_committed(self) -> bool:
        """Whether commits are being written."""
        return bool(self._under_way)

    def is_undecided(self, at: TopicPartition) -> bool:
        """Return whether an open transaction has a pending offset for a partition."""
        return any(at in offsets for offsets in self._undecided.values())

    @contextmanager
    def committing(self, partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Prevent the expiry of partitions in a block, while their commits are being written."""
        counted = Counter(partitions)
        self._under_way += counted
        try:
            yield
        finally:
            self._under_way -= counted

    def commit(self, at: TopicPartition, committed: CommittedOffset, position: int) -> None:
        """Apply a commit at `position`, unless there is a later one."""
        known = self._committed.get(at)
        if known is None or known.position <= position:
            self._committed[at] = Placed(committed, position)

    def forget(self, at: TopicPartition, position: int) -> None:
        """Apply a deletion at `position`; later commits stay."""
        for offsets in (self._committed, *self._undecided.values()):
            known = offsets.get(at)
            if known is not None and known.position <= position:
                del offsets[at]
        self._undecided = {one: offsets for one, offsets in self._undecided.items() if offsets}

    def commit_in_transaction(
        self, producer_id: int, at: TopicPartition, committed: CommittedOffset, position: int
    ) -> None:
        """Add an offset that counts once its producer's transaction is committed."""
        self._undecided.setdefault(producer_id, {})[at] = Placed(committed, position)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> list[TopicPartition]:
        """Commit or drop the pending offsets of a transaction; return their partitions."""
        ended = self._undecided.pop(producer_id, {})
        if is_commit:
            for at, (committed, position) in ended.items():
                self.commit(at, committed, position)
        return list(ended)

    def set_topic_ids(self, topic_ids: Mapping[str, uuid.UUID]) -> None:
        """Set the topic id of the offsets that have none, by the name of the topic."""
        for offsets in (self._committed, *self._undecided.values()):
            for at, (committed, position) in offsets.items():
                if at.topic in topic_ids and committed.topic_id == ZERO_UUID:
                    known = replace(committed, topic_id=topic_ids[at.topic])
                    offsets[at] = Placed(known, position)

    def of_deleted_topics(self, is_deleted: Callable[[uuid.UUID], bool]) -> list[TopicPartition]:
        """Return the partitions whose offsets all belong to deleted topics.

        A deletion removes all offsets before it. So it must wait while a commit is being written,
        or while an offset of the next topic with that name is pending. If that offset is committed,
        there is nothing to delete: it is later in the log than the offsets of the deleted topic.
        """
        deleted: dict[TopicPartition, None] = {}
        others: set[TopicPartition] = set(self._under_way)
        for offsets in (self._committed, *self._undecided.values()):
            for at, (committed, _) in offsets.items():
                if is_deleted(committed.topic_id):
                    deleted[at] = None
                else:
                    others.add(at)
        return [at for at in deleted if at not in others]

    def expired(
        self, now_ms: int, retention_ms: int, *, unused_since_ms: int, but_topics: Collection[str]
    ) -> list[TopicPartition]:
        """Return the partitions whose offsets have expired (KIP-211).

        Args:
            retention_ms: `offsets.retention.minutes`, for offsets without their own expiry time.
            unused_since_ms: time since when the group is empty; -1 to use the time of each commit.
            but_topics: topics with subscribed members, whose offsets never expire.
        """
        found = []
        for at, (committed, _) in self._committed.items():
            if at.topic in but_topics or at in self._under_way or self.is_undecided(at):
                continue
            expires_ms = committed.expires_ms
            if expires_ms == NO_TIMESTAMP:
                expires_ms = max(committed.committed_ms, unused_since_ms) + retention_ms
            if expires_ms <= now_ms:
                found.append(at)
        return found
