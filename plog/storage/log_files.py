"""The files of one open partition directory, as its log changes them.

Owns the steps on disk: a new segment's files, old ones renamed away, a segment opened
anew with a shorter end, producer snapshots, leader-epoch-checkpoint. Never decides
when, and knows nothing of the struct or of what an error means: everything raises
OSError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

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
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    path_of,
)
from plog.storage.segment_scan import walk_headers
from plog.storage.transaction_index import AbortedTransaction, encode_aborted


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
        self, segment: Segment, offset: int, settings: TopicSettings
    ) -> tuple[Segment, SegmentNumbers]:
        """Open a segment anew as if it ended with its last batch below `offset`.

        The log file is not cut yet: `cut` does that, once nobody new finds the old segment.
        The indexes are replaced, not cut: the old one may have them mapped.

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
        self._fs.replace_bytes(path_of(self.directory, base, OFFSET_INDEX), offsets)
        self._fs.replace_bytes(path_of(self.directory, base, TIME_INDEX), times)
        numbers = numbers_from_scan(
            builder,
            base_offset=base,
            size_bytes=size_bytes,
            next_offset=next_offset,
            offset_bytes=len(offsets),
            time_bytes=len(times),
            first_append_ms=first_append_ms,
        )
        return (
            open_segment(
                self._fs, self.directory, numbers, max_index_bytes=settings.segment_index_bytes
            ),
            numbers,
        )

    def cut(self, numbers: SegmentNumbers) -> None:
        """Cut the log file of a shortened segment."""
        with self._fs.opened(path_of(self.directory, numbers.base_offset, LOG)) as fd:
            self._fs.ftruncate(fd, numbers.size_bytes)

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
