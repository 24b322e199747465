"""The offsets that one group has committed, and those that transactions have not decided yet.

Owns what is committed for each partition, in the order of the log: of two commits the one
further on in `__consumer_offsets` stands, whichever is heard of first, and one made in a
transaction stands where it was written, not where the transaction's marker is. A deletion is of
what open transactions have committed before it, too: as in Kafka 4 (OffsetMetadataManager), where
a tombstone takes the pending offsets with it. Does no I/O and knows no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from plog.coordinator.group_log import CommittedOffset
from plog.types import NO_TIMESTAMP, TopicPartition


class Placed(NamedTuple):
    """A commit, and where in the partition of `__consumer_offsets` it is."""

    committed: CommittedOffset
    position: int


@dataclass(slots=True)
class GroupOffsets:
    """One group's offsets."""

    _committed: dict[TopicPartition, Placed] = field(default_factory=dict)
    _undecided: dict[int, dict[TopicPartition, Placed]] = field(default_factory=dict)
    _under_way: Counter[TopicPartition] = field(default_factory=Counter)

    def __len__(self) -> int:
        """Return for how many partitions something is committed."""
        return len(self._committed)

    def __iter__(self) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        """Iterate over what is committed, in no order."""
        return ((at, placed.committed) for at, placed in list(self._committed.items()))

    def get(self, at: TopicPartition) -> CommittedOffset | None:
        """Return what is committed for a partition."""
        placed = self._committed.get(at)
        return None if placed is None else placed.committed

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing is committed, and nothing is about to be."""
        return not (self._committed or self._undecided or self._under_way)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions for which something is committed, or would be by an open transaction."""
        undecided = (at for offsets in self._undecided.values() for at in offsets)
        return list(dict.fromkeys([*self._committed, *undecided]))

    @property
    def is_being_committed(self) -> bool:
        """Whether commits are written, and not yet known to be safe."""
        return bool(self._under_way)

    def is_undecided(self, at: TopicPartition) -> bool:
        """Tell whether an open transaction would commit another offset of a partition."""
        return any(at in offsets for offsets in self._undecided.values())

    @contextmanager
    def committing(self, partitions: Iterable[TopicPartition]) -> Iterator[None]:
        """Keep offsets from expiring: commits of them are written, and not yet known to be safe."""
        counted = Counter(partitions)
        self._under_way += counted
        try:
            yield
        finally:
            self._under_way -= counted

    def commit(self, at: TopicPartition, committed: CommittedOffset, position: int) -> None:
        """Take a commit in that is safe at `position`, unless a later one is known."""
        known = self._committed.get(at)
        if known is None or known.position <= position:
            self._committed[at] = Placed(committed, position)

    def forget(self, at: TopicPartition, position: int) -> None:
        """Take in that an offset was deleted at `position`; what is later stays."""
        for offsets in (self._committed, *self._undecided.values()):
            known = offsets.get(at)
            if known is not None and known.position <= position:
                del offsets[at]
        self._undecided = {one: offsets for one, offsets in self._undecided.items() if offsets}

    def commit_in_transaction(
        self, producer_id: int, at: TopicPartition, committed: CommittedOffset, position: int
    ) -> None:
        """Take in a commit that stands once its producer's transaction is committed."""
        self._undecided.setdefault(producer_id, {})[at] = Placed(committed, position)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Take in what became of a producer's transaction; without commits here it is nothing."""
        for at, (committed, position) in self._undecided.pop(producer_id, {}).items():
            if is_commit:
                self.commit(at, committed, position)

    def expired(
        self, now_ms: int, retention_ms: int, *, unused_since_ms: int, but_topics: Collection[str]
    ) -> list[TopicPartition]:
        """Return the partitions whose offsets nobody will ask for any more (KIP-211).

        Args:
            retention_ms: `offsets.retention.minutes`, of offsets that have no time of their own.
            unused_since_ms: since when the group is empty; -1: their own commits count.
            but_topics: what members are subscribed to, which never expires.
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
