"""ListOffsets: named ends, times exact to the record, segments of version 0; and epochs' ends."""

from __future__ import annotations

import struct
import time
from types import SimpleNamespace
from typing import cast

import pytest

from plog.cluster.partition import Partition
from plog.errors import ErrorCode, KafkaStorageError
from plog.handlers.list_offsets import (
    EARLIEST,
    LATEST,
    SegmentStart,
    _segment_starts,
    offsets_before,
)
from plog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from plog.protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from plog.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.handlers.wire import WAIT_MS, Speaker, create_topic, make_batch, produce

LATEST_MS, EARLIEST_MS, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
EARLIEST_PENDING_UPLOAD = -6
BEGIN = 1_600_000_000_000


def ask(
    connection: Speaker,
    topic: str,
    *timestamps: int,
    version: int = 9,
    replica_id: int = -1,
    isolation_level: int = 0,
    leader_epoch: int = -1,
    most: int = 100,
    partitions: tuple[int, ...] = (0,),
) -> list[ListOffsetsPartitionResponse]:
    parts = [
        ListOffsetsPartition(
            partition_index=index,
            timestamp=timestamp,
            current_leader_epoch=leader_epoch,
            max_num_offsets=most if version == 0 else 1,
        )
        for index in partitions
        for timestamp in timestamps
    ]
    request = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=parts)],
    )
    return connection.ask(request, version).topics[0].partitions


def test_batch_that_expands_to_very_much_is_searched_too(wire: Speaker) -> None:
    topic, _ = create_topic(wire, max_message_bytes=4 << 20)
    batch = make_batch([bytes(300 << 20)], codec=4, timestamps=[BEGIN])
    assert produce(wire, topic, batch).error_code == ErrorCode.NONE
    (found,) = ask(wire, topic, BEGIN)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.NONE, 0, BEGIN)


def timed_topic(connection: Speaker) -> str:
    """Return a topic of 30 records in batches of 3, one each 10 ms, the newest in the middle."""
    topic, _ = create_topic(connection, message_timestamp_before_max_ms=2**63 - 1)
    for first in range(0, 30, 3):
        times = [BEGIN + 10 * n for n in range(first, first + 3)]
        if first == 15:
            times[1] = BEGIN + 10_000
        produce(connection, topic, make_batch([b"v"] * 3, timestamps=times, codec=first % 2))
    return topic


@pytest.mark.parametrize("version", range(1, 10))
def test_named_ends(wire: Speaker, version: int) -> None:
    topic = timed_topic(wire)
    asked = DeleteRecordsTopic(
        name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=4)]
    )
    wire.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=WAIT_MS))
    epoch = 0 if version >= 4 else -1
    for isolation_level in (0, 1):
        for replica_id in (-1, -2, 3):
            for timestamp, expected in ((LATEST_MS, 30), (EARLIEST_MS, 4)):
                (found,) = ask(
                    wire,
                    topic,
                    timestamp,
                    version=version,
                    isolation_level=isolation_level if version >= 2 else 0,
                    replica_id=replica_id,
                )
                assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (
                    (0, expected, -1, epoch)
                )


@pytest.mark.parametrize(
    ("timestamp", "since", "expected"),
    [
        (MAX_TIMESTAMP, 7, (16, BEGIN + 10_000, 0)),
        (EARLIEST_LOCAL, 8, (0, -1, 0)),
        (LATEST_TIERED, 9, (-1, -1, -1)),
        (EARLIEST_PENDING_UPLOAD, 11, (-1, -1, -1)),
    ],
)
def test_later_names_have_their_version(
    wire: Speaker, timestamp: int, since: int, expected: tuple[int, int, int]
) -> None:
    topic = timed_topic(wire)
    for version in range(12):
        (found,) = ask(wire, topic, timestamp, version=version)
        if version < since:
            assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
        else:
            assert found.error_code == 0
            assert (found.offset, found.timestamp, found.leader_epoch) == expected


@pytest.mark.parametrize("version", range(1, 10))
@pytest.mark.parametrize("timestamp", [-6, -7, -(2**63)])
def test_negative_times_without_a_name_are_refused(
    wire: Speaker, topic: str, version: int, timestamp: int
) -> None:
    (found,) = ask(wire, topic, timestamp, version=version)
    assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize("version", [1, 3, 4, 9])
@pytest.mark.parametrize(
    ("timestamp", "offset", "found_at"),
    [
        (0, 0, BEGIN),
        (BEGIN, 0, BEGIN),
        (BEGIN + 1, 1, BEGIN + 10),
        (BEGIN + 40, 4, BEGIN + 40),
        (BEGIN + 155, 16, BEGIN + 10_000),
        (BEGIN + 171, 16, BEGIN + 10_000),
        (BEGIN + 10_000, 16, BEGIN + 10_000),
        (BEGIN + 10_001, -1, -1),
        (2**62, -1, -1),
    ],
)
def test_times_are_exact_to_the_record(
    wire: Speaker, version: int, timestamp: int, offset: int, found_at: int
) -> None:
    topic = timed_topic(wire)
    (found,) = ask(wire, topic, timestamp, version=version)
    assert (found.error_code, found.offset, found.timestamp) == (0, offset, found_at)
    assert found.leader_epoch == (0 if version >= 4 and offset >= 0 else -1)


def test_empty_partition(wire: Speaker, topic: str) -> None:
    for timestamp, expected in (
        (LATEST_MS, 0),
        (EARLIEST_MS, 0),
        (MAX_TIMESTAMP, -1),
        (0, -1),
        (EARLIEST_LOCAL, 0),
        (LATEST_TIERED, -1),
    ):
        (found,) = ask(wire, topic, timestamp)
        assert (found.error_code, found.offset) == (0, expected)


def test_one_partition_s_error_leaves_the_others_alone(wire: Speaker) -> None:
    topic, _ = create_topic(wire, partitions=2)
    found = ask(wire, topic, LATEST_MS, partitions=(0, 5, 1))
    assert [part.error_code for part in found] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    (twice, again) = ask(wire, topic, LATEST_MS, 0)
    assert {twice.error_code, again.error_code} == {ErrorCode.INVALID_REQUEST}
    (twice, again) = ask(wire, topic, LATEST_MS, 0, version=0)
    assert {twice.error_code, again.error_code} == {0}


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, 0),
        (0, 0),
        (1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-2, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_leader_epochs_fence(wire: Speaker, topic: str, epoch: int, expected: int) -> None:
    (found,) = ask(wire, topic, LATEST_MS, leader_epoch=epoch)
    assert found.error_code == expected


# -- version 0


def test_version_0_lists_segments_newest_first(wire: Speaker) -> None:
    topic, _ = create_topic(
        wire, segment_bytes=14 + 61 + 300, message_timestamp_before_max_ms=2**63 - 1
    )
    for n in range(4):
        produce(wire, topic, make_batch([b"x" * 250], timestamps=[BEGIN + n]))
    assert ask(wire, topic, LATEST_MS, version=0)[0].old_style_offsets == [4, 3, 2, 1, 0]
    assert ask(wire, topic, LATEST_MS, version=0, most=2)[0].old_style_offsets == [4, 3]
    assert ask(wire, topic, EARLIEST_MS, version=0)[0].old_style_offsets == [0]
    assert ask(wire, topic, BEGIN + 2, version=0)[0].old_style_offsets == [2, 1, 0]
    assert ask(wire, topic, BEGIN - 1, version=0)[0].old_style_offsets == []
    future = int(time.time() * 1000) + 60_000
    assert ask(wire, topic, future, version=0, most=1)[0].old_style_offsets == [4]


@pytest.mark.parametrize(
    ("timestamp", "most", "expected"),
    [
        (LATEST, 10, [30, 20, 10, 5]),
        (LATEST, 1, [30]),
        (LATEST, 0, []),
        (LATEST, -7, []),
        (EARLIEST, 10, [5]),
        (EARLIEST, 0, []),
        (99, 10, []),
        (100, 10, [5]),
        (250, 10, [10, 5]),
        (1000, 2, [30, 20]),
    ],
)
def test_offsets_before_a_time(timestamp: int, most: int, expected: list[int]) -> None:
    starts = [
        SegmentStart(5, 100),
        SegmentStart(10, 200),
        SegmentStart(20, 300),
        SegmentStart(30, 1000),
    ]
    assert offsets_before(starts, timestamp, most) == expected


def test_offsets_before_of_an_emptied_log_are_told_once() -> None:
    starts = [SegmentStart(9, 1), SegmentStart(9, 2), SegmentStart(9, 3)]
    assert offsets_before(starts, LATEST, 10) == [9]


# -- OffsetForLeaderEpoch


@pytest.mark.parametrize("version", range(5))
def test_ends_of_epochs(wire: Speaker, version: int) -> None:
    topic, _ = create_topic(wire)
    produce(wire, topic, make_batch([b"v"] * 3))

    def end(epoch: int, partition: int = 0, current: int = -1) -> tuple[int, int, int]:
        part = OffsetForLeaderPartition(
            partition=partition,
            leader_epoch=epoch,
            current_leader_epoch=current if version >= 2 else -1,
        )
        asked = OffsetForLeaderTopic(topic=topic, partitions=[part])
        request = OffsetForLeaderEpochRequest(topics=[asked], replica_id=-1 if version >= 3 else -2)
        found = wire.ask(request, version).topics[0].partitions[0]
        assert found.partition == partition
        return found.error_code, found.leader_epoch, found.end_offset

    epoch = 0 if version >= 1 else -1
    assert end(0) == (0, epoch, 3)
    assert end(1) == (0, -1, -1)
    assert end(-1) == (0, -1, -1)
    assert end(0, partition=4) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    if version >= 2:
        assert end(0, current=0) == (0, 0, 3)
        assert end(0, current=1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


def test_stamped_epoch_is_the_leaders(wire: Speaker, topic: str) -> None:
    (found,) = ask(wire, topic, LATEST_MS)
    produce(wire, topic, make_batch())
    assert struct.pack(">i", found.leader_epoch) == b"\0\0\0\0"


def test_segments_of_a_log_that_is_dropped_meanwhile_are_a_storage_error() -> None:
    dropped = SimpleNamespace(native=SimpleNamespace(segments=[]), topic_partition="t-0")
    with pytest.raises(KafkaStorageError, match="t-0 is offline"):
        _segment_starts(cast("Partition", SimpleNamespace(log=dropped)), 0, BEGIN)
