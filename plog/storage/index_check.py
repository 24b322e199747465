"""Checks the indexes of a segment against its batches, header by header.

For a clean shutdown without a record of the derived files: Kafka's, or that of an older plog. Owns
which entries are right; never rebuilds an index, and reads no records.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from plog._native.batch import BatchHeader
from plog._native.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from plog.storage.filesystem import Filesystem
from plog.storage.segment import IndexDistrusted, SegmentNumbers
from plog.storage.segment_files import LOG, OFFSET_INDEX, TIME_INDEX, path_of
from plog.storage.segment_scan import reader_of, walk_headers
from plog.types import NO_TIMESTAMP

_CHUNK_BYTES = 1 << 16


class SeenBatches(NamedTuple):
    """What the headers of a segment say."""

    has_markers: bool  # of transactions
    epoch_starts: list[tuple[int, int]]  # (leader epoch, first offset)


def check_entries(fs: Filesystem, directory: Path, numbers: SegmentNumbers) -> SeenBatches:
    """Check every index entry of a segment that `measure_segment` has measured.

    Raises:
        IndexDistrusted: an entry does not fit the batches, or the largest timestamp is missing.
        CorruptRecord: a header does not read as one.
        OSError: a file cannot be read.
    """
    base = numbers.base_offset
    offsets = _entries(fs, path_of(directory, base, OFFSET_INDEX), OFFSET_ENTRY_BYTES, 4)
    times = _entries(fs, path_of(directory, base, TIME_INDEX), TIME_ENTRY_BYTES, 8)
    offset_entry, time_entry = next(offsets, None), next(times, None)
    max_timestamp, latest_epoch = NO_TIMESTAMP, -1
    has_markers = False
    epoch_starts = []
    expected = base
    with fs.opened(path_of(directory, base, LOG)) as fd:
        for position, header in walk_headers(
            reader_of(fs, fd), 0, numbers.size_bytes, chunk_bytes=_CHUNK_BYTES
        ):
            if header.base_offset < expected:
                raise IndexDistrusted(
                    f"batch at {position}: base offset {header.base_offset}, expected {expected}"
                )
            expected = header.next_offset
            if offset_entry is not None and offset_entry[1] == position:
                if base + offset_entry[0] < header.base_offset:
                    raise IndexDistrusted(f"the offset index is wrong for byte {position}")
                offset_entry = next(offsets, None)
            if time_entry is not None and _holds(header, base + time_entry[1]):
                if not max_timestamp < time_entry[0] == header.max_timestamp:
                    raise IndexDistrusted(
                        f"the time index is wrong for offset {base + time_entry[1]}"
                    )
                time_entry = next(times, None)
            max_timestamp = max(max_timestamp, header.max_timestamp)
            has_markers |= header.is_control
            if header.partition_leader_epoch > latest_epoch:
                latest_epoch = header.partition_leader_epoch
                epoch_starts.append((latest_epoch, header.base_offset))
    if offset_entry is not None or time_entry is not None:
        raise IndexDistrusted("an index has entries that match no batch")
    if max_timestamp != numbers.max_timestamp:
        raise IndexDistrusted(
            f"the time index goes up to {numbers.max_timestamp}, the batches to {max_timestamp}"
        )
    return SeenBatches(has_markers, epoch_starts)


def _holds(header: BatchHeader, offset: int) -> bool:
    return header.base_offset <= offset <= header.last_offset


def _entries(
    fs: Filesystem, path: Path, entry_bytes: int, first_bytes: int
) -> Iterator[tuple[int, int]]:
    data = fs.read_bytes(path)
    for at in range(0, len(data), entry_bytes):
        middle = at + first_bytes
        yield (
            int.from_bytes(data[at:middle], "big"),
            int.from_bytes(data[middle : at + entry_bytes], "big"),
        )
