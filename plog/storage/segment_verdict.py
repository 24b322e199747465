"""Decides which segments of a partition directory are valid, and where its log has to end.

Owns the verdict: complete, torn tail or damage. There are three cases.

After a clean shutdown nothing may be missing. Sizes, index ends and last batches are checked, and
any fault is damage. Indexes must match the shutdown record; without a record they are checked
against the batches.

After a crash of the process, every segment that reaches the recovery point is read whole. Indexes
of the segments below that point are on disk as well. A segment that ends exactly there may lack
its indexes, if it was rolled after the point was written. The first bad byte ends the log if

- it lies at or past the known end (the recovery point or the durable end, whichever is later), so
  that no client got an acknowledgement for it, and
- no valid batch follows it anywhere, so that it is the tail of an interrupted write.

Only after a file that ends early (a cut batch, or zeros) may a later segment hold batches: a power
cut can lose the end of a segment that was just rolled and keep the beginning of the next. The
batches past the gap were never acknowledged, and are removed.

The page cache survives a crash of the process, so a gap with batches after it is damage. After a
restart of the *machine* (another boot id) it is not: pages that were not synced may have reached
the disk in any order. Then the first bad byte at or past the known end ends the log, even if valid
batches and segments follow; the report counts them.

Everything else raises LogDamaged. Never changes a `.log` file; `recovery` does that later. Rewrites
the indexes of a segment that was read whole, because they are derived.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from plog.errors import CorruptRecord, LogDamaged
from plog.storage.checkpoints import CheckpointDamaged
from plog.storage.filesystem import Filesystem
from plog.storage.index_check import check_entries
from plog.storage.index_files import IndexBuilder, store_indexes
from plog.storage.leader_epochs import LEADER_EPOCH_FILE, decode_leader_epochs
from plog.storage.segment import (
    IndexDistrusted,
    SegmentNumbers,
    measure_segment,
    numbers_from_scan,
)
from plog.storage.segment_files import LOG, path_of
from plog.storage.segment_scan import (
    BatchReader,
    OffsetOrder,
    count_batches,
    find_batch,
    is_zero,
    reader_of,
)
from plog.storage.shutdown_record import PartitionRecord, read_kept
from plog.types import counted

ANY_OFFSET = 1 << 63


class Known(NamedTuple):
    """Facts about a partition from the log directory's files, before its own files are read."""

    clean_shutdown: bool
    read_whole: bool = False  # found damaged before: check every byte
    machine_restarted: bool = False  # since the log was last written: see above
    starts_with_its_epochs: bool = False  # leader-epoch-checkpoint follows before segments go
    recovery_point: int = 0
    durable_end: int = 0
    log_start_offset: int = 0
    gaps_legal_below: int = 0  # compaction removes batches; ANY_OFFSET for compacted topics
    record: PartitionRecord | None = None  # of the clean shutdown, if there is one

    def kept_text(self, name: str) -> str | None:
        """Return the text of a small file at the clean shutdown; None if unknown."""
        return None if self.record is None else self.record.texts.get(name)

    @property
    def end(self) -> int:
        """The offset up to which every record is known to be on disk."""
        return max(self.recovery_point, self.durable_end)


class Cut(NamedTuple):
    """Where the log has to end, because a torn tail follows."""

    base_offset: int  # of the segment
    position: int
    later: Sequence[int]  # base offsets of the segments to remove


class Judged(NamedTuple):
    """The verdict: the segments that stay, and facts about their batches."""

    segments: list[SegmentNumbers]  # the last one up to the `cut`
    cut: Cut | None
    read_from: int | None  # base offset of the first segment read whole because it may be torn
    unproven: dict[int, int]  # by base offset: position of the first batch that may not be on disk
    saw_markers: bool  # of transactions, in the batches read
    epoch_starts: list[tuple[int, int]]  # (leader epoch, first offset), in the batches read
    epochs_text: str | None  # leader-epoch-checkpoint, if it exists
    unused: list[int]  # base offsets of empty segments left by a failed roll
    reports: list[str]  # one line for each repair


class _Scan(NamedTuple):
    """The result of reading a whole segment."""

    numbers: SegmentNumbers
    position: int  # after its last valid batch
    fault: str | None  # the fault of the bytes at `position`
    ends_early: bool  # the bytes are an incomplete batch, or zeros
    epoch_starts: list[tuple[int, int]]


def judge_segments(
    fs: Filesystem,
    directory: Path,
    bases: Sequence[int],
    known: Known,
    *,
    index_interval_bytes: int,
) -> Judged:
    """Judge all segments of a partition, given by ascending base offsets.

    Raises:
        LogDamaged: durable bytes are missing or wrong; the message names file, byte and reason.
        OSError: the disk failed.
    """
    return _Judge(fs, directory, known, index_interval_bytes).run(bases)


class _Judge:
    def __init__(
        self, fs: Filesystem, directory: Path, known: Known, index_interval_bytes: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._known = known
        self._interval = index_interval_bytes
        self._reports: list[str] = []
        self._read_from: int | None = None
        self._unproven: dict[int, int] = {}
        self._saw_markers = False
        self._epoch_starts: list[tuple[int, int]] = []
        self._epochs_text: str | None = None
        self._unused: list[int] = []

    def run(self, bases: Sequence[int]) -> Judged:
        self._check_none_is_missing(bases)
        segments, cut = self._check_segments(bases)
        self._epochs_text = read_kept(
            self._fs,
            self._directory / LEADER_EPOCH_FILE,
            self._known.kept_text(LEADER_EPOCH_FILE),
        )
        self._check_start(segments)
        self._check_end(segments)
        return Judged(
            segments=segments,
            cut=cut,
            read_from=self._read_from,
            unproven=self._unproven,
            saw_markers=self._saw_markers,
            epoch_starts=self._epoch_starts,
            epochs_text=self._epochs_text,
            unused=self._unused,
            reports=self._reports,
        )

    def _path(self, base_offset: int) -> Path:
        return path_of(self._directory, base_offset, LOG)

    def _check_none_is_missing(self, bases: Sequence[int]) -> None:
        record = self._known.record
        lost = set() if record is None else record.segments.keys() - set(bases)
        if lost:
            raise LogDamaged(
                f"{self._path(min(lost))} is missing; it was there at the clean shutdown"
            )

    def _check_segments(self, bases: Sequence[int]) -> tuple[list[SegmentNumbers], Cut | None]:
        segments: list[SegmentNumbers] = []
        for number, base in enumerate(bases):
            later = bases[number + 1 :]
            if segments and self._is_unused(segments[-1], base):
                self._unused.append(base)
                continue
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
            if not known_whole and self._read_from is None:
                self._read_from = base
            if scan.fault is not None:
                self._judge(scan, later)
                return segments, Cut(base, scan.position, later)
        return segments, None

    def _is_unused(self, before: SegmentNumbers, base: int) -> bool:
        """Return whether a segment is empty and starts among the records of the one before.

        A failed roll can leave such a segment, while the log continues in the one before. It never
        held a record: otherwise the log would end too early, or have a gap.
        """
        if base >= before.next_offset:
            return False
        with self._fs.opened(self._path(base)) as fd:
            return self._fs.size_bytes(fd) == 0

    def _check_gap(self, before: SegmentNumbers, bases: Sequence[int]) -> Cut | None:
        """Check that a segment begins where the one before ends; return None if so."""
        base = bases[0]
        if base == before.next_offset:
            return None
        path = self._path(base)
        if base < before.next_offset:
            if self._may_be_lost(before.next_offset):
                # A leftover from before a truncation whose removals were not synced.
                return self._cut_after(before, bases, f"{path.name} begins at offset {base}")
            raise LogDamaged(
                f"{path} begins at offset {base}, but the segment before it ends at"
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
            before,
            bases,
            f"{base - before.next_offset} offsets are missing before the next segment",
        )

    def _cut_after(self, before: SegmentNumbers, bases: Sequence[int], why: str) -> Cut:
        """End the log after a complete segment; later ones do not continue it."""
        sizes, batches = zip(
            *(self._contents(base, 0, before.next_offset) for base in bases), strict=True
        )
        self._reports.append(
            f"truncated to offset {before.next_offset}, the end of"
            f" {self._path(before.base_offset).name}: {why};"
            f" {self._losses(sum(sizes), len(bases), sum(batches))}"
        )
        return Cut(before.base_offset, before.size_bytes, bases)

    def _contents(self, base: int, start: int, least_offset: int) -> tuple[int, int]:
        """Return the numbers of bytes and valid batches in a segment from a position on."""
        with self._fs.opened(self._path(base)) as fd:
            end = self._fs.size_bytes(fd)
            return end - start, count_batches(self._fs, fd, start, end, least_offset)

    def _losses(self, lost_bytes: int, files: int, batches: int) -> str:
        return (
            f"dropped {counted(lost_bytes, 'byte')} in {counted(files, 'file')},"
            f" including {counted(batches, 'valid batch', 'valid batches')},"
            f" all past the known end {self._known.end}"
        )

    def _may_be_lost(self, offset: int) -> bool:
        """Return whether a restart of the machine explains a fault at this offset."""
        return (
            self._known.machine_restarted
            and not self._known.clean_shutdown
            and offset >= self._known.end
        )

    def _measure(self, base: int) -> SegmentNumbers | None:
        """Return the numbers of a segment that should be complete; None to read all of it."""
        record = self._known.record
        marks = None if record is None else record.segments.get(base)
        try:
            numbers = measure_segment(
                self._fs,
                self._directory,
                base,
                gaps_legal_below=self._known.gaps_legal_below,
                thorough=marks is None,
                marks=marks,
            )
            if self._known.clean_shutdown and marks is None:
                seen = check_entries(self._fs, self._directory, numbers)
                self._saw_markers |= seen.has_markers
                self._epoch_starts += seen.epoch_starts
            return numbers
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
                        break  # bytes from before a truncation, restored by a power cut
                    # The CRC is valid, so this is not the end of an interrupted write. Either of
                    # the two batches may have the wrong offset.
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

    def _judge(self, scan: _Scan, later: Sequence[int]) -> None:
        """Raise LogDamaged unless the bytes at the scan's end are a torn tail."""
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
                    f"{where}: a message format before 0.11, which plog does not support"
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

    def _check_torn(self, scan: _Scan, later: Sequence[int], where: str) -> None:
        """Raise LogDamaged if a valid batch follows the fault."""
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
        """Raise LogDamaged if the first segments are missing; only the epochs show that.

        Before plog deletes a log's oldest segments, it moves the start of the first epoch to the
        new start of the log.
        """
        if not (self._known.starts_with_its_epochs and segments):
            return
        try:
            epochs = decode_leader_epochs(self._epochs_text or "", LEADER_EPOCH_FILE)
        except CheckpointDamaged:
            return  # recovery rebuilds them
        if not epochs.entries:
            return
        due = max(epochs.entries[0].start_offset, self._known.log_start_offset)
        if segments[0].base_offset > due:
            raise LogDamaged(
                f"{self._directory} begins at offset {segments[0].base_offset}, though nothing"
                f" from offset {due} on was deleted"
            )

    def _check_end(self, segments: list[SegmentNumbers]) -> None:
        log_end_offset = segments[-1].next_offset if segments else 0
        due = self._known.end
        if not segments:
            due = 0 if due <= self._known.log_start_offset else due
        if log_end_offset < due:
            raise LogDamaged(
                f"{self._directory} ends at offset {log_end_offset}, though everything up to"
                f" offset {due} was on disk"
            )


def _is_old_message(fs: Filesystem, fd: int, position: int, end: int) -> bool:
    """Return whether the bytes begin an entry of a message set v0 or v1 (docs/FORMATS.md)."""
    head = fs.pread(fd, 17, position)
    if len(head) < 17 or head[16] not in (0, 1):
        return False
    size = int.from_bytes(head[8:12], "big", signed=True)
    if not 14 <= size <= end - position - 12:
        return False
    message = fs.pread(fd, size, position + 12)
    return zlib.crc32(message[4:]) == int.from_bytes(message[:4], "big")
