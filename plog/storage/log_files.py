"""The files of one open partition directory, as its log changes them.

Owns the steps on disk: a new segment's files, old ones renamed away, a segment opened
anew with a shorter end, producer snapshots, leader-epoch-checkpoint. Never decides
when, and knows nothing of the struct or of what an error means: everything raises
OSError.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from plog._native.partition_log import ProducerEntry, Segment
from plog.settings.definitions import TopicSettings
from plog.storage.filesystem import Filesystem
from plog.storage.index_files import IndexBuilder
from plog.storage.leader_epochs import LEADER_EPOCH_FILE, LeaderEpochs, encode_leader_epochs
from plog.storage.producer_load import load_producers, snapshot_offsets, store_snapshot
from plog.storage.segment import (
    SegmentNumbers,
    create_segment,
    discard_segment,
    numbers_from_scan,
    open_segment,
)
from plog.storage.segment_files import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    SEGMENT,
    SHORTER,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    path_of,
)
from plog.storage.segment_scan import walk_headers
from plog.storage.transaction_index import AbortedTransaction, encode_aborted

COPY_BYTES = 1 << 20


class Shortened(NamedTuple):
    """The last segment of a truncated log, before its files have their names and length."""

    segment: Segment
    numbers: SegmentNumbers
    is_copied: bool  # its files are new ones with the suffix SHORTER


class LogFiles:
    """A partition directory. The log's lock orders all calls."""

    def __init__(self, fs: Filesystem, directory: Path) -> None:
        self._fs = fs
        self.directory = directory

    # -- segments ----------------------------------------------------------------------------

    def create_segment(self, base_offset: int, settings: TopicSettings) -> Segment:
        """Make the files of an empty segment."""
        return create_segment(
            self._fs, self.directory, base_offset, max_index_bytes=settings.segment_index_bytes
        )

    def discard_segment(self, base_offset: int) -> None:
        """Remove the files of a segment that is not used."""
        discard_segment(self._fs, self.directory, base_offset)

    def put_away(self, segments: Iterable[Segment]) -> list[Path]:
        """Rename segments' files to `.deleted`, in the order given; return the new names.

        After a failure, call it again: it accepts files that are renamed already.
        """
        renamed = []
        for segment in segments:
            # The .log first: an index without it is swept away by recovery.
            for kind in SEGMENT:
                path = path_of(self.directory, segment.base_offset, kind)
                target = path.with_name(path.name + DELETED)
                try:
                    self._fs.rename(path, target)
                except FileNotFoundError:
                    if not self._fs.exists(target):
                        if kind == LOG:
                            raise
                        continue
                renamed.append(target)
        return renamed

    def modified_ms(self, segment: Segment) -> int:
        """Return when the segment was last written."""
        path = path_of(self.directory, segment.base_offset, LOG)
        try:
            return self._fs.modified_ms(path)
        except FileNotFoundError:  # `finish_swap` has failed, and will be called again
            return self._fs.modified_ms(path.with_name(path.name + SWAP))

    def shorten(
        self, segment: Segment, offset: int, settings: TopicSettings, *, is_read: bool
    ) -> Shortened:
        """Open a segment anew as if it ended with its last batch below `offset`.

        A file that `is_read` must never change. Responses on their way refer to its pages, in
        socket buffers even after the broker has let go of it, and would contain zeroes or later
        records. So what stays is copied. Otherwise `cut` shortens the log file. The indexes are
        always replaced, because the old segment may have them mapped.

        Raises:
            CorruptRecord: a batch header does not read as one.
        """
        base = segment.base_offset
        builder = IndexBuilder(base, settings.index_interval_bytes)
        size_bytes, next_offset, first_append_ms = 0, base, -1
        for position, header in walk_headers(segment.read, 0, segment.size_bytes):
            if header.next_offset > offset:
                break
            if position == 0:
                first_append_ms = header.max_timestamp
            builder.on_batch(position, header)
            size_bytes, next_offset = position + header.size_bytes, header.next_offset
        offsets, times = builder.finish()
        numbers = numbers_from_scan(
            builder,
            base_offset=base,
            size_bytes=size_bytes,
            next_offset=next_offset,
            offset_bytes=len(offsets),
            time_bytes=len(times),
            first_append_ms=first_append_ms,
        )
        is_copied = is_read and size_bytes < segment.size_bytes
        suffix = SHORTER if is_copied else ""
        store = self._fs.write_bytes if is_copied else self._fs.replace_bytes
        try:
            if is_copied:
                self._copy_log(segment, size_bytes)
            store(path_of(self.directory, base, OFFSET_INDEX, suffix), offsets)
            store(path_of(self.directory, base, TIME_INDEX, suffix), times)
            opened = open_segment(
                self._fs,
                self.directory,
                numbers,
                max_index_bytes=settings.segment_index_bytes,
                suffix=suffix,
            )
        except OSError:
            self.discard_shorter(base)
            raise
        return Shortened(opened, numbers, is_copied)

    def _copy_log(self, segment: Segment, size_bytes: int) -> None:
        """Copy the beginning of a segment's log file durably."""
        path = path_of(self.directory, segment.base_offset, LOG, SHORTER)
        self._fs.unlink(path, missing_ok=True)
        with self._fs.opened(path, exclusive=True) as fd:
            at = 0
            while at < size_bytes:
                piece = segment.read(at, min(COPY_BYTES, size_bytes - at))
                if not piece:
                    raise OSError(errno.EIO, f"segment {segment.base_offset} ends at byte {at}")
                self._fs.pwrite(fd, piece, at)
                at += len(piece)
            self._fs.fsync(fd)

    def discard_shorter(self, base_offset: int) -> None:
        """Remove the files of a copy that is not used; a start removes those that this cannot."""
        with suppress(OSError):
            for kind in SEGMENT:
                self._fs.unlink(
                    path_of(self.directory, base_offset, kind, SHORTER), missing_ok=True
                )

    def cut(self, shortened: Shortened) -> None:
        """Give a shortened segment's files their names, or cut its log file.

        May be called again when it has failed.
        """
        base_offset = shortened.numbers.base_offset
        if shortened.is_copied:
            # The .log first. Recovery rebuilds the indexes, which may be longer or shorter then.
            self._rename_all(base_offset, SHORTER, "")
            self._fs.sync_directory(self.directory)
            return
        with self._fs.opened(path_of(self.directory, base_offset, LOG)) as fd:
            self._fs.ftruncate(fd, shortened.numbers.size_bytes)

    # -- aborted transactions ----------------------------------------------------------------

    def append_aborted(self, base_offset: int, entry: AbortedTransaction) -> None:
        """Add an aborted transaction to the index of the segment that holds its marker."""
        with self._fs.opened(self._transaction_index(base_offset), create=True) as fd:
            self._fs.pwrite(fd, encode_aborted([entry]), self._fs.size_bytes(fd))

    def store_aborted(self, base_offset: int, entries: Sequence[AbortedTransaction]) -> None:
        """Replace a segment's index of aborted transactions durably; remove it if it is empty."""
        path = self._transaction_index(base_offset)
        if entries:
            self._fs.replace_bytes(path, encode_aborted(entries))
        else:
            self._fs.unlink(path, missing_ok=True)
            self._fs.sync_directory(self.directory)

    def sync_aborted(self, base_offset: int) -> None:
        """Make a segment's index of aborted transactions durable; one that is gone is fine."""
        with suppress(FileNotFoundError):
            with self._fs.opened(self._transaction_index(base_offset)) as fd:
                self._fs.fsync(fd)
            self._fs.sync_directory(self.directory)

    def _transaction_index(self, base_offset: int) -> Path:
        return path_of(self.directory, base_offset, TRANSACTION_INDEX)

    # -- compaction --------------------------------------------------------------------------

    def take_up_cleaned(self, numbers: SegmentNumbers, settings: TopicSettings) -> Segment:
        """Make `.cleaned` files `.swap`: from now on a start completes the replacement.

        When it fails they are `.cleaned` again, as far as that can be done.
        """
        base_offset = numbers.base_offset
        try:
            self._rename_all(base_offset, CLEANED, SWAP)
            self._fs.sync_directory(self.directory)
            return open_segment(
                self._fs,
                self.directory,
                numbers,
                max_index_bytes=settings.segment_index_bytes,
                suffix=SWAP,
            )
        except OSError:
            # A later start must not take these for what replaces segments: the log goes on with
            # the old ones, and with what becomes of them.
            with suppress(OSError):
                self._rename_all(base_offset, SWAP, CLEANED)
            raise

    def finish_swap(self, base_offset: int) -> None:
        """Give `.swap` files their names. Those that they replace are away already.

        May be called again when it has failed.
        """
        # First, or a power cut could bring back a segment of before beside what replaces it.
        self._fs.sync_directory(self.directory)
        self._rename_all(base_offset, SWAP, "")
        self._fs.sync_directory(self.directory)

    def _rename_all(self, base_offset: int, old: str, new: str) -> None:
        for kind in SEGMENT:
            path = path_of(self.directory, base_offset, kind, old)
            if self._fs.exists(path):
                self._fs.rename(path, path_of(self.directory, base_offset, kind, new))

    # -- producers and epochs ----------------------------------------------------------------

    def store_snapshot(self, offset: int, producers: Sequence[ProducerEntry]) -> None:
        """Write the snapshot of the producers below `offset`."""
        store_snapshot(self._fs, self.directory, offset, producers)

    def drop_snapshots(self, *, before: int = 0, after: int | None = None) -> None:
        """Remove the snapshots of offsets below `before` or above `after`."""
        for offset in snapshot_offsets(self._fs, self.directory):
            if offset < before or (after is not None and offset > after):
                path = path_of(self.directory, offset, PRODUCER_SNAPSHOT)
                self._fs.unlink(path, missing_ok=True)

    def load_producers(
        self, segments: Iterable[Segment], *, log_end_offset: int
    ) -> list[ProducerEntry]:
        """Find the producers of a log that has been truncated.

        Raises:
            CorruptRecord: a batch header does not read as one.
        """
        return load_producers(
            self._fs,
            self.directory,
            [_numbers(segment) for segment in segments],
            replay_from=log_end_offset,
        ).entries

    def store_epochs(self, epochs: LeaderEpochs, *, sync: bool = True) -> None:
        """Write leader-epoch-checkpoint; without `sync` a power cut may damage or lose it."""
        path = self.directory / LEADER_EPOCH_FILE
        self._fs.rename_into_place(path, encode_leader_epochs(epochs).encode(), sync=sync)
        if sync:
            self._fs.sync_directory(self.directory)


def _numbers(segment: Segment) -> SegmentNumbers:
    """Return the published numbers of an open segment."""
    return SegmentNumbers(
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        next_offset=segment.next_offset,
        offset_entries=segment.offset_entries,
        time_entries=segment.time_entries,
        max_timestamp=segment.max_timestamp,
        max_timestamp_offset=segment.max_timestamp_offset,
        bytes_since_index_entry=0,
        first_append_ms=segment.first_append_ms,
    )
