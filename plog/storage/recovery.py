"""Brings a partition directory from whatever a stop left to a log that can be opened.

Owns the verdict on every file: what is complete, what is a torn tail, what is damage.

After a clean shutdown nothing may be missing: sizes, index ends and last batches are
checked, and anything wrong is damage. Otherwise every segment that reaches the recovery
point is read whole. Below it the indexes, too, are on disk; those of a segment that ends
there may not be, if it was rolled after the point was written down. The first bad byte
there ends the log if

- it lies at or past the known end (the recovery point or the durable end, whichever is
  later), so that nobody was promised what it belonged to, and
- no valid batch follows it anywhere: then it is the tail of a write that was cut short.

Only a file that ends early (a cut batch, or zeros) may be followed by a later segment
that does hold batches: a power cut can lose the end of a segment that was just rolled
and keep the beginning of the next. What is past the hole was never promised, and goes.

That is the rule for a process that died: the page cache outlived it, so that a hole with
batches behind it is damage. When the *machine* has been started anew (its boot id is
another), pages that were not synced may have reached the disk in any order, and such holes
are what a power cut leaves. Then the first bad byte at or past the known end ends the log
whatever follows it, valid batches and segments too; the report says how many.

Everything else raises LogDamaged, before any `.log` file has been changed. Indexes are
derived, and are rewritten as soon as their segment has been read.

What is kept past the known end was read from the page cache, and may be nowhere else: when
a sync fails, Linux takes the lost pages for clean, and the next sync has nothing to write
and succeeds. So these bytes, and the indexes of every segment that was read, are written
again, for the next sync to be true. After a restart of the machine they came from the disk.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

from plog._native.partition_log import ProducerEntry
from plog.errors import CorruptRecord, LogDamaged
from plog.storage.checkpoints import CheckpointDamaged
from plog.storage.filesystem import Filesystem
from plog.storage.index_files import IndexBuilder, store_indexes
from plog.storage.leader_epochs import (
    LEADER_EPOCH_FILE,
    LeaderEpochs,
    decode_leader_epochs,
    encode_leader_epochs,
)
from plog.storage.producer_load import (
    LoadedProducers,
    load_producers,
    refresh_snapshot,
    snapshot_offsets,
)
from plog.storage.segment import (
    IndexDistrusted,
    SegmentNumbers,
    measure_segment,
    numbers_from_scan,
)
from plog.storage.segment_files import (
    INDEXES,
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    SEGMENT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    file_name,
    parse_file_name,
    path_of,
)
from plog.storage.segment_scan import (
    BatchReader,
    OffsetOrder,
    count_batches,
    find_batch,
    is_zero,
    reader_of,
    walk_headers,
)
from plog.storage.swap_files import finish_swaps
from plog.storage.transaction_index import (
    AbortedTransaction,
    AbortedTransactions,
    decode_aborted,
    encode_aborted,
)
from plog.storage.write_again import write_again
from plog.types import counted

ANY_OFFSET = 1 << 63


class Known(NamedTuple):
    """What the log directory's files say of a partition before its own are read."""

    clean_shutdown: bool
    read_whole: bool = False  # found damaged before: every byte is looked at
    machine_restarted: bool = False  # since the log was last written: see above
    starts_with_its_epochs: bool = False  # leader-epoch-checkpoint follows before segments go
    recovery_point: int = 0
    durable_end: int = 0
    log_start_offset: int = 0
    gaps_legal_below: int = 0  # compaction removes batches; ANY_OFFSET for compacted topics

    @property
    def end(self) -> int:
        """The offset up to which every record is known to be on disk."""
        return max(self.recovery_point, self.durable_end)


class RecoveredLog(NamedTuple):
    """A log that is consistent, and ready to be opened."""

    segments: list[SegmentNumbers]  # at least one, the last is active
    log_start_offset: int
    log_end_offset: int
    durable_end: int
    epochs: LeaderEpochs
    producers: list[ProducerEntry]
    aborted: AbortedTransactions
    reports: list[str]  # what was repaired, a line each
    gaps_legal_below: int  # see Known
    read_from: int | None  # base offset: the indexes of segments from there on are not synced


class _Cut(NamedTuple):
    """Where the log has to end, because what follows is a torn tail."""

    base_offset: int  # of the segment
    position: int
    later: list[int]  # base offsets of the segments to remove


class _Scan(NamedTuple):
    """A segment that has been read whole."""

    numbers: SegmentNumbers
    position: int  # behind its last good batch
    fault: str | None  # what is wrong with the bytes at `position`
    ends_early: bool  # they are a batch that the file's end cuts, or zeros
    epoch_starts: list[tuple[int, int]]


def recover(
    fs: Filesystem, directory: Path, known: Known, *, index_interval_bytes: int
) -> RecoveredLog:
    """Check and repair a partition directory.

    Raises:
        LogDamaged: bytes that should be there are not; the message names file, byte and reason.
        OSError: the disk failed.
    """
    return _Recovery(fs, directory, known, index_interval_bytes).run()


class _Recovery:
    def __init__(
        self, fs: Filesystem, directory: Path, known: Known, index_interval_bytes: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._known = known
        self._interval = index_interval_bytes
        self._reports: list[str] = []
        self._scanned_from: int | None = None
        # By base offset, where a segment's batches begin that nobody knows to be on disk.
        self._unproven: dict[int, int] = {}
        self._saw_markers = False
        self._has_transaction_index: set[int] = set()  # base offsets
        self._epoch_starts: list[tuple[int, int]] = []

    def run(self) -> RecoveredLog:
        self._reports += finish_swaps(self._fs, self._directory)
        bases = self._base_offsets()
        segments, cut = self._check_segments(bases)
        log_end_offset = segments[-1].next_offset if segments else 0
        self._check_start(segments)
        self._check_end(log_end_offset, segments)
        # The verdict is in: from here on .log files may change.
        if cut is not None:
            self._cut(cut)
        log_start_offset = self._known.log_start_offset
        if not segments or log_end_offset < log_start_offset:
            segments = [self._restart_at(log_start_offset, [s.base_offset for s in segments])]
            log_end_offset = log_start_offset
        self._write_unproven(segments)
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        epochs = self._epochs(segments, log_start_offset, log_end_offset)
        producers = self._producers(segments, log_end_offset)
        return RecoveredLog(
            segments=segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            durable_end=(
                log_end_offset
                if self._known.clean_shutdown
                else min(max(self._known.end, log_start_offset), log_end_offset)
            ),
            epochs=epochs,
            producers=producers.entries,
            aborted=self._aborted(segments),
            reports=self._reports,
            gaps_legal_below=self._known.gaps_legal_below,
            read_from=self._scanned_from,
        )

    # -- segments ----------------------------------------------------------------------------

    def _path(self, base_offset: int, kind: str = LOG) -> Path:
        return path_of(self._directory, base_offset, kind)

    def _base_offsets(self) -> list[int]:
        """Return the segments' base offsets, and remove indexes whose segment is gone."""
        files = [
            parsed
            for name in self._fs.list_directory(self._directory)
            if (parsed := parse_file_name(name)) is not None
        ]
        bases = {file.base_offset for file in files if file.kind == LOG}
        self._has_transaction_index = {
            file.base_offset for file in files if file.kind == TRANSACTION_INDEX
        }
        for file in files:
            if file.kind in INDEXES and file.base_offset not in bases:
                name = file_name(file.base_offset, file.kind)
                self._fs.unlink(self._directory / name)
                self._reports.append(f"removed {name}, an index without its segment")
        return sorted(bases)

    def _check_segments(self, bases: list[int]) -> tuple[list[SegmentNumbers], _Cut | None]:
        segments: list[SegmentNumbers] = []
        for number, base in enumerate(bases):
            later = bases[number + 1 :]
            if segments and (cut := self._check_gap(segments[-1], bases[number:])) is not None:
                return segments, cut
            known_whole = self._known.clean_shutdown or (
                bool(later) and later[0] < self._known.recovery_point and not self._known.read_whole
            )
            if known_whole and (measured := self._measure(base)) is not None:
                segments.append(measured)
                continue
            scan = self._scan(base)
            segments.append(scan.numbers)
            self._epoch_starts += scan.epoch_starts
            if not known_whole and self._scanned_from is None:
                self._scanned_from = base
            if scan.fault is not None:
                self._judge(scan, later)
                return segments, _Cut(base, scan.position, later)
        return segments, None

    def _check_gap(self, before: SegmentNumbers, bases: list[int]) -> _Cut | None:
        """Check that a segment begins where the one before ends; None when it does."""
        base = bases[0]
        if base == before.next_offset:
            return None
        path = self._path(base)
        if base < before.next_offset:
            if self._may_be_lost(before.next_offset):
                # Of a life of the log before a truncation whose removals were not synced.
                return self._cut_after(before, bases, f"{path.name} begins at offset {base}")
            raise LogDamaged(
                f"{path} begins at offset {base}, but the segment before ends at"
                f" {before.next_offset}"
            )
        if base <= self._known.gaps_legal_below:
            return None
        if self._known.clean_shutdown or before.next_offset < self._known.end:
            raise LogDamaged(
                f"{path} begins at offset {base}, but the segment before it,"
                f" {self._path(before.base_offset).name}, ends at {before.next_offset}:"
                f" {base - before.next_offset} offsets are missing"
            )
        return self._cut_after(
            before, bases, f"{base - before.next_offset} offsets before the next segment"
        )

    def _cut_after(self, before: SegmentNumbers, bases: list[int], why: str) -> _Cut:
        """End the log with a segment that is whole; later ones do not continue it."""
        sizes, batches = zip(
            *(self._contents(base, 0, before.next_offset) for base in bases), strict=True
        )
        self._reports.append(
            f"truncated to offset {before.next_offset}, the end of"
            f" {self._path(before.base_offset).name}: {why};"
            f" {self._losses(sum(sizes), len(bases), sum(batches))}"
        )
        return _Cut(before.base_offset, before.size_bytes, bases)

    def _contents(self, base: int, start: int, least_offset: int) -> tuple[int, int]:
        """Return how many bytes and valid batches a segment holds from a position on."""
        with self._fs.opened(self._path(base)) as fd:
            end = self._fs.size_bytes(fd)
            return end - start, count_batches(self._fs, fd, start, end, least_offset)

    def _losses(self, lost_bytes: int, files: int, batches: int) -> str:
        return (
            f"{counted(lost_bytes, 'byte')} in {counted(files, 'file')} go,"
            f" {counted(batches, 'valid batch', 'valid batches')} among them,"
            f" all past the known end {self._known.end}"
        )

    def _may_be_lost(self, offset: int) -> bool:
        """Tell whether a restart of the machine explains that the log is bad from there on."""
        return (
            self._known.machine_restarted
            and not self._known.clean_shutdown
            and offset >= self._known.end
        )

    def _measure(self, base: int) -> SegmentNumbers | None:
        """Return the numbers of a segment that should be whole; None to read it all."""
        try:
            return measure_segment(
                self._fs,
                self._directory,
                base,
                gaps_legal_below=self._known.gaps_legal_below,
                thorough=not self._known.clean_shutdown,
            )
        except IndexDistrusted as error:
            self._reports.append(f"rebuilding the indexes of {self._path(base).name}: {error}")
            return None
        except CorruptRecord as error:
            raise LogDamaged(f"{self._path(base)}: {error}") from error

    def _scan(self, base: int) -> _Scan:
        builder = IndexBuilder(base, self._interval)
        order = OffsetOrder(base, self._known.gaps_legal_below)
        first_append_ms = -1
        latest_epoch = -1
        epoch_starts = []
        misplaced: str | None = None
        unproven: int | None = None
        with self._fs.opened(self._path(base)) as fd:
            end = self._fs.size_bytes(fd)
            reader = BatchReader(reader_of(self._fs, fd), 0, end)
            for position, header, _ in reader:
                if (misplaced := order.fault_of(header)) is not None:
                    if self._may_be_lost(order.expected):
                        break  # bytes of before a truncation, which a power cut brought back
                    # The CRC is right, so this is not the cut end of a write; which of two
                    # batches has the wrong offset cannot be told.
                    raise LogDamaged(f"{self._path(base)} at byte {position}: {misplaced}")
                if position == 0:
                    first_append_ms = header.max_timestamp
                if header.partition_leader_epoch > latest_epoch:
                    latest_epoch = header.partition_leader_epoch
                    epoch_starts.append((latest_epoch, header.base_offset))
                if unproven is None and header.next_offset > self._known.end:
                    unproven = position
                self._saw_markers |= header.is_control
                builder.on_batch(position, header)
            position = reader.position
            fault = misplaced or reader.fault
            ends_early = fault is not None and (
                reader.is_cut or is_zero(self._fs, fd, position, end)
            )
        if unproven is not None:
            self._unproven[base] = unproven
        offsets, times = builder.finish()
        store_indexes(self._fs, self._directory, base, offsets, times)
        numbers = numbers_from_scan(
            builder,
            base_offset=base,
            size_bytes=position,
            next_offset=order.expected,
            offset_bytes=len(offsets),
            time_bytes=len(times),
            first_append_ms=first_append_ms,
        )
        return _Scan(numbers, position, fault, ends_early, epoch_starts)

    def _judge(self, scan: _Scan, later: list[int]) -> None:
        """Return when the bytes at the scan's end are a torn tail, else raise LogDamaged."""
        base, _, expected, *_ = scan.numbers
        where = f"{self._path(base)} at byte {scan.position}, offset {expected}: {scan.fault}"
        if self._known.clean_shutdown:
            raise LogDamaged(f"{where}, though the broker was shut down cleanly")
        if expected < self._known.end:
            raise LogDamaged(
                f"{where}, though everything up to offset {self._known.end} was on disk"
            )
        with self._fs.opened(self._path(base)) as fd:
            end = self._fs.size_bytes(fd)
            if _is_old_message(self._fs, fd, scan.position, end):
                raise LogDamaged(
                    f"{where}: a message format before 0.11, which plog does not serve"
                )
        if not self._known.machine_restarted:
            self._check_torn(scan, later, where)
        lost = [self._contents(base, scan.position, expected)]
        lost += [self._contents(segment, 0, expected) for segment in later]
        sizes, batches = zip(*lost, strict=True)
        restarted = ", after a restart of the machine" if self._known.machine_restarted else ""
        self._reports.append(
            f"truncated to offset {expected}{restarted}: {where};"
            f" {self._losses(sum(sizes), len(lost), sum(batches))}"
        )

    def _check_torn(self, scan: _Scan, later: list[int], where: str) -> None:
        """Return when no valid batch follows the fault, else raise LogDamaged."""
        expected = scan.numbers.next_offset
        with self._fs.opened(self._path(scan.numbers.base_offset)) as fd:
            end = self._fs.size_bytes(fd)
            found = find_batch(self._fs, fd, scan.position + 1, end, expected)
        if found is not None:
            raise LogDamaged(f"{where}, but a valid batch follows at byte {found}")
        for segment in [] if scan.ends_early else later:
            with self._fs.opened(self._path(segment)) as fd:
                found = find_batch(self._fs, fd, 0, self._fs.size_bytes(fd), expected)
            if found is not None:
                raise LogDamaged(
                    f"{where}, but a valid batch follows at byte {found} of"
                    f" {self._path(segment).name}"
                )

    def _check_start(self, segments: list[SegmentNumbers]) -> None:
        """Find out whether the first segments are missing; nothing but the epochs would tell.

        Before a log's oldest segments go, its first epoch is made to start where the log will.
        """
        if not (self._known.starts_with_its_epochs and segments):
            return
        path = self._directory / LEADER_EPOCH_FILE
        try:
            epochs = decode_leader_epochs(self._fs.read_text(path), path.name)
        except (FileNotFoundError, CheckpointDamaged):
            return  # `_epochs` finds them anew
        if not epochs.entries:
            return
        due = max(epochs.entries[0].start_offset, self._known.log_start_offset)
        if segments[0].base_offset > due:
            raise LogDamaged(
                f"{self._directory} begins at offset {segments[0].base_offset}, though nothing"
                f" from offset {due} on was deleted"
            )

    def _check_end(self, log_end_offset: int, segments: list[SegmentNumbers]) -> None:
        due = self._known.end
        if not segments:
            due = 0 if due <= self._known.log_start_offset else due
        if log_end_offset < due:
            raise LogDamaged(
                f"{self._directory} ends at offset {log_end_offset}, though everything up to"
                f" offset {due} was on disk"
            )

    def _cut(self, cut: _Cut) -> None:
        for base in reversed(cut.later):
            self._remove_segment(base)
        with self._fs.opened(self._path(cut.base_offset)) as fd:
            self._fs.ftruncate(fd, cut.position)
            self._fs.fsync(fd)
        self._fs.sync_directory(self._directory)

    def _write_unproven(self, segments: list[SegmentNumbers]) -> None:
        if self._known.clean_shutdown or self._known.machine_restarted:
            return
        for segment in segments:
            start = self._unproven.get(segment.base_offset, segment.size_bytes)
            if start >= segment.size_bytes:
                continue
            path = self._path(segment.base_offset)
            with self._fs.opened(path) as fd:
                fault = write_again(self._fs, fd, start, segment.size_bytes)
            if fault is not None:
                raise LogDamaged(f"{path} {fault}, though it read well before")

    def _restart_at(self, offset: int, bases: list[int]) -> SegmentNumbers:
        """Leave one empty segment at the log start offset."""
        if bases:
            self._reports.append(
                f"the log ended before its start offset {offset}: "
                f"{counted(len(bases), 'segment')} removed"
            )
        for base in reversed(bases):
            self._remove_segment(base)
        for kind in (LOG, OFFSET_INDEX, TIME_INDEX):
            self._fs.write_bytes(self._path(offset, kind), b"", sync=False)
        if bases:
            self._fs.sync_directory(self._directory)
        # Else the next start would do the same again: the first flush sees to the names.
        return SegmentNumbers.empty(offset)

    def _remove_segment(self, base: int) -> None:
        # The .log last: without it the rest is orphaned, and removed by the next start.
        for kind in reversed(SEGMENT):
            self._fs.unlink(self._path(base, kind), missing_ok=True)

    # -- what follows from the batches -------------------------------------------------------

    def _epochs(
        self, segments: list[SegmentNumbers], log_start_offset: int, log_end_offset: int
    ) -> LeaderEpochs:
        path = self._directory / LEADER_EPOCH_FILE
        stored: LeaderEpochs | None = None
        try:
            stored = decode_leader_epochs(self._fs.read_text(path), path.name)
        except FileNotFoundError:
            starts = self._epoch_starts if self._scanned_from == segments[0].base_offset else None
        except CheckpointDamaged as error:
            self._reports.append(f"leader epochs are found anew: {error}")
            self._fs.unlink(path)
            starts = None
        else:
            starts = self._epoch_starts
        if starts is None:
            starts = self._all_epoch_starts(segments)
        epochs = (stored or LeaderEpochs()).truncate_from_end(log_end_offset)
        for epoch, start in starts:
            if epoch > epochs.latest:
                epochs = epochs.assign(epoch, start)
        epochs = epochs.truncate_from_start(log_start_offset)
        if epochs != (stored or LeaderEpochs()):
            self._fs.replace_text(path, encode_leader_epochs(epochs))
        return epochs

    def _all_epoch_starts(self, segments: list[SegmentNumbers]) -> list[tuple[int, int]]:
        starts = []
        latest = -1
        for segment in segments:
            with self._fs.opened(self._path(segment.base_offset)) as fd:
                for _, header in walk_headers(
                    reader_of(self._fs, fd), 0, segment.size_bytes, chunk_bytes=1 << 16
                ):
                    if header.partition_leader_epoch > latest:
                        latest = header.partition_leader_epoch
                        starts.append((latest, header.base_offset))
        return starts

    def _producers(self, segments: list[SegmentNumbers], log_end_offset: int) -> LoadedProducers:
        for offset in snapshot_offsets(self._fs, self._directory):
            if offset > log_end_offset:
                self._fs.unlink(self._path(offset, PRODUCER_SNAPSHOT))

        def load(replay_from: int) -> LoadedProducers:
            loaded = load_producers(
                self._fs,
                self._directory,
                segments,
                replay_from=replay_from,
            )
            self._reports.extend(loaded.reports)
            return loaded

        try:
            # The newest snapshot knows producers whose batches retention has removed.
            loaded = load(log_end_offset)
            if self._scanned_from is not None:
                aborted = load(self._scanned_from).aborted if self._saw_markers else []
                self._store_aborted(segments, self._scanned_from, aborted)
                refresh_snapshot(self._fs, self._directory, log_end_offset, loaded.entries)
        except CorruptRecord as error:
            raise LogDamaged(f"{self._directory}: {error}") from error
        return loaded

    def _store_aborted(
        self,
        segments: list[SegmentNumbers],
        scanned_from: int,
        aborted: list[AbortedTransaction],
    ) -> None:
        for segment in segments:
            if segment.base_offset < scanned_from:
                continue
            path = self._path(segment.base_offset, TRANSACTION_INDEX)
            entries = [
                entry
                for entry in aborted
                if segment.base_offset <= entry.last_offset < segment.next_offset
            ]
            if entries:
                self._fs.replace_bytes(path, encode_aborted(entries))
                self._has_transaction_index.add(segment.base_offset)
            else:
                self._fs.unlink(path, missing_ok=True)
                self._has_transaction_index.discard(segment.base_offset)

    def _aborted(self, segments: list[SegmentNumbers]) -> AbortedTransactions:
        """Return what the transaction indexes say; when they are bad, make them anew."""
        try:
            return AbortedTransactions(self._indexed_aborted(segments))
        except CorruptRecord as error:
            self._reports.append(f"rebuilding the transaction indexes: {error}")
        try:
            replayed = load_producers(
                self._fs, self._directory, segments, replay_from=segments[0].base_offset
            )
        except CorruptRecord as error:
            raise LogDamaged(f"{self._directory}: {error}") from error
        self._store_aborted(segments, segments[0].base_offset, replayed.aborted)
        return AbortedTransactions(self._indexed_aborted(segments))

    def _indexed_aborted(self, segments: list[SegmentNumbers]) -> list[AbortedTransaction]:
        found = []
        for segment in segments:
            base = segment.base_offset
            if base not in self._has_transaction_index:
                continue
            path = self._path(base, TRANSACTION_INDEX)
            entries = decode_aborted(self._fs.read_bytes(path))
            for entry in entries:
                if not base <= entry.last_offset < segment.next_offset:
                    raise CorruptRecord(f"{path.name} holds a marker of another segment: {entry}")
            found += entries
        return found


def _is_old_message(fs: Filesystem, fd: int, position: int, end: int) -> bool:
    """Tell whether an entry of a message set v0 or v1 stands there (PROTOCOL 4.2)."""
    head = fs.pread(fd, 17, position)
    if len(head) < 17 or head[16] not in (0, 1):
        return False
    size = int.from_bytes(head[8:12], "big", signed=True)
    if not 14 <= size <= end - position - 12:
        return False
    message = fs.pread(fd, size, position + 12)
    return zlib.crc32(message[4:]) == int.from_bytes(message[:4], "big")
