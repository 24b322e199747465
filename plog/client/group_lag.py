"""How far a group is behind: in records, and in time by the record it has to read next.

Owns the arithmetic and the small fetches that find those records; keeps nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from plog.client import fetcher
from plog.client.fetcher import Ask, Limits
from plog.client.metadata import Cluster
from plog.client.offsets import LATEST, ask_leaders
from plog.client.record_stream import RecordStream
from plog.errors import KafkaError, NetworkException, UnknownTopicOrPartition
from plog.types import TopicPartition

ONE_BATCH = Limits(max_wait_ms=0, min_bytes=0, max_bytes=1, partition_max_bytes=1)
"""A fetch of one partition gives a whole batch all the same (KIP-74)."""
MOST_FETCHES = 16
"""A stretch without any record to read (markers, what compaction removed) is followed so far."""


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
    found: dict[TopicPartition, PartitionLag] = {}
    for partition, offset in offsets.items():
        end = ends.get(partition)
        if end is None or offset is None:
            found[partition] = PartitionLag(end)
            continue
        lag = end - offset
        age_ms = 0 if lag == 0 else None
        if lag > 0:
            timestamp = _next_timestamp(cluster, partition, offset, end)
            age_ms = None if timestamp is None else max(now_ms - timestamp, 0)
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


def _next_timestamp(
    cluster: Cluster, partition: TopicPartition, offset: int, end: int
) -> int | None:
    """Return when the first record at or after an offset was written, None where nobody tells."""
    try:
        return _fetch_timestamp(cluster, partition, offset, end)
    except KafkaError:  # gone by retention, damaged, or its leader went away
        return None


def _fetch_timestamp(
    cluster: Cluster, partition: TopicPartition, offset: int, end: int
) -> int | None:
    for _ in range(MOST_FETCHES):
        if offset >= end:
            return None
        leader = cluster.leader(partition)
        connection = cluster.connection(leader.leader_id)
        fetcher.send_fetch(connection, [Ask(partition, offset, leader.leader_epoch)], ONE_BATCH)
        answers = fetcher.receive_fetch(connection, {partition: offset})
        if not answers:
            raise NetworkException(f"{connection.peer} said nothing of {partition}")
        (answer,) = answers
        if answer.error is not None:
            raise answer.error
        taken = RecordStream(answer, offset).take(1)
        if taken:
            return taken[0].timestamp if taken[0].timestamp >= 0 else None
        if answer.next_offset <= offset:
            return None
        offset = answer.next_offset
    return None
