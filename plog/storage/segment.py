"""One segment: its files made, opened and measured.

Owns how the numbers that the data path needs (`SegmentNumbers`) are found from the
files without reading them whole. The open segment itself is the kernel's `Segment`.
Never decides whether a segment should exist.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from plog._native.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from plog._native.partition_log import Segment
from plog.errors import CorruptRecord
from plog.storage.filesystem import Filesystem
from plog.storage.index_files import IndexBuilder, check_indexes
from plog.storage.segment_files import LOG, OFFSET_INDEX, SEGMENT, TIME_INDEX, path_of
from plog.storage.segment_scan import BatchReader, OffsetOrder, reader_of, walk_headers
from plog.storage.shutdown_record import SegmentMarks
from plog.types import NO_TIMESTAMP

SEGMENT_DESCRIPTORS = 3
"""Of an open segment: the log and its two indexes."""
KEPT_DESCRIPTORS = 2
"""So many descriptors segments leave to the rest of the broker, which opens a file or a directory
for a moment: to sync the names of a segment, to write a checkpoint."""


class SegmentNumbers(NamedTuple):
    """What the files of a segment say."""

    base_offset: int
    size_bytes: int
    next_offset: int  # base_offset when empty
    offset_entries: int
    time_entries: int
    max_timestamp: int  # -1 when empty
    max_timestamp_offset: int
    bytes_since_index_entry: int
    first_append_ms: int  # largest timestamp of the first batch, -1 when empty

    @classmethod
    def empty(cls, base_offset: int) -> SegmentNumbers:
        """Return the numbers of a segment that has just been made."""
        return cls(base_offset, 0, base_offset, 0, 0, NO_TIMESTAMP, base_offset, 0, NO_TIMESTAMP)


def create_segment(
    fs: Filesystem, directory: Path, base_offset: int, *, max_index_bytes: int
) -> Segment:
    """Make the files of an empty segment and open it. Raises OSError, and leaves no file then.

    Files of that name are left over from a creation that a crash cut short, because the log does
    not ask for a segment that it has. They are removed.
    """
    discard_segment(fs, directory, base_offset)
    try:
        return open_segment(
            fs,
            directory,
            SegmentNumbers.empty(base_offset),
            max_index_bytes=max_index_bytes,
            create=True,
        )
    except OSError:
        # If this fails too, recovery removes the empty segment: it holds no record.
        with suppress(OSError):
            discard_segment(fs, directory, base_offset)
        raise


def discard_segment(fs: Filesystem, directory: Path, base_offset: int) -> None:
    """Remove the files of a segment that is not used. Raises OSError."""
    for kind in SEGMENT:
        fs.unlink(path_of(directory, base_offset, kind), missing_ok=True)


def open_segment(
    fs: Filesystem,
    directory: Path,
    numbers: SegmentNumbers,
    *,
    max_index_bytes: int,
    create: bool = False,
    suffix: str = "",
    keep_free: int = KEPT_DESCRIPTORS,
) -> Segment:
    """Open the files for the data path. Raises OSError.

    Args:
        suffix: of their names, until they replace others.
        keep_free: the descriptors that the process must have left; EMFILE if it would have fewer.
    """
    fds: list[int] = []
    try:
        for kind in (LOG, OFFSET_INDEX, TIME_INDEX):
            path = path_of(directory, numbers.base_offset, kind, suffix)
            fds.append(fs.open_file(path, create=create))
        if not fs.leaves_free(fds[-1], keep_free):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
    except OSError:
        for fd in fds:
            fs.close(fd)
        raise
    return Segment(
        numbers.base_offset,
        log_fd=fds[0],
        offset_index_fd=fds[1],
        time_index_fd=fds[2],
        size_bytes=numbers.size_bytes,
        next_offset=numbers.next_offset,
        offset_entries=numbers.offset_entries,
        time_entries=numbers.time_entries,
        max_timestamp=numbers.max_timestamp,
        max_timestamp_offset=numbers.max_timestamp_offset,
        bytes_since_index_entry=numbers.bytes_since_index_entry,
        first_append_ms=numbers.first_append_ms,
        max_index_bytes=max(
            max_index_bytes,
            numbers.offset_entries * OFFSET_ENTRY_BYTES,
            numbers.time_entries * TIME_ENTRY_BYTES,
        ),
    )


def numbers_from_scan(
    builder: IndexBuilder,
    *,
    base_offset: int,
    size_bytes: int,
    next_offset: int,
    offset_bytes: int,
    time_bytes: int,
    first_append_ms: int,
) -> SegmentNumbers:
    """Return the numbers of a segment that has been read whole into `builder`."""
    return SegmentNumbers(
        base_offset=base_offset,
        size_bytes=size_bytes,
        next_offset=next_offset,
        offset_entries=offset_bytes // OFFSET_ENTRY_BYTES,
        time_entries=time_bytes // TIME_ENTRY_BYTES,
        max_timestamp=builder.max_timestamp,
        max_timestamp_offset=builder.max_timestamp_offset,
        bytes_since_index_entry=size_bytes - builder.last_entry_position,
        first_append_ms=first_append_ms,
    )


class IndexDistrusted(CorruptRecord):
    """The indexes must be rebuilt; the log file has not been accused of anything."""


class _IndexEnds(NamedTuple):
    """Where a segment's checked indexes end."""

    offset_entries: int
    time_entries: int
    indexed_offset: int  # of the last offset entry; the base offset when there is none
    indexed_position: int  # 0 when there is none
    max_timestamp: int  # of the last time entry; -1 when there is none
    max_timestamp_offset: int


def measure_segment(
    fs: Filesystem,
    directory: Path,
    base_offset: int,
    *,
    gaps_legal_below: int,
    thorough: bool,
    marks: SegmentMarks | None = None,
) -> SegmentNumbers:
    """Find a segment's numbers from its indexes and the batches after the last offset entry.

    The last batch is checked whole. `thorough` also checks the indexes whole. `marks` say what
    the files held at a clean shutdown.

    Raises:
        IndexDistrusted: an index is missing, fails its checks, or does not fit the log file.
        CorruptRecord: the end of the log file is not a batch's end, the last batch is bad, or the
            log file is not as long as `marks` say.
        OSError: a file cannot be read.
    """
    with fs.opened(path_of(directory, base_offset, LOG)) as log_fd:
        size_bytes = fs.size_bytes(log_fd)
        if marks is not None and size_bytes != marks.log_bytes:
            raise CorruptRecord(
                f"it has {size_bytes} bytes; at the clean shutdown it had {marks.log_bytes}"
            )
        ends = _index_ends(fs, directory, base_offset, size_bytes, thorough=thorough, marks=marks)
        if not size_bytes:
            return SegmentNumbers.empty(base_offset)
        _, first = next(walk_headers(reader_of(fs, log_fd), 0, size_bytes))
        max_timestamp, max_timestamp_offset = ends.max_timestamp, ends.max_timestamp_offset
        last_position = ends.indexed_position
        order = OffsetOrder(base_offset, gaps_legal_below)
        try:
            for last_position, header in walk_headers(
                reader_of(fs, log_fd), ends.indexed_position, size_bytes
            ):
                if last_position == ends.indexed_position and ends.indexed_position:
                    # Nobody knows the batch before it; its entry bounds it from above.
                    if header.last_offset > ends.indexed_offset:
                        raise CorruptRecord(
                            f"batch at {last_position}: it ends at offset {header.last_offset},"
                            f" its index entry at {ends.indexed_offset}"
                        )
                    order.expected = header.base_offset
                if (fault := order.fault_of(header)) is not None:
                    raise CorruptRecord(f"batch at {last_position}: {fault}")
                # The time index holds the maximum up to the last offset entry.
                if header.max_timestamp > max_timestamp:
                    max_timestamp, max_timestamp_offset = header.max_timestamp, header.last_offset
        except CorruptRecord as error:
            if ends.indexed_position:
                # Either file may be wrong; reading the log file whole will tell which.
                raise IndexDistrusted(str(error)) from error
            raise
        next_offset = order.expected
        if not ends.indexed_offset < next_offset > ends.max_timestamp_offset:
            raise IndexDistrusted(
                f"the indexes go up to {max(ends.indexed_offset, ends.max_timestamp_offset)},"
                f" the batches up to {next_offset - 1}"
            )
        reader = BatchReader(reader_of(fs, log_fd), last_position, size_bytes)
        if next(iter(reader), None) is None:
            raise CorruptRecord(f"batch at {last_position}: {reader.fault}")
        return SegmentNumbers(
            base_offset=base_offset,
            size_bytes=size_bytes,
            next_offset=next_offset,
            offset_entries=ends.offset_entries,
            time_entries=ends.time_entries,
            max_timestamp=max_timestamp,
            max_timestamp_offset=max_timestamp_offset,
            bytes_since_index_entry=size_bytes - ends.indexed_position,
            first_append_ms=first.max_timestamp,
        )


def _index_ends(
    fs: Filesystem,
    directory: Path,
    base_offset: int,
    log_bytes: int,
    *,
    thorough: bool,
    marks: SegmentMarks | None,
) -> _IndexEnds:
    try:
        with (
            fs.opened(path_of(directory, base_offset, OFFSET_INDEX)) as offset_fd,
            fs.opened(path_of(directory, base_offset, TIME_INDEX)) as time_fd,
        ):
            offset_entries, time_entries = check_indexes(
                fs,
                offset_fd,
                time_fd,
                base_offset=base_offset,
                log_bytes=log_bytes,
                thorough=thorough,
                marks=marks,
            )
            indexed = _last_entry(fs, offset_fd, offset_entries, OFFSET_ENTRY_BYTES, 4)
            timed = _last_entry(fs, time_fd, time_entries, TIME_ENTRY_BYTES, 8)
    except FileNotFoundError as error:
        raise IndexDistrusted(f"{error.filename} is missing") from error
    except CorruptRecord as error:
        raise IndexDistrusted(str(error)) from error
    return _IndexEnds(
        offset_entries=offset_entries,
        time_entries=time_entries,
        indexed_offset=base_offset + (indexed[0] if indexed else 0),
        indexed_position=indexed[1] if indexed else 0,
        max_timestamp=timed[0] if timed else NO_TIMESTAMP,
        max_timestamp_offset=base_offset + (timed[1] if timed else 0),
    )


def _last_entry(
    fs: Filesystem, fd: int, entries: int, entry_bytes: int, first_bytes: int
) -> tuple[int, int] | None:
    if not entries:
        return None
    entry = fs.pread(fd, entry_bytes, (entries - 1) * entry_bytes)
    return (
        int.from_bytes(entry[:first_bytes], "big", signed=True),
        int.from_bytes(entry[first_bytes:], "big", signed=True),
    )
