"""A log's segments, in the struct and on disk, and what is kept beside them.

Owns the order of the steps by which segments come and go: whatever a crash leaves is a
log that begins and ends somewhere, never one with a hole. With the segments go the
leader epochs, the aborted transactions and the producer snapshots. Never decides when,
takes no lock (the log's orders all calls) and judges no error: everything raises what
the files raise, OSError or, where batches are read, CorruptRecord.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from plog._native.partition_log import PartitionLog, ProducerEntry, Segment
from plog.settings.definitions import TopicSettings
from plog.storage.leader_epochs import LeaderEpochs
from plog.storage.log_files import LogFiles
from plog.storage.retention import SegmentSummary
from plog.storage.segment import SegmentNumbers
from plog.storage.transaction_index import AbortedTransaction, AbortedTransactions
from plog.types import NO_OFFSET


class Rolled(NamedTuple):
    """A segment that was begun."""

    base_offset: int
    previous: int  # base offset of the one that it follows
    producers: Sequence[ProducerEntry]  # those below `base_offset` exactly


class LogSegments:
    """The segments of an open log.

    Args:
        unsynced: rolled since the last checkpoint, or read by recovery: their indexes may still
            be in the page cache alone.
        remove_later: takes files that have been renamed out of the way.
        lower_recovery_point: makes durable that the log may end there; raises OSError.
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
        """First offset of the leader epochs that are not on disk for certain; None: all are."""
        self.aborted = aborted
        native.set_aborted(aborted.published())
        self._unsynced = list(unsynced)
        self._unsynced_aborted: set[int] = set()  # base offsets
        self._unfinished: tuple[int, list[Segment]] | None = None
        """Base offset of what has replaced segments, and those that it has replaced: their files
        are still to be put away, and its own to get their names."""
        self._remove_later = remove_later
        self._lower_recovery_point = lower_recovery_point

    @property
    def epochs(self) -> LeaderEpochs:
        """Which leader epoch wrote which offsets, from the first append of each."""
        started = self._native.epoch_start()
        return self._epochs if started is None else self._epochs.assign(*started)

    def set_epochs(self, epochs: LeaderEpochs) -> None:
        """Make other leader epochs durable."""
        if epochs == self._epochs and self._unsynced_epochs_from is None:
            return
        self._files.store_epochs(epochs)
        self._epochs, self._unsynced_epochs_from = epochs, None

    def write_first_epoch(self, epoch: int) -> None:
        """Write the first leader epoch of an empty log, without a sync."""
        self._files.store_epochs(self._epochs.assign(epoch, 0), sync=False)

    def keep_epochs(self) -> None:
        """Take in the epoch under which this broker has begun to lead.

        Nothing is written yet. A crash before `sync_epochs` loses nothing: recovery reads the
        batches past the recovery point, which tell their epochs. A file that is replaced without a
        sync would be worse, since a power cut could then take the older epochs as well.
        """
        epochs, before = self.epochs, self._epochs
        if epochs == before:
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
        """Count a transaction as aborted while its marker is written, which readers may pass."""
        try:
            with self.aborted.ending(producer_id, first_offset):
                self._native.set_aborted(self.aborted.published())
                yield
        finally:
            self._native.set_aborted(self.aborted.published())

    def add_aborted(self, producer_id: int, first_offset: int, marker_offset: int) -> None:
        """Take in a transaction that a marker at an offset, the latest one, has aborted."""
        native = self._native
        opened = [entry.current_txn_first_offset for entry in native.producers()]
        stable = min((one for one in opened if one != NO_OFFSET), default=marker_offset + 1)
        entry = AbortedTransaction(
            producer_id, first_offset, marker_offset, min(stable, marker_offset + 1)
        )
        self.aborted.add(entry)
        base = max(s.base_offset for s in native.segments if s.base_offset <= marker_offset)
        self._unsynced_aborted.add(base)
        self._files.append_aborted(base, entry)

    def _sync_aborted(self) -> None:
        while self._unsynced_aborted:
            base = self._unsynced_aborted.pop()
            try:
                self._files.sync_aborted(base)
            except OSError:
                self._unsynced_aborted.add(base)
                raise

    # -- a new one ---------------------------------------------------------------------------

    def roll(self, settings: TopicSettings) -> Rolled | None:
        """Begin a new segment at the log end; an empty active one is kept (None)."""
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
                continue  # the data path appended meanwhile: the new segment begins too early
            break
        sealed = segments[-1]
        self._unsynced.append(sealed)  # first: a seal that fails is made up for when it is synced
        sealed.seal()
        # As no append came between, `producers` are those below `end` exactly.
        return Rolled(end, sealed.base_offset, producers)

    def store_snapshot(self, rolled: Rolled) -> None:
        """Write the snapshot of a roll; keep those of the last two segments."""
        self._files.store_snapshot(rolled.base_offset, rolled.producers)
        self._files.drop_snapshots(before=rolled.previous)

    # -- the oldest --------------------------------------------------------------------------

    def summary(self, segment: Segment) -> SegmentSummary:
        """Return what retention and compaction need to know of a segment."""
        # The end first: the timestamp that is read then covers at least what is below it.
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
        """Remove so many segments, not all of them."""
        if not count:
            return
        self.finish_replacement()
        segments = self._native.segments
        gone, kept = segments[:count], segments[count:]
        # First nobody may ask for them, then nobody new finds them, then the names go.
        self.start_at(max(self._native.log_start_offset, kept[0].base_offset))
        self._native.replace_segments(kept)
        self._unsynced = [segment for segment in self._unsynced if segment in kept]
        if self.aborted:
            self._set_aborted(self.aborted.from_offset(kept[0].base_offset))
        self._put_away(gone)
        self._files.drop_snapshots(before=kept[0].base_offset)

    def start_at(self, offset: int) -> None:
        """Make everything below an offset unreadable; the start never goes back."""
        if offset > self._native.log_start_offset:
            self._native.set_log_start_offset(offset)
            self.set_epochs(self.epochs.truncate_from_start(offset))

    def _put_away(self, segments: Iterable[Segment]) -> None:
        self._remove_later(self._files.put_away(segments))

    # -- compaction --------------------------------------------------------------------------

    def end_of(self, old: Sequence[Segment]) -> int | None:
        """Return where what follows neighbouring segments below the active one begins.

        None: they are not there any more, as they were.
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
        """Put what is in `.cleaned` files in the place of neighbouring segments, below the active.

        `aborted` are the transactions that are still to be known of those whose marker lies there.

        False: they are not there any more, as they were. Whatever a crash leaves, the next start
        has either the old ones or the new one (`swap_files`).
        """
        self.finish_replacement()
        place = self._place_of(old)
        if place is None:
            return False
        fresh = self._files.take_up_cleaned(numbers, settings)
        segments = self._native.segments
        self._native.replace_segments([*segments[: place.start], fresh, *segments[place.stop :]])
        self._set_aborted(self.aborted.compacted(old[0].base_offset, old[-1].next_offset, aborted))
        self._unsynced = [segment for segment in self._unsynced if segment not in old]
        self._unfinished = numbers.base_offset, list(old)
        self._put_away(old)
        self._unfinished = numbers.base_offset, []
        self.finish_replacement()
        return True

    def finish_replacement(self) -> None:
        """Give the files of what has replaced segments their names, if that failed at first.

        For whoever goes by the names of files; a start finishes it too.
        """
        if self._unfinished is None:
            return
        base_offset, old = self._unfinished
        if old:
            self._remove_later(self._files.put_away(old, again=True))
            self._unfinished = base_offset, []
        self._files.finish_swap(base_offset)
        self._unfinished = None

    # -- truncation --------------------------------------------------------------------------

    def restart_at(self, offset: int, settings: TopicSettings) -> None:
        """Remove every record and go on at `offset`."""
        native = self._native
        self.truncate(native.segments[0].base_offset, settings)
        (emptied,) = native.segments
        if emptied.base_offset != offset:
            # A crash here leaves two empty segments, the later of which recovery drops.
            self._publish_truncated([self._files.create_segment(offset, settings)], offset)
            self.set_epochs(LeaderEpochs())  # first: they say where the log begins
            self._put_away([emptied])
        native.set_log_start_offset(offset)
        self.set_epochs(LeaderEpochs())

    def truncate(self, offset: int, settings: TopicSettings) -> None:
        """Remove every batch that reaches `offset`, not below the first segment, or past it."""
        self.finish_replacement()
        segments = self._native.segments
        kept = [s for s in segments if s.base_offset < offset] or segments[:1]
        gone = segments[len(kept) :]
        shorter, numbers = self._files.shorten(kept[-1], offset, settings)
        # What was known to be on disk is lowered first, the names and bytes go last, from the
        # end: whatever a crash leaves is a log that ends somewhere, never one with a hole.
        self._lower_recovery_point(numbers.next_offset)
        self._publish_truncated([*kept[:-1], shorter], numbers.next_offset)
        self._put_away(reversed(gone))
        self._files.cut(numbers)

    def _publish_truncated(self, segments: Sequence[Segment], log_end_offset: int) -> None:
        self._unsynced = [segment for segment in self._unsynced if segment in segments]
        producers = self._files.load_producers(segments, log_end_offset=log_end_offset)
        self._native.truncate(segments, log_end_offset, producers)
        self._set_aborted(self.aborted.below(log_end_offset))
        self.set_epochs(self.epochs.truncate_from_end(log_end_offset))
        self._files.drop_snapshots(after=log_end_offset)

    # -- durability --------------------------------------------------------------------------

    def sync_rolled(self, durable_end: int) -> None:
        """Sync the indexes of the rolled segments that lie below the durable end.

        And the leader epochs, and all of aborted transactions: a start after a crash does not read
        again what lies below.
        """
        self.sync_epochs(durable_end)
        self._sync_aborted()
        while self._unsynced and self._unsynced[0].next_offset <= durable_end:
            self._unsynced[0].seal()
            self._unsynced[0].sync_indexes()
            del self._unsynced[0]

    def finish(self) -> None:
        """Make everything durable, and write the snapshot that the next start begins from."""
        native = self._native
        ends = (*self._unsynced, native.segments[-1])
        for segment in ends:
            segment.seal()
        native.flush()
        self.sync_epochs(native.log_end_offset)
        self._sync_aborted()
        for segment in ends:
            segment.sync_indexes()
        self._files.store_snapshot(native.log_end_offset, native.producers())

    def close(self) -> None:
        """Give all segments up: each closes its files with the last range that pins it."""
        self._unsynced.clear()  # held by a log that only the garbage collector will find
        self._native.close()
