"""How far a group is behind: in records, and in time by the record it has to read next.

Owns the arithmetic and the fetches that find those records, of all partitions of a leader at
once; keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from plog.client import fetcher
from plog.client.connection import Connection
from plog.client.fetcher import Ask, Fetched, Limits
from plog.client.metadata import Cluster
from plog.client.offsets import LATEST, ask_leaders
from plog.client.record_stream import RecordStream
from plog.errors import KafkaError, UnknownTopicOrPartition
from plog.types import NO_TIMESTAMP, TopicPartition

FIRST_BATCHES = Limits(
    max_wait_ms=0, min_bytes=0, max_bytes=8 * 1024 * 1024, partition_max_bytes=32 * 1024
)
"""Room for a batch of most partitions. Of larger ones each answer has the first all the same
(KIP-74), so that each fetch leaves fewer to ask for."""
MOST_EMPTY = 16
"""Stretches without any record to read (markers, what compaction removed) are followed so far."""


class PartitionLag(NamedTuple):
    """Where a log ends, and what of it a group has not read: records, and the age of the oldest.

    Each is None when it is not known: no leader tells the end, nothing is committed, or the next
    record is gone or tells no time. `records` counts offsets, as Kafka's tools do, and is
    negative where the log ends before what was committed.
    """

    log_end: int | None = None
    records: int | None = None
    age_ms: int | None = None


def measure(
    cluster: Cluster, offsets: Mapping[TopicPartition, int | None], now_ms: int
) -> dict[TopicPartition, PartitionLag]:
    """Return the lag of each partition from an offset, None where nothing is committed.

    Partitions that are gone, or have no leader now, have no lag that is known.
    """
    ends = _ends(cluster, offsets)
    behind = {
        partition: offset
        for partition, offset in offsets.items()
        if offset is not None and offset < ends.get(partition, offset)
    }
    timestamps = _timestamps(cluster, behind, ends)
    found: dict[TopicPartition, PartitionLag] = {}
    for partition, offset in offsets.items():
        end = ends.get(partition)
        if end is None or offset is None:
            found[partition] = PartitionLag(end)
            continue
        lag = end - offset
        age_ms = 0 if lag == 0 else None
        timestamp = timestamps.get(partition, NO_TIMESTAMP)
        if timestamp >= 0:
            age_ms = max(now_ms - timestamp, 0)
        found[partition] = PartitionLag(end, lag, age_ms)
    return found


def _ends(
    cluster: Cluster, partitions: Mapping[TopicPartition, object]
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    cluster.refresh(sorted({partition.topic for partition in partitions}))
    led = [partition for partition in partitions if cluster.known_leader(partition) is not None]
    try:
        found, _ = ask_leaders(cluster, dict.fromkeys(led, LATEST))
    except UnknownTopicOrPartition:  # deleted just now
        return {}
    return {partition: at.offset for partition, at in found.items()}


def _timestamps(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return when the first record at or after each offset was written, where somebody tells."""
    by_leader: dict[int, dict[TopicPartition, Ask]] = {}
    found: dict[TopicPartition, int] = {}
    for partition, offset in offsets.items():
        with suppress(KafkaError):  # it has no leader any more
            leader = cluster.leader(partition)
            ask = Ask(partition, offset, leader.leader_epoch)
            by_leader.setdefault(leader.leader_id, {})[partition] = ask
    for leader_id, asks in by_leader.items():
        with suppress(KafkaError):  # it goes away
            _ask_leader(cluster.connection(leader_id), asks, ends, found)
    return found


def _ask_leader(
    connection: Connection,
    left: dict[TopicPartition, Ask],
    ends: Mapping[TopicPartition, int],
    found: dict[TopicPartition, int],
) -> None:
    """Ask one leader again and again for what is left, each time of everything."""
    for _ in range(len(left) + MOST_EMPTY):
        asked = {partition: ask.offset for partition, ask in left.items()}
        fetcher.send_fetch(connection, left.values(), FIRST_BATCHES)
        for answer in fetcher.receive_fetch(connection, asked):
            ask = left.pop(answer.partition)
            try:
                timestamp = _first_timestamp(answer, ask.offset)
            except KafkaError:  # gone by retention, or damaged
                continue
            if timestamp is not None:
                found[ask.partition] = timestamp
            elif answer.next_offset < ends[ask.partition]:
                left[ask.partition] = ask._replace(offset=answer.next_offset)
        if not left or asked == {partition: ask.offset for partition, ask in left.items()}:
            return


def _first_timestamp(answer: Fetched, offset: int) -> int | None:
    """Return when the first record of an answer was written; None where it has none."""
    if answer.error is not None:
        raise answer.error
    taken = RecordStream(answer, offset).take(1)
    return taken[0].timestamp if taken else None
