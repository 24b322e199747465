"""A log's segments, in the struct and on disk, with the files that belong to them.

Owns the order of the steps that add and remove segments: after a crash at any step, the log may
start or end elsewhere, but has no gap. Leader epochs, aborted transactions and producer snapshots
change together with the segments. Never decides when, takes no lock (the log's lock orders all
calls) and handles no error: raises OSError and, where it reads batches, CorruptRecord.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from plog._native.partition_log import PartitionLog, ProducerEntry, Segment
from plog.settings.definitions import TopicSettings
from plog.storage.leader_epochs import LeaderEpochs
from plog.storage.log_files import LogFiles, Shortened
from plog.storage.retention import SegmentSummary
from plog.storage.segment import SegmentNumbers
from plog.storage.transaction_index import AbortedTransaction, AbortedTransactions
from plog.types import NO_OFFSET


class Rolled(NamedTuple):
    """The result of a roll."""

    base_offset: int
    previous: int  # base offset of the segment before
    producers: Sequence[ProducerEntry]  # producers at exactly `base_offset`


class LogSegments:
    """The segments of an open log.

    Args:
        unsynced: segments rolled since the last checkpoint, or read by recovery; their indexes may
            not be on disk yet.
        remove_later: removes renamed files later.
        lower_recovery_point: lowers the recovery point durably; raises OSError.
    """

    def __init__(
        self,
        native: PartitionLog,
        files: LogFiles,
        *,
        epochs: LeaderEpochs,
        aborted: AbortedTransactions,
        unsynced: Iterable[Segment],
        remove_later: Callable[[Sequence[Path]], None],
        lower_recovery_point: Callable[[int], None],
    ) -> None:
        self._native = native
        self._files = files
        self._epochs = epochs
        self._unsynced_epochs_from: int | None = None
        """First offset of the leader epochs that may not be on disk; None if all are."""
        self.aborted = aborted
        native.set_aborted(aborted.published())
        self._unsynced = list(unsynced)
        self._unsynced_aborted: set[int] = set()  # base offsets
        self._wrong_aborted: set[int] = set()
        """Base offsets of the segments whose transaction index has to be rewritten."""
        self._leaving: list[Segment] = []
        """Segments that are not listed any more, while renames of their files are pending."""
        self._swapped: int | None = None
        """Base offset of a replacement, while it has `.swap` files."""
        self._truncated: Shortened | None = None
        """The last segment after a truncation, while the files have more than the log."""
        self._remove_later = remove_later
        self._lower_recovery_point = lower_recovery_point

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs with their start offsets, from their first append on."""
        started = self._native.epoch_start()
        return self._epochs if started is None else self._epochs.assign(*started)

    def set_epochs(self, epochs: LeaderEpochs) -> None:
        """Replace the leader epochs durably."""
        if epochs == self._epochs and self._unsynced_epochs_from is None:
            return
        self._files.store_epochs(epochs)
        self._epochs, self._unsynced_epochs_from = epochs, None

    def write_first_epoch(self, epoch: int) -> None:
        """Write the first leader epoch of an empty log, without a sync."""
        self._files.store_epochs(self._epochs.assign(epoch, 0), sync=False)

    def keep_epochs(self) -> None:
        """Add the epoch in which this broker starts to lead.

        Writes nothing yet. A crash before `sync_epochs` loses nothing, because recovery finds the
        epochs in the batches past the recovery point. Replacing the file without a sync would be
        worse: a power cut could then lose the older epochs as well.
        """
        self._extend_epochs(self.epochs)

    def forget_empty_epochs(self) -> None:
        """Forget durably the leader epochs that have no records yet.

        This broker led in them. Needed before the log gets records of an older epoch, because
        recovery keeps the newest epochs of the file.
        """
        self.set_epochs(self._epochs.truncate_from_end(self._native.log_end_offset))

    def add_epoch(self, epoch: int, start_offset: int) -> None:
        """Add the epoch of a fetched batch. As `keep_epochs`, it writes nothing yet."""
        self._extend_epochs(self._epochs.assign(epoch, start_offset))

    def _extend_epochs(self, epochs: LeaderEpochs) -> None:
        if epochs == self._epochs:
            return
        self._epochs = epochs
        if self._unsynced_epochs_from is None:
            self._unsynced_epochs_from = epochs.entries[-1].start_offset

    def sync_epochs(self, end_offset: int) -> None:
        """Make the leader epochs of all records below `end_offset` durable."""
        start = self._unsynced_epochs_from
        if start is not None and start < end_offset:
            self.set_epochs(self._epochs)

    def _set_aborted(self, aborted: AbortedTransactions) -> None:
        self.aborted = aborted
        self._native.set_aborted(aborted.published())

    @contextmanager
    def aborting(self, producer_id: int, first_offset: int) -> Iterator[None]:
        """Publish a transaction as aborted before its marker, which readers may pass at once."""
        try:
            with self.aborted.ending(producer_id, first_offset):
                self._native.set_aborted(self.aborted.published())
                yield
        finally:
            self._native.set_aborted(self.aborted.published())

    def add_aborted(self, producer_id: int, first_offset: int, marker_offset: int) -> None:
        """Add a transaction that the latest marker has aborted."""
        native = self._native
        opened = [entry.current_txn_first_offset for entry in native.producers()]
        stable = min((one for one in opened if one != NO_OFFSET), default=marker_offset + 1)
        entry = AbortedTransaction(
            producer_id, first_offset, marker_offset, min(stable, marker_offset + 1)
        )
        self.aborted.add(entry)
        base = max(s.base_offset for s in native.segments if s.base_offset <= marker_offset)
        self._unsynced_aborted.add(base)
        try:
            self._files.append_aborted(base, entry)
        except BaseException:
            self._wrong_aborted.add(base)  # the marker is written, so no retry comes here
            raise

    def _sync_aborted(self) -> None:
        while self._unsynced_aborted:
            base = self._unsynced_aborted.pop()
            try:
                self._files.sync_aborted(base)
            except OSError:
                self._unsynced_aborted.add(base)
                raise

    def _correct_aborted(self) -> None:
        """Write the transaction indexes that differ from `aborted`."""
        for segment in self._native.segments:
            base = segment.base_offset
            if base in self._wrong_aborted:
                self._files.store_aborted(base, self.aborted.between(base, segment.next_offset))
        self._wrong_aborted.clear()

    # -- unfinished changes ------------------------------------------------------------------

    def finish_changes(self) -> None:
        """Complete on disk what the last change of the segments needs, again after a failure.

        Every change begins with this, because it relies on file names: an old segment that is left
        on disk while its neighbours go would make a gap. A recovery point needs it as well, because
        recovery does not read the batches below.
        """
        truncated = self._truncated
        if truncated is not None:
            self.set_epochs(self._epochs)  # first, because they imply the start of the log
        if self._leaving:
            self._remove_later(self._files.put_away(self._leaving))
            self._leaving = []
        if self._swapped is not None:
            self._files.finish_swap(self._swapped)
            self._swapped = None
        if truncated is not None:
            self._files.cut(truncated)
            self._wrong_aborted.add(truncated.numbers.base_offset)
            self._files.drop_snapshots(after=truncated.numbers.next_offset)
            self._truncated = None
        self._correct_aborted()

    def finish_truncation(self) -> None:
        """Complete a truncation before the next append: the file to append to may not be cut."""
        if self._truncated is not None:
            self.finish_changes()

    # -- roll --------------------------------------------------------------------------------

    def roll(self, settings: TopicSettings) -> Rolled | None:
        """Start a new segment at the log end; return None and keep an empty active one."""
        self.finish_changes()
        native = self._native
        while True:
            segments = native.segments
            end = native.log_end_offset
            if not segments or segments[-1].base_offset == end:
                return None
            producers = native.producers()
            fresh = self._files.create_segment(end, settings)
            try:
                native.replace_segments([*segments, fresh])
            except BaseException as refusal:
                self._files.discard_segment(end)
                if not isinstance(refusal, ValueError):
                    raise
                continue  # an append came between: the new segment starts too early
            break
        sealed = segments[-1]
        self._unsynced.append(sealed)  # first, because the later sync also repairs a failed seal
        sealed.seal()
        # No append came between, so `producers` is the state at exactly `end`.
        return Rolled(end, sealed.base_offset, producers)

    def store_snapshot(self, rolled: Rolled) -> None:
        """Write the snapshot of a roll; keep those of the last two segments."""
        self._files.store_snapshot(rolled.base_offset, rolled.producers)
        self._files.drop_snapshots(before=rolled.previous)

    # -- retention ---------------------------------------------------------------------------

    def summary(self, segment: Segment) -> SegmentSummary:
        """Return the facts about a segment for retention and compaction."""
        # Read the end first: the timestamp then covers at least the batches below it.
        next_offset = segment.next_offset
        timestamp = segment.max_timestamp
        if timestamp < 0:
            timestamp = self.modified_ms(segment)
        return SegmentSummary(
            segment.base_offset,
            next_offset,
            segment.size_bytes,
            timestamp,
            segment.first_append_ms,
        )

    def modified_ms(self, segment: Segment) -> int:
        """Return when a segment's file was last written."""
        return self._files.modified_ms(segment)

    def delete_oldest(self, count: int) -> None:
        """Remove the oldest `count` segments, at most all but one."""
        if not count:
            return
        self.finish_changes()
        segments = self._native.segments
        gone, kept = segments[:count], segments[count:]
        # First raise the start offset, then unlist the segments, then rename their files.
        self.start_at(kept[0].base_offset)
        self._native.replace_segments(kept)
        self._leaving = list(gone)
        self._unsynced = [segment for segment in self._unsynced if segment in kept]
        if self.aborted:
            self._set_aborted(self.aborted.from_offset(kept[0].base_offset))
        self.finish_changes()
        self._files.drop_snapshots(before=kept[0].base_offset)

    def start_at(self, offset: int) -> None:
        """Raise the log start offset; it never decreases.

        The epochs on disk follow, again if that has failed before.
        """
        offset = max(offset, self._native.log_start_offset)
        self._native.set_log_start_offset(offset)
        self.set_epochs(self.epochs.truncate_from_start(offset))

    # -- compaction --------------------------------------------------------------------------

    def end_of(self, old: Sequence[Segment]) -> int | None:
        """Return the end offset of neighbouring segments below the active one.

        None if the segments have changed meanwhile.
        """
        found = self._place_of(old)
        return None if found is None else self._native.segments[found.stop].base_offset

    def _place_of(self, old: Sequence[Segment]) -> slice | None:
        segments = self._native.segments
        first = next((at for at, one in enumerate(segments) if one is old[0]), None)
        if first is None:
            return None
        end = first + len(old)
        if end >= len(segments) or any(
            mine is not theirs for mine, theirs in zip(old, segments[first:end], strict=True)
        ):
            return None
        return slice(first, end)

    def replace(
        self,
        old: Sequence[Segment],
        numbers: SegmentNumbers,
        aborted: Iterable[AbortedTransaction],
        settings: TopicSettings,
    ) -> bool:
        """Replace neighbouring segments below the active one by the `.cleaned` files.

        `aborted` are the transactions to keep of those with a marker there.

        Returns False if the segments have changed meanwhile. After a crash the next start finds
        either the old segments or the new one (`swap_files`).
        """
        self.finish_changes()
        place = self._place_of(old)
        if place is None:
            return False
        fresh = self._files.take_up_cleaned(numbers, settings)
        segments = self._native.segments
        self._native.replace_segments([*segments[: place.start], fresh, *segments[place.stop :]])
        self._leaving, self._swapped = list(old), numbers.base_offset
        self._set_aborted(self.aborted.compacted(old[0].base_offset, old[-1].next_offset, aborted))
        self._unsynced = [segment for segment in self._unsynced if segment not in old]
        self.finish_changes()
        return True

    # -- truncation --------------------------------------------------------------------------

    def restart_at(self, offset: int, settings: TopicSettings, *, is_read: bool) -> None:
        """Remove every record and continue at `offset`."""
        native = self._native
        self.truncate(native.segments[0].base_offset, settings, is_read=is_read)
        (emptied,) = native.segments
        if emptied.base_offset != offset:
            # A crash here leaves two empty segments, the later of which recovery drops.
            fresh = self._files.create_segment(offset, settings)
            try:
                last = Shortened(fresh, SegmentNumbers.empty(offset), is_copied=False)
                self._publish_truncated([fresh], last, [emptied])
            except BaseException:
                self._files.discard_segment(offset)
                raise
        native.set_log_start_offset(offset)
        self._epochs, self._unsynced_epochs_from = LeaderEpochs(), 0
        self.finish_changes()
        self.set_epochs(self._epochs)

    def truncate(self, offset: int, settings: TopicSettings, *, is_read: bool) -> None:
        """Remove every batch that ends past `offset`; `offset` is not below the first segment.

        Args:
            is_read: readers may have been given bytes past `offset`.
        """
        self.finish_changes()
        segments = self._native.segments
        kept = [s for s in segments if s.base_offset < offset] or segments[:1]
        gone = segments[len(kept) :]
        last = self._files.shorten(kept[-1], offset, settings, is_read=is_read)
        # Lower the known end first, then remove names and bytes from the end backwards: a crash
        # leaves a log that ends earlier, but without a gap.
        try:
            self._lower_recovery_point(last.numbers.next_offset)
            self._publish_truncated([*kept[:-1], last.segment], last, gone[::-1])
        except BaseException:
            if last.is_copied:
                self._files.discard_shorter(last.numbers.base_offset)
            raise
        self.finish_changes()

    def _publish_truncated(
        self, segments: Sequence[Segment], last: Shortened, gone: Sequence[Segment]
    ) -> None:
        """Make the log end with its segment `last`; `finish_changes` does the rest on disk.

        If it raises, nothing has changed.
        """
        end = last.numbers.next_offset
        producers = self._files.load_producers(segments, log_end_offset=end)
        self._native.truncate(segments, end, producers)
        self._truncated, self._leaving = last, list(gone)
        self._unsynced = [segment for segment in self._unsynced if segment in segments]
        self._epochs = self.epochs.truncate_from_end(end)
        self._unsynced_epochs_from = 0
        self._set_aborted(self.aborted.below(end))

    # -- durability --------------------------------------------------------------------------

    def sync_rolled(self, durable_end: int) -> None:
        """Sync the indexes of the rolled segments that lie below the durable end.

        Also sync the leader epochs and the aborted transactions, because recovery after a crash
        does not read the batches below.
        """
        self.finish_changes()
        self.sync_epochs(durable_end)
        self._sync_aborted()
        while self._unsynced and self._unsynced[0].next_offset <= durable_end:
            self._unsynced[0].seal()
            self._unsynced[0].sync_indexes()
            del self._unsynced[0]

    def finish(self) -> None:
        """Make everything durable, and write the producer snapshot for the next start."""
        native = self._native
        ends = (*self._unsynced, native.segments[-1])
        for segment in ends:
            segment.seal()
        native.flush()
        self.finish_changes()
        self.sync_epochs(native.log_end_offset)
        self._sync_aborted()
        for segment in ends:
            segment.sync_indexes()
        self._files.store_snapshot(native.log_end_offset, native.producers())

    def close(self) -> None:
        """Release all segments; each closes its files with the last range that pins it."""
        # So that a log in a reference cycle does not keep them open.
        self._unsynced.clear()
        self._leaving.clear()
        self._native.close()
