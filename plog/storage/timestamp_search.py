"""Finds records by their timestamps, exact to the record.

Owns the descent: segment by its largest timestamp, time index, offset index, batch
headers, and only then the records of one batch. An entry that does not fit the batch it
names is not used. Never writes, and never asks whether the record may be seen: that is
for the high watermark and the isolation level.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakSet

from plog._native import records
from plog._native.batch import BatchHeader
from plog._native.partition_log import Segment
from plog._native.records import Record
from plog.errors import CorruptRecord
from plog.storage.segment_scan import walk_headers
from plog.types import NO_TIMESTAMP

_log = logging.getLogger(__name__)

_distrusted: WeakSet[Segment] = WeakSet()
"""Segments whose time index is known to be wrong."""


class TimestampedOffset(NamedTuple):
    """Where a record is, and when it was."""

    offset: int
    timestamp: int
    leader_epoch: int


def first_at_or_after(
    segments: Sequence[Segment], timestamp_ms: int, log_start_offset: int
) -> TimestampedOffset | None:
    """Return the first record whose timestamp is at least `timestamp_ms`; None when none is.

    Raises:
        CorruptRecord: a batch on the way does not read as one.
        OSError: a file cannot be read.
    """
    for segment in segments:
        if segment.max_timestamp < timestamp_ms or segment.next_offset <= log_start_offset:
            continue
        indexed = _indexed_offset(segment, timestamp_ms)
        for position, header in _headers_from(segment, max(indexed, log_start_offset)):
            if header.max_timestamp < timestamp_ms or header.last_offset < log_start_offset:
                continue
            for record in _records(segment, position, header):
                if record.timestamp >= timestamp_ms and record.offset >= log_start_offset:
                    return _found(record, header)
    return None


def of_max_timestamp(
    segments: Sequence[Segment], log_start_offset: int
) -> TimestampedOffset | None:
    """Return the first record that has the largest timestamp of the log; None without any.

    Raises:
        CorruptRecord: a batch on the way does not read as one.
        OSError: a file cannot be read.
    """
    visible = [segment for segment in segments if segment.next_offset > log_start_offset]
    largest = max((segment.max_timestamp for segment in visible), default=NO_TIMESTAMP)
    if largest == NO_TIMESTAMP:
        return None
    segment = next(segment for segment in visible if segment.max_timestamp == largest)
    if segment.max_timestamp_offset < log_start_offset:
        # The record is still in the file, but DeleteRecords has hidden it.
        return _largest_from(visible, log_start_offset)
    for position, header in _headers_from(segment, segment.max_timestamp_offset):
        if header.last_offset < segment.max_timestamp_offset:
            continue
        for record in _records(segment, position, header):
            if record.timestamp == largest and record.offset >= log_start_offset:
                return _found(record, header)
        break
    return _largest_from(visible, log_start_offset)


def _largest_from(segments: Sequence[Segment], log_start_offset: int) -> TimestampedOffset | None:
    best: tuple[Segment, int, BatchHeader] | None = None
    for segment in segments:
        for position, header in _headers_from(segment, log_start_offset):
            if header.last_offset < log_start_offset or header.max_timestamp == NO_TIMESTAMP:
                continue
            if not header.records_count:  # what compaction has left of it
                continue
            if best is None or header.max_timestamp > best[2].max_timestamp:
                best = segment, position, header
    if best is None:
        return None
    segment, position, header = best
    visible = [
        record
        for record in _records(segment, position, header)
        if record.offset >= log_start_offset
    ]
    if not visible:
        return None
    return _found(max(visible, key=lambda record: (record.timestamp, -record.offset)), header)


def _headers_from(segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the batches of a segment, from the one that holds `offset` or a bit before.

    Raises CorruptRecord: an offset is not in order.
    """
    _, start = segment.lookup_offset(offset)
    expected: int | None = None
    for position, header in walk_headers(segment.read, start, segment.size_bytes):
        if header.base_offset < (expected or 0) or header.last_offset >= segment.next_offset:
            raise CorruptRecord(
                f"segment {segment.base_offset}: the batch at {position} has offsets"
                f" {header.base_offset} to {header.last_offset}"
            )
        expected = header.next_offset
        yield position, header


def _indexed_offset(segment: Segment, timestamp_ms: int) -> int:
    """Return the offset before which no record is as late as a time, by the time index."""
    timestamp, offset = segment.lookup_time(timestamp_ms)
    if timestamp == NO_TIMESTAMP:
        return segment.base_offset
    for _, header in _headers_from(segment, offset):
        if header.last_offset >= offset:
            if header.base_offset <= offset and header.max_timestamp == timestamp:
                return offset
            break
    if segment not in _distrusted:
        _distrusted.add(segment)
        _log.warning(
            "segment %d: its time index has timestamp %d for offset %d, the batch there has"
            " another: lookups by time read the batches instead",
            segment.base_offset,
            timestamp,
            offset,
        )
    return segment.base_offset


def _records(segment: Segment, position: int, header: BatchHeader) -> list[Record]:
    return records.walk(segment.read(position, header.size_bytes))


def _found(record: Record, header: BatchHeader) -> TimestampedOffset:
    return TimestampedOffset(record.offset, record.timestamp, header.partition_leader_epoch)
