"""The lag of a group: in records, and in time by the timestamp of the next record it reads.

Owns the arithmetic and the fetches that find those records, for all groups and all partitions of a
leader at once. Keeps no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from plog.client import fetcher
from plog.client.connection import Connection
from plog.client.fetcher import Ask, Fetched, Limits
from plog.client.metadata import Cluster
from plog.client.offsets import LATEST, ask_each
from plog.client.record_stream import RecordStream
from plog.errors import ErrorCode, KafkaError
from plog.types import NO_TIMESTAMP, TopicPartition

FIRST_BATCHES = Limits(
    max_wait_ms=0, min_bytes=0, max_bytes=8 * 1024 * 1024, partition_max_bytes=32 * 1024
)
"""Enough for one batch of most partitions. A response always has the first batch, even a larger one
(KIP-74), so each fetch leaves fewer partitions."""
MAX_EMPTY = 16
"""How many fetches without a readable record (markers, compacted offsets) are followed."""


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


def measure(
    cluster: Cluster, offsets: Mapping[TopicPartition, int | None], now_ms: int
) -> dict[TopicPartition, PartitionLag]:
    """Return the lag of each partition from an offset (None: no committed offset).

    The lag of deleted partitions and of partitions without a leader is not known.
    """
    return measure_groups(cluster, {"": offsets}, now_ms).lags[""]


class GroupLags(NamedTuple):
    """The lag of groups, by group and partition, and the errors of partitions without an end."""

    lags: dict[str, dict[TopicPartition, PartitionLag]]
    faults: dict[TopicPartition, KafkaError]


def measure_groups(
    cluster: Cluster, groups: Mapping[str, Mapping[TopicPartition, int | None]], now_ms: int
) -> GroupLags:
    """Return the lag of many groups, with one ListOffsets for each leader.

    Args:
        groups: the offsets of each group, as for `measure`.
    """
    wanted = {partition for offsets in groups.values() for partition in offsets}
    found, faults = ask_each(cluster, dict.fromkeys(sorted(wanted), LATEST))
    ends = {partition: at.offset for partition, at in found.items()}
    behind = {
        (partition, offset)
        for offsets in groups.values()
        for partition, offset in offsets.items()
        if offset is not None and offset < ends.get(partition, offset)
    }
    timestamps = _timestamps(cluster, behind, ends)

    def lag(partition: TopicPartition, offset: int | None) -> PartitionLag:
        end = ends.get(partition)
        if end is None or offset is None:
            return PartitionLag(end)
        age_ms = 0 if end == offset else None
        timestamp = timestamps.get((partition, offset), NO_TIMESTAMP)
        if timestamp >= 0:
            age_ms = max(now_ms - timestamp, 0)
        return PartitionLag(end, end - offset, age_ms)

    lags = {
        group: {partition: lag(partition, offset) for partition, offset in offsets.items()}
        for group, offsets in groups.items()
    }
    return GroupLags(lags, faults)


def _timestamps(
    cluster: Cluster, positions: Iterable[Position], ends: Mapping[TopicPartition, int]
) -> dict[Position, int]:
    """Return the timestamps of the first records at or after offsets, where leaders answer."""
    by_leader: dict[int, dict[TopicPartition, _Search]] = {}
    found: dict[Position, int] = {}
    for partition, offset in positions:
        with suppress(KafkaError):  # it has no leader any more
            leader = cluster.leader(partition)
            of_leader = by_leader.setdefault(leader.leader_id, {})
            search = of_leader.setdefault(partition, _Search(leader.leader_epoch, {}))
            search.wanted[offset] = [offset]
    for leader_id, searches in by_leader.items():
        with suppress(KafkaError):  # it goes away
            _ask_leader(cluster.connection(leader_id), searches, ends, found)
    return found


class _Search(NamedTuple):
    """The search for the next records of groups in one partition.

    Attributes:
        wanted: by the offset of the next fetch, the committed offsets that need a record from
            there.
    """

    leader_epoch: int
    wanted: dict[int, list[int]]


def _ask_leader(
    connection: Connection,
    searches: dict[TopicPartition, _Search],
    ends: Mapping[TopicPartition, int],
    found: dict[Position, int],
) -> None:
    """Fetch from one leader until every search has ended; each time from all partitions."""
    rounds = sum(len(search.wanted) for search in searches.values()) + MAX_EMPTY
    for _ in range(rounds):
        asked = {at: min(search.wanted) for at, search in searches.items() if search.wanted}
        if not asked:
            return
        asks = [Ask(at, offset, searches[at].leader_epoch) for at, offset in asked.items()]
        fetcher.send_fetch(connection, asks, FIRST_BATCHES)
        has_progress = False
        for answer in fetcher.receive_fetch(connection, asked):
            at = answer.partition
            if answer.error is not None:
                is_gone = answer.error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                _drop(searches[at].wanted, asked[at] if is_gone else None)
                has_progress = True
                continue
            if answer.next_offset > asked[at]:
                _use(answer, searches[at].wanted, ends[at], found)
                has_progress = True
        if not has_progress:
            return


def _drop(wanted: dict[int, list[int]], offset: int | None) -> None:
    """Give up one offset (gone by retention), or all (None: its leader refuses the partition)."""
    if offset is None:
        wanted.clear()
    else:
        del wanted[offset]


def _use(
    answer: Fetched, wanted: dict[int, list[int]], end: int, found: dict[Position, int]
) -> None:
    """Find the next records of all offsets that a response covers."""
    covered = [at for at in wanted if at < answer.next_offset]
    for offset in [offset for at in covered for offset in wanted.pop(at)]:
        try:
            records = RecordStream(answer, offset).take(1)
        except KafkaError:  # damaged
            continue
        if records:
            found[answer.partition, offset] = records[0].timestamp
        elif answer.next_offset < end:
            wanted.setdefault(answer.next_offset, []).append(offset)
