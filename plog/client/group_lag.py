"""The lag of a group: in records, and in time by the timestamp of the next record it reads.

Owns the arithmetic and the fetches that find those records, for all groups and all partitions of a
leader at once. A budget bounds these fetches. Keeps no state.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from plog.client import fetcher
from plog.client.connection import Connection
from plog.client.fetcher import Ask, Fetched, Limits
from plog.client.metadata import Cluster
from plog.client.offsets import LATEST, ask_each
from plog.client.record_stream import RecordStream
from plog.errors import ErrorCode, KafkaError, UnknownTopicOrPartition
from plog.types import NO_TIMESTAMP, TopicPartition

FIRST_BATCHES = Limits(
    max_wait_ms=0, min_bytes=0, max_bytes=8 * 1024 * 1024, partition_max_bytes=32 * 1024
)
"""Enough for one batch of most partitions. A response always has the first batch, even a larger one
(KIP-74), so each fetch leaves fewer partitions."""
MAX_EMPTY = 16
"""How many fetches without a readable record (markers, compacted offsets) are followed."""
UNBOUNDED = 2**63


Position = tuple[TopicPartition, int]


class PartitionLag(NamedTuple):
    """The end of a log, and the records a group has not read: their number, the age of the oldest.

    A field is None if it is not known: no leader answers, the group has no committed offset, or the
    next record was deleted or has no timestamp. `records` counts offsets, as Kafka's tools do, and
    is negative if the log ends before the committed offset.
    """

    log_end: int | None = None
    records: int | None = None
    age_ms: int | None = None


@dataclass
class Budget:
    """Limits on the fetches for ages. The response to the last one may exceed `size_bytes`.

    A broker sends a batch larger than `FIRST_BATCHES` allows only for the first partition of a
    fetch. So with large batches each group needs a fetch for each of its partitions.
    """

    fetches: int = 200
    size_bytes: int = 64 * 1024 * 1024

    @property
    def is_spent(self) -> bool:
        """Whether no further fetch is allowed."""
        return self.fetches <= 0 or self.size_bytes <= 0

    def take_share(self, count: int) -> Budget:
        """Return one of `count` equal shares of the rest, and subtract it from this budget."""
        share = Budget(-(-self.fetches // count), -(-self.size_bytes // count))
        self.spend(share.fetches, share.size_bytes)
        return share

    def spend(self, fetches: int, size_bytes: int) -> None:
        """Subtract fetches and the size of their responses; negative figures return a rest."""
        self.fetches -= fetches
        self.size_bytes -= size_bytes


def measure(
    cluster: Cluster, offsets: Mapping[TopicPartition, int | None], now_ms: int
) -> tuple[dict[TopicPartition, PartitionLag], list[KafkaError]]:
    """Return the lag of each partition from an offset (None: no committed offset).

    The lag of deleted partitions and of partitions without a leader is not known.

    Returns:
        The lags, and the errors of partitions that are not deleted.
    """
    budget = Budget(UNBOUNDED, UNBOUNDED)
    measured = measure_groups(cluster, {"": offsets}, now_ms, budget)
    return measured.lags[""], measured.errors


class GroupLags(NamedTuple):
    """The lag of groups, by group and partition, and the errors of partitions without an end.

    `without_ages` are the groups that the budget did not cover. None of their ages is known.
    """

    lags: dict[str, dict[TopicPartition, PartitionLag]]
    faults: dict[TopicPartition, KafkaError]
    without_ages: set[str]

    @property
    def errors(self) -> list[KafkaError]:
        """The errors, except for deleted topics: their offsets are deleted soon after them."""
        faults = self.faults.values()
        return [fault for fault in faults if not isinstance(fault, UnknownTopicOrPartition)]


def measure_groups(
    cluster: Cluster,
    groups: Mapping[str, Mapping[TopicPartition, int | None]],
    now_ms: int,
    budget: Budget | None = None,
) -> GroupLags:
    """Return the lag of many groups, with one ListOffsets for each leader.

    The ages of the groups with the largest lag are looked up first.

    Args:
        groups: the offsets of each group, as for `measure`.
        budget: the limits of a default `Budget` if it is None.
    """
    wanted = {partition for offsets in groups.values() for partition in offsets}
    found, faults = ask_each(cluster, dict.fromkeys(sorted(wanted), LATEST))
    ends = {partition: at.offset for partition, at in found.items()}
    behind = {group: _behind(offsets, ends) for group, offsets in groups.items()}
    ranks: dict[Position, int] = {}
    for group in sorted(behind, key=lambda group: -sum(behind[group].values())):
        for position in behind[group]:
            ranks.setdefault(position, len(ranks))
    timestamps, omitted = _timestamps(cluster, ranks, ends, budget or Budget())
    without_ages = {group for group, its in behind.items() if not omitted.isdisjoint(its)}

    def lag(group: str, partition: TopicPartition, offset: int | None) -> PartitionLag:
        end = ends.get(partition)
        if end is None or offset is None:
            return PartitionLag(end)
        if group in without_ages:
            return PartitionLag(end, end - offset)
        age_ms = 0 if end == offset else None
        timestamp = timestamps.get((partition, offset), NO_TIMESTAMP)
        if timestamp >= 0:
            age_ms = max(now_ms - timestamp, 0)
        return PartitionLag(end, end - offset, age_ms)

    lags = {
        group: {partition: lag(group, partition, offset) for partition, offset in offsets.items()}
        for group, offsets in groups.items()
    }
    return GroupLags(lags, faults, without_ages)


def _behind(
    offsets: Mapping[TopicPartition, int | None], ends: Mapping[TopicPartition, int]
) -> dict[Position, int]:
    """Return the positions of a group that have unread records, and the number of these."""
    return {
        (partition, offset): ends[partition] - offset
        for partition, offset in offsets.items()
        if offset is not None and offset < ends.get(partition, offset)
    }


def _timestamps(
    cluster: Cluster,
    ranks: Mapping[Position, int],
    ends: Mapping[TopicPartition, int],
    budget: Budget,
) -> tuple[dict[Position, int], set[Position]]:
    """Return the timestamps of the first records at or after offsets, where leaders answer.

    The second result has the positions that the budget did not cover.

    Args:
        ranks: positions; those with low numbers are looked up first.
    """
    by_leader: dict[int, dict[TopicPartition, _Search]] = {}
    found: dict[Position, int] = {}
    omitted: set[Position] = set()
    for (partition, offset), rank in ranks.items():
        with suppress(KafkaError):  # it has no leader any more
            leader = cluster.leader(partition)
            of_leader = by_leader.setdefault(leader.leader_id, {})
            search = of_leader.setdefault(partition, _Search(leader.leader_epoch))
            search.add(offset, offset, rank)
    for number, (leader_id, searches) in enumerate(by_leader.items()):
        share = budget.take_share(len(by_leader) - number)
        with suppress(KafkaError):  # it goes away
            omitted |= _ask_leader(cluster.connection(leader_id), searches, ends, found, share)
        budget.spend(-share.fetches, -share.size_bytes)
    return found, omitted


class _Search:
    """The search for the next records of groups in one partition.

    Attributes:
        wanted: by the offset of the next fetch, the committed offsets that need a record from
            there, and their ranks. Low ranks come first.
    """

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.wanted: dict[int, list[tuple[int, int]]] = {}
        self._queue: list[tuple[int, int]] = []

    def add(self, start: int, offset: int, rank: int) -> None:
        """Search the record of a committed offset from `start` on."""
        self.wanted.setdefault(start, []).append((offset, rank))
        heapq.heappush(self._queue, (rank, start))

    def next(self) -> tuple[int, int]:
        """Return the best rank of the wanted records, and the offset to fetch for it."""
        while self._queue[0][1] not in self.wanted:
            heapq.heappop(self._queue)
        return self._queue[0]

    def drop(self, start: int | None) -> None:
        """Give up one offset (gone by retention), or all (None: its leader refuses them)."""
        if start is None:
            self.wanted.clear()
        else:
            del self.wanted[start]

    def use(self, answer: Fetched, start: int, end: int, found: dict[Position, int]) -> None:
        """Find the next records of all offsets that a response from `start` covers."""
        covered = [at for at in self.wanted if start <= at < answer.next_offset]
        for offset, rank in [one for at in covered for one in self.wanted.pop(at)]:
            try:
                records = RecordStream(answer, offset).take(1)
            except KafkaError:  # damaged
                continue
            if records:
                found[answer.partition, offset] = records[0].timestamp
            elif answer.next_offset < end:
                self.add(answer.next_offset, offset, rank)


def _ask_leader(
    connection: Connection,
    searches: dict[TopicPartition, _Search],
    ends: Mapping[TopicPartition, int],
    found: dict[Position, int],
    budget: Budget,
) -> set[Position]:
    """Fetch from one leader until every search has ended; each time from all partitions.

    Return the positions that the budget does not cover.
    """
    rounds = sum(len(search.wanted) for search in searches.values()) + MAX_EMPTY
    for _ in range(rounds):
        # The first partition of a fetch gets a batch of any size.
        first = sorted((search.next(), at) for at, search in searches.items() if search.wanted)
        if not first:
            break
        if budget.is_spent:
            return {
                (at, offset)
                for at, search in searches.items()
                for offsets in search.wanted.values()
                for offset, _ in offsets
            }
        asked = {at: offset for (_, offset), at in first}
        asks = [Ask(at, offset, searches[at].leader_epoch) for at, offset in asked.items()]
        fetcher.send_fetch(connection, asks, FIRST_BATCHES)
        answers = fetcher.receive_fetch(connection, asked)
        budget.spend(1, sum(len(answer.records) for answer in answers))
        has_progress = False
        for answer in answers:
            at = answer.partition
            if answer.error is not None:
                is_gone = answer.error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                searches[at].drop(asked[at] if is_gone else None)
                has_progress = True
                continue
            if answer.next_offset > asked[at]:
                searches[at].use(answer, asked[at], ends[at], found)
                has_progress = True
        if not has_progress:
            break
    return set()
