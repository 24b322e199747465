"""ListOffsets: the offset at a time, or at one of the named ends of a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from plog.cluster.partition import Partition
from plog.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from plog.handlers.context import Context
from plog.handlers.registry import handles
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from plog.storage.log import Log
from plog.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
"""KIP-405, KIP-1023: without tiered storage the local log is the whole log, nothing is tiered, and
nothing waits for that."""
SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""Lowest version that may ask for each of the named ends."""
OFFSET_NOT_AVAILABLE_SINCE = 5
READ_COMMITTED = 1
CONSUMER = -1
"""As a replica id; whoever says another one sees the log's real end."""
LEADER_EPOCHS_SINCE = 4


class Found(NamedTuple):
    """An offset, the timestamp of its record and its leader epoch; -1 each where there is none."""

    offset: int
    timestamp: int = NO_TIMESTAMP
    leader_epoch: int = NO_EPOCH


class SegmentStart(NamedTuple):
    """Where a segment begins (or the log ends), and up to when its records go."""

    offset: int
    timestamp: int


@handles(ListOffsetsRequest, versions="0-11")
async def list_offsets(ctx: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Look every partition up."""
    named = Counter(
        TopicPartition(topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            at = TopicPartition(topic.name, asked.partition_index)
            try:
                if named[at] > 1 and ctx.version > 0:
                    raise InvalidRequest(f"{at} appears twice in the request")
                answers.append(await _list_partition(ctx, request, at, asked))
            except KafkaError as refusal:
                answers.append(
                    ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=refusal.code,
                        old_style_offsets=[],
                    )
                )
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


async def _list_partition(
    ctx: Context, request: ListOffsetsRequest, at: TopicPartition, asked: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    _check_timestamp(asked.timestamp, ctx.version)
    partition = ctx.services.replicas.leader(at, asked.current_leader_epoch)
    end = partition.log.log_end_offset
    if request.replica_id == CONSUMER:
        end = partition.readable_end(read_committed=request.isolation_level == READ_COMMITTED)
        if asked.timestamp == LATEST:
            _check_end_is_known(partition, ctx.version)
    answer = ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, error_code=ErrorCode.NONE, old_style_offsets=[]
    )
    if ctx.version == 0:
        now_ms = ctx.services.clock.now_ms()
        answer.old_style_offsets = offsets_before(
            _segment_starts(partition, end, now_ms), asked.timestamp, asked.max_num_offsets
        )
        return answer
    found = _known(partition, asked.timestamp, end)
    if found is None:
        log = partition.log
        found = await ctx.at_disk(log.log_dir, _search, log, asked.timestamp, end)
        if found.offset == NO_OFFSET and request.replica_id == CONSUMER:
            _check_end_is_known(partition, ctx.version)
    answer.offset, answer.timestamp = found.offset, found.timestamp
    if ctx.version >= LEADER_EPOCHS_SINCE:
        answer.leader_epoch = found.leader_epoch
    return answer


def _check_end_is_known(partition: Partition, version: int) -> None:
    """Refuse the offsets of a new leader until it knows what the one before has committed.

    Else a consumer would see its end go back (KIP-207).
    """
    led = partition.log.native.epoch_start()
    if led is None or partition.log.high_watermark >= led[1]:
        return
    text = f"{partition.topic_partition} has a new leader, whose high watermark lags"
    if version < OFFSET_NOT_AVAILABLE_SINCE:
        raise LeaderNotAvailable(text)
    raise OffsetNotAvailable(text)


def _check_timestamp(timestamp: int, version: int) -> None:
    """Refuse the named ends of later versions, and negative times that name nothing."""
    since = SINCE.get(timestamp)
    if since is None and timestamp < 0:
        raise UnsupportedVersion(f"invalid timestamp {timestamp}")
    if since is not None and version < since:
        raise UnsupportedVersion(f"timestamp {timestamp} needs ListOffsets v{since}")


def _known(partition: Partition, timestamp: int, end: int) -> Found | None:
    """Return what is found without a look at the files, if it is one of the log's ends."""
    log = partition.log
    if timestamp == LATEST:
        return Found(end, leader_epoch=partition.leadership.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return Found(log.log_start_offset, leader_epoch=log.epoch_at(log.log_start_offset))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return Found(NO_OFFSET)
    return None


def _search(log: Log, timestamp: int, end: int) -> Found:
    """Search the files, which may be cold."""
    found = (
        log.max_timestamp_offset()
        if timestamp == MAX_TIMESTAMP
        else log.offset_for_timestamp(timestamp)
    )
    if found is None or found.offset >= end:
        return Found(NO_OFFSET)
    return Found(found.offset, found.timestamp, found.leader_epoch)


def _segment_starts(partition: Partition, end: int, now_ms: int) -> list[SegmentStart]:
    log = partition.log
    segments = log.native.segments
    if not segments:
        raise KafkaStorageError(f"{log.topic_partition} is offline")
    starts = [
        SegmentStart(max(segment.base_offset, log.log_start_offset), segment.max_timestamp)
        for segment in segments
    ]
    if segments[-1].size_bytes > 0:
        starts.append(SegmentStart(end, now_ms))
    return starts


def offsets_before(starts: Sequence[SegmentStart], timestamp: int, most: int) -> list[int]:
    """Return where segments up to a time begin, newest first, as version 0 (0.8 to 0.10) has it.

    Args:
        starts: the segments in order, and last the log's end, of now.
        timestamp: a time in ms, LATEST or EARLIEST.
        most: how many offsets are wanted.
    """
    if timestamp == EARLIEST:
        starts = starts[:1]
    elif timestamp != LATEST:
        while starts and starts[-1].timestamp > timestamp:
            starts = starts[:-1]
    newest_first = sorted({start.offset for start in starts}, reverse=True)
    return newest_first[: max(most, 0)]
