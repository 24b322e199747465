"""A segment's `.index` and `.timeindex`: whether they can be trusted, and how they are rebuilt.

Owns the cadence of entries (Kafka's: one when more than index.interval.bytes have
come since the last, before the current append counts) and the checks on open.
The entries' layout and search are the kernel `index`. Files have exactly the size
of their entries: nothing is preallocated, so an index with a zero tail is one of a
Kafka that crashed, and is rebuilt.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from plog._native import batch, index
from plog._native.batch import BatchHeader
from plog._native.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from plog.errors import CorruptRecord
from plog.storage.filesystem import Filesystem
from plog.storage.segment_files import OFFSET_INDEX, TIME_INDEX, path_of
from plog.storage.segment_scan import ReadAt
from plog.storage.shutdown_record import MARKED_BYTES, FileMark, SegmentMarks, mark_of_end
from plog.types import NO_TIMESTAMP

_ENTRY = struct.Struct(">ii")  # relative offset, position
_FAR_OFFSET = (1 << 63) - 1


class IndexBuilder:
    """Builds both indexes of a segment from its batches, in order."""

    def __init__(self, base_offset: int, index_interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._offsets = bytearray()
        self._times = bytearray()
        self._last_time_entry = NO_TIMESTAMP
        self._last_position = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset

    def on_batch(self, position: int, header: BatchHeader) -> None:
        """Take the batch at `position` of the file."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if position - self._last_position > self._interval_bytes:
            relative = header.last_offset - self._base_offset
            self._offsets += index.encode_offset_entry(relative, position)
            self._add_time_entry()
            self._last_position = position

    def finish(self) -> tuple[bytes, bytes]:
        """Add the final time entry, as Kafka does on roll and close; return both files' bytes."""
        self._add_time_entry()
        return bytes(self._offsets), bytes(self._times)

    @property
    def last_entry_position(self) -> int:
        """Position of the batch that has the last offset entry; 0 when there is none."""
        return self._last_position

    def _add_time_entry(self) -> None:
        if self.max_timestamp > self._last_time_entry:
            relative = self.max_timestamp_offset - self._base_offset
            self._times += index.encode_time_entry(self.max_timestamp, relative)
            self._last_time_entry = self.max_timestamp


def store_indexes(
    fs: Filesystem, directory: Path, base_offset: int, offsets: bytes, times: bytes
) -> None:
    """Put rebuilt indexes in place. Raises OSError.

    Those that say just that are written over, unsynced: a sync that failed may have left the
    page cache with bytes that the disk does not have, and nothing but a write makes the next
    sync bring them there.
    """
    for kind, data in ((OFFSET_INDEX, offsets), (TIME_INDEX, times)):
        path = path_of(directory, base_offset, kind)
        if not fs.exists(path) or fs.read_bytes(path) != data:
            fs.replace_bytes(path, data)
        elif data:
            with fs.opened(path) as fd:
                fs.pwrite(fd, data, 0)


def check_indexes(
    fs: Filesystem,
    offset_fd: int,
    time_fd: int,
    *,
    base_offset: int,
    log_bytes: int,
    thorough: bool,
    marks: SegmentMarks | None = None,
) -> tuple[int, int]:
    """Check both indexes; return their numbers of entries.

    `thorough` reads them whole; otherwise size and last entries must do. `marks` say what they
    held at a clean shutdown.

    Raises:
        CorruptRecord: they cannot be trusted and must be rebuilt.
    """
    offset_bytes = fs.size_bytes(offset_fd)
    time_bytes = fs.size_bytes(time_fd)
    offsets = _entries(fs, offset_fd, offset_bytes, OFFSET_ENTRY_BYTES, thorough)
    times = _entries(fs, time_fd, time_bytes, TIME_ENTRY_BYTES, thorough)
    if marks is not None:
        _check_mark(OFFSET_INDEX, mark_of_end(offsets, offset_bytes), marks.offset_index)
        _check_mark(TIME_INDEX, mark_of_end(times, time_bytes), marks.time_index)
    index.check_offset_index(offsets, base_offset)
    index.check_time_index(times, base_offset)
    if offsets:
        last = offsets[-OFFSET_ENTRY_BYTES:]
        position = int.from_bytes(last[4:], "big", signed=True)
        # The first entry comes after index.interval.bytes, so position 0 is a zero tail.
        if not 0 < position < log_bytes:
            raise CorruptRecord(f"offset index points at {position} of {log_bytes} bytes")
    if times and not log_bytes:
        raise CorruptRecord("time index of an empty segment has entries")
    return offset_bytes // OFFSET_ENTRY_BYTES, time_bytes // TIME_ENTRY_BYTES


def position_at(read: ReadAt, offsets: bytes, base_offset: int, offset: int) -> int:
    """Return the position of a batch at or before the one that holds `offset`, by an offset index.

    An entry that does not fit the batch that it leads to is not used. Raises OSError.
    """
    count = bisect_right(
        range(len(offsets) // OFFSET_ENTRY_BYTES),
        offset - base_offset,
        key=lambda number: _entry(offsets, number)[0],
    )
    return _last_that_fits(
        read, base_offset, (_entry(offsets, number) for number in reversed(range(count))), offset
    )


def position_below(read: ReadAt, offsets: bytes, base_offset: int, position: int) -> int:
    """Return the last position of a batch at or below `position` that an offset index has.

    An entry that does not fit the batch that it leads to is not used. Raises OSError.
    """
    count = bisect_right(
        range(len(offsets) // OFFSET_ENTRY_BYTES),
        position,
        key=lambda number: _entry(offsets, number)[1],
    )
    entries = (_entry(offsets, number) for number in reversed(range(count)))
    return _last_that_fits(
        read, base_offset, (entry for entry in entries if entry[1] <= position), _FAR_OFFSET
    )


def _entry(offsets: bytes, number: int) -> tuple[int, int]:
    """Return an entry's relative offset and position."""
    return _ENTRY.unpack_from(offsets, number * OFFSET_ENTRY_BYTES)


def _last_that_fits(
    read: ReadAt, base_offset: int, entries: Iterable[tuple[int, int]], offset: int
) -> int:
    for relative, position in entries:
        try:
            header = batch.read_header(read(position, batch.HEADER_BYTES) if position > 0 else b"")
        except CorruptRecord:
            continue
        if header.last_offset <= base_offset + relative and header.base_offset <= offset:
            return position
    return 0


def _entries(fs: Filesystem, fd: int, size: int, entry_bytes: int, thorough: bool) -> bytes:
    if size % entry_bytes:
        raise CorruptRecord(f"index of {size} bytes, not a multiple of {entry_bytes}")
    read = size if thorough else min(size, MARKED_BYTES)
    return fs.pread(fd, read, size - read)


def _check_mark(kind: str, found: FileMark, marked: FileMark) -> None:
    if found != marked:
        raise CorruptRecord(
            f"its {kind} has {found.size_bytes} bytes with CRC {found.crc:08x}; at the clean"
            f" shutdown it had {marked.size_bytes} with CRC {marked.crc:08x}"
        )
