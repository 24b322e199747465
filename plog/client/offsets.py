"""Look up offsets by timestamp, and the ends of partitions, at their leaders (ListOffsets).

Owns the grouping by leader, the retries, and the types for offsets. Keeps no state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from plog.client.attempts import wait_for_next
from plog.client.metadata import Cluster
from plog.errors import (
    ErrorCode,
    KafkaError,
    LeaderNotAvailable,
    UnknownTopicOrPartition,
    error_for,
)
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from plog.types import NO_EPOCH, TopicPartition

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
CONSUMER_REPLICA = -1


class OffsetAndTimestamp(NamedTuple):
    """The result of a look-up by timestamp; the offset is -1 if no record is that late."""

    offset: int
    timestamp: int
    leader_epoch: int


class OffsetAndMetadata(NamedTuple):
    """A position, as groups commit it.

    `offset` is the next one to read. `metadata` is a text of the application, which the group keeps
    with it; at most the brokers' offset.metadata.max.bytes. `leader_epoch` is that of the last
    record read, -1 if it is not known (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]
"""Offsets to commit; an int stands for an offset without metadata."""


def with_metadata(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """Return an offset with the defaults of its metadata."""
    return OffsetAndMetadata(offset) if isinstance(offset, int) else offset


def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    isolation_level: int = 0,
    *,
    timeout_ms: int = 30_000,
    election_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Ask each leader for the offsets at these times.

    Tries again until `timeout_ms` if a leader moves or a connection breaks.

    Args:
        times: ms since 1970, or LATEST, EARLIEST, MAX_TIMESTAMP.
        isolation_level: 1 makes LATEST the last stable offset.
        election_ms: how long a partition may have no leader; by default as long as `timeout_ms`.

    Raises:
        UnknownTopicOrPartition: no such topic or partition.
        KafkaError: a leader refused, or no leader answered in time.
    """
    begun = time.monotonic()
    deadline = begun + timeout_ms / 1000
    election_end = deadline if election_ms is None else begun + election_ms / 1000
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    left = dict(times)
    while left:
        answered, fault = ask_leaders(cluster, left, isolation_level)
        found.update(answered)
        left = {p: at for p, at in left.items() if p not in found}
        if fault is None:
            continue
        has_leader = not isinstance(fault, LeaderNotAvailable)
        if not fault.retriable or not wait_for_next(deadline if has_leader else election_end):
            raise fault
        for partition in left:
            cluster.forget(partition.topic)
    return {partition: found[partition] for partition in times}


def ask_leaders(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation_level: int = 0
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], KafkaError | None]:
    """Ask each leader once.

    Returns:
        The offsets found, and the error of the first other partition (None: all were found).

    Raises:
        UnknownTopicOrPartition: no such topic or partition.
    """
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    fault: KafkaError | None = None
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, timestamp in times.items():
        try:
            leader_id = cluster.leader(partition).leader_id
        except UnknownTopicOrPartition:
            raise  # the metadata is of just now
        except LeaderNotAvailable as away:
            fault = fault or away
            continue
        except KafkaError as lost:
            return {}, lost  # no broker answers Metadata
        by_leader.setdefault(leader_id, {})[partition] = timestamp
    for node_id, asked in by_leader.items():
        try:
            answered, refused = _ask(cluster, node_id, asked, isolation_level)
        except KafkaError as lost:
            fault = fault or lost
            continue
        found.update(answered)
        fault = fault or next(iter(refused.values()), None)
    if fault is None and len(found) < len(times):
        left = ", ".join(str(partition) for partition in times if partition not in found)
        raise UnknownTopicOrPartition(f"the ListOffsets response lacks {left}")
    return found, fault


def ask_each(
    cluster: Cluster, times: Mapping[TopicPartition, int], isolation_level: int = 0
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], dict[TopicPartition, KafkaError]]:
    """Ask each leader once, with the metadata of now; an error of one does not stop the others.

    Returns:
        The offsets found, and the error of every other partition.

    Raises:
        KafkaError: no broker answers.
    """
    if not times:
        return {}, {}
    topics = sorted({partition.topic for partition in times})
    cluster.refresh(topics)
    missing: dict[str, KafkaError] = {}
    for topic in topics:
        try:
            cluster.topic(topic)
        except KafkaError as fault:
            missing[topic] = fault
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    faults: dict[TopicPartition, KafkaError] = {}
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, timestamp in times.items():
        try:
            if partition.topic in missing:
                raise missing[partition.topic]
            leader_id = cluster.leader(partition).leader_id
        except KafkaError as fault:
            faults[partition] = fault
            continue
        by_leader.setdefault(leader_id, {})[partition] = timestamp
    for node_id, asked in by_leader.items():
        try:
            answered, refused = _ask(cluster, node_id, asked, isolation_level)
        except KafkaError as lost:
            answered, refused = {}, dict.fromkeys(asked, lost)
        found.update(answered)
        faults.update(refused)
    for partition in times.keys() - found.keys() - faults.keys():
        faults[partition] = UnknownTopicOrPartition(f"the ListOffsets response lacks {partition}")
    return found, faults


def _ask(
    cluster: Cluster, node_id: int, times: Mapping[TopicPartition, int], isolation_level: int
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], dict[TopicPartition, KafkaError]]:
    """Ask one leader; return its offsets and its refusals."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for partition, timestamp in times.items():
        topics.setdefault(partition.topic, []).append(
            ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=cluster.leader(partition).leader_epoch,
                timestamp=timestamp,
            )
        )
    answer = cluster.connection(node_id).call(
        ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA,
            isolation_level=isolation_level,
            topics=[
                ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()
            ],
        ),
        ListOffsetsResponse,
    )
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    refused: dict[TopicPartition, KafkaError] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            at = TopicPartition(topic.name, part.partition_index)
            if part.error_code == ErrorCode.NONE:
                found[at] = OffsetAndTimestamp(part.offset, part.timestamp, part.leader_epoch)
            else:
                text = f"offsets of {at}: {error_for(part.error_code)}"
                refused[at] = error_for(part.error_code, text)
    return found, refused
