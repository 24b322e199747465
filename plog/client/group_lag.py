"""The lag of a group: in records, and in time by the timestamp of the next record it reads.

Owns the arithmetic and the fetches that find those records, for all partitions of a leader at once.
Keeps no state.
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
"""Enough for one batch of most partitions. A response always has the first batch, even a larger one
(KIP-74), so each fetch leaves fewer partitions."""
MAX_EMPTY = 16
"""How many fetches without a readable record (markers, compacted offsets) are followed."""


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
    """Return the timestamps of the first records at or after offsets, where leaders answer."""
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
    """Fetch from one leader until every partition has given a record; each time all of them."""
    for _ in range(len(left) + MAX_EMPTY):
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
    """Return the timestamp of the first record of a response; None without a record."""
    if answer.error is not None:
        raise answer.error
    taken = RecordStream(answer, offset).take(1)
    return taken[0].timestamp if taken else None
