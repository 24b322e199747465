"""Repairs a partition directory after a stop, so that its log can be opened.

Owns the repair: cuts off a torn tail, and rebuilds derived data (leader epochs, producers, aborted
transactions) that does not match the batches. `segment_verdict` decides between a torn tail and
damage; no `.log` file changes before that.

Bytes kept past the known end were read from the page cache, and may not be on disk. After a failed
sync Linux marks the lost pages as clean, so the next sync writes nothing and succeeds. So recovery
writes these bytes again, and the indexes of every segment that it read; then the next sync is
reliable. After a restart of the machine the bytes came from the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from plog._native.partition_log import ProducerEntry
from plog.errors import CorruptRecord, LogDamaged
from plog.storage.checkpoints import CheckpointDamaged
from plog.storage.filesystem import Filesystem
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
from plog.storage.segment import SegmentNumbers
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
from plog.storage.segment_scan import reader_of, walk_headers
from plog.storage.segment_verdict import Cut, Judged, Known, judge_segments
from plog.storage.shutdown_record import MISSING, SHUTDOWN_RECORD_FILE, PartitionRecord, mark_of
from plog.storage.swap_files import finish_swaps
from plog.storage.transaction_index import (
    FAR_OFFSET,
    AbortedTransaction,
    AbortedTransactions,
    decode_aborted,
    encode_aborted,
)
from plog.storage.write_again import write_again
from plog.types import NO_EPOCH, counted


class RecoveredLog(NamedTuple):
    """A consistent log that can be opened."""

    segments: list[SegmentNumbers]  # at least one, the last is active
    log_start_offset: int
    log_end_offset: int
    durable_end: int
    epochs: LeaderEpochs
    producers: list[ProducerEntry]
    aborted: AbortedTransactions
    reports: list[str]  # one line for each repair
    gaps_legal_below: int  # see Known
    read_from: int | None  # base offset from which indexes are not synced


def recover(
    fs: Filesystem, directory: Path, known: Known, *, index_interval_bytes: int
) -> RecoveredLog:
    """Check and repair a partition directory.

    Raises:
        LogDamaged: durable bytes are missing or wrong; the message names file, byte and reason.
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
        self._has_transaction_index: set[int] = set()  # base offsets

    def run(self) -> RecoveredLog:
        self._reports += finish_swaps(self._fs, self._directory)
        if self._reports:  # the record speaks of the segments before
            self._known = self._known._replace(record=None)
        bases = self._base_offsets()
        judged = judge_segments(
            self._fs, self._directory, bases, self._known, index_interval_bytes=self._interval
        )
        self._reports += judged.reports
        segments = judged.segments
        log_end_offset = segments[-1].next_offset if segments else 0
        # After the verdict, .log files may change.
        for base in judged.unused:
            self._remove_segment(base)
            self._reports.append(f"removed {file_name(base, LOG)}, empty and never used")
        if judged.cut is not None:
            self._cut(judged.cut)
        log_start_offset = self._known.log_start_offset
        if segments and log_end_offset < log_start_offset and self._known.clean_shutdown:
            raise LogDamaged(
                f"{self._directory} ends at offset {log_end_offset}, before its log start offset"
                f" {log_start_offset}, though the broker was shut down cleanly"
            )
        if not segments or log_end_offset < log_start_offset:
            segments = [self._restart_at(log_start_offset, [s.base_offset for s in segments])]
            log_end_offset = log_start_offset
        self._write_unproven(segments, judged.unproven)
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        epochs = self._epochs(judged, segments, log_start_offset, log_end_offset)
        producers = self._producers(judged, segments, log_end_offset)
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
            aborted=self._aborted(judged, segments),
            reports=self._reports,
            gaps_legal_below=self._known.gaps_legal_below,
            read_from=judged.read_from,
        )

    # -- segments ----------------------------------------------------------------------------

    def _path(self, base_offset: int, kind: str = LOG) -> Path:
        return path_of(self._directory, base_offset, kind)

    def _base_offsets(self) -> list[int]:
        """Return the segments' base offsets, and remove indexes without a segment."""
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

    def _cut(self, cut: Cut) -> None:
        for base in reversed(cut.later):
            self._remove_segment(base)
        with self._fs.opened(self._path(cut.base_offset)) as fd:
            self._fs.ftruncate(fd, cut.position)
            self._fs.fsync(fd)
        self._fs.sync_directory(self._directory)

    def _write_unproven(self, segments: list[SegmentNumbers], unproven: Mapping[int, int]) -> None:
        if self._known.clean_shutdown or self._known.machine_restarted:
            return
        for segment in segments:
            start = unproven.get(segment.base_offset, segment.size_bytes)
            if start >= segment.size_bytes:
                continue
            path = self._path(segment.base_offset)
            with self._fs.opened(path) as fd:
                fault = write_again(self._fs, fd, start, segment.size_bytes)
            if fault is not None:
                raise LogDamaged(f"{path} {fault}; an earlier read succeeded")

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
        # The first flush syncs the names; until then the next start would repeat this.
        return SegmentNumbers.empty(offset)

    def _remove_segment(self, base: int) -> None:
        # Remove the .log last: without it the next start removes the other files as orphans.
        for kind in reversed(SEGMENT):
            self._fs.unlink(self._path(base, kind), missing_ok=True)

    # -- derived data -----------------------------------------------------------------------

    def _epochs(
        self,
        judged: Judged,
        segments: list[SegmentNumbers],
        log_start_offset: int,
        log_end_offset: int,
    ) -> LeaderEpochs:
        path = self._directory / LEADER_EPOCH_FILE
        stored: LeaderEpochs | None = None
        starts: list[tuple[int, int]] | None = None
        text = judged.epochs_text
        if text is None:
            if judged.read_from == segments[0].base_offset:
                starts = judged.epoch_starts
        else:
            try:
                stored = decode_leader_epochs(text, path.name)
                starts = judged.epoch_starts
                if self._known.clean_shutdown and self._known.record is None:
                    _check_epochs(stored, starts, log_start_offset, self._known.gaps_legal_below)
            except CheckpointDamaged as error:
                self._reports.append(f"rebuilding the leader epochs: {error}")
                self._fs.unlink(path)
                stored = starts = None
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

    def _producers(
        self, judged: Judged, segments: list[SegmentNumbers], log_end_offset: int
    ) -> LoadedProducers:
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
            # The newest snapshot has producers whose batches were deleted by retention.
            loaded = load(log_end_offset)
            if judged.read_from is not None:
                aborted = load(judged.read_from).aborted if judged.saw_markers else []
                self._store_aborted(segments, judged.read_from, aborted)
                refresh_snapshot(self._fs, self._directory, log_end_offset, loaded.entries)
        except CorruptRecord as error:
            raise LogDamaged(f"{self._directory}: {error}") from error
        return loaded

    def _store_aborted(
        self,
        segments: list[SegmentNumbers],
        read_from: int,
        aborted: list[AbortedTransaction],
    ) -> None:
        for segment in segments:
            if segment.base_offset < read_from:
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

    def _aborted(self, judged: Judged, segments: list[SegmentNumbers]) -> AbortedTransactions:
        """Return the aborted transactions; rebuild the transaction indexes that are wrong."""
        replayed: list[AbortedTransaction] | None = None
        try:
            indexed = self._indexed_aborted(segments, self._known.record)
            if not self._known.clean_shutdown or self._known.record is not None:
                return AbortedTransactions(indexed)
            replayed = self._replayed_aborted(segments) if judged.saw_markers else []
            if replayed == indexed:
                return AbortedTransactions(indexed)
            raise CorruptRecord("they do not fit the batches")
        except CorruptRecord as error:
            self._reports.append(f"rebuilding the transaction indexes: {error}")
        if replayed is None:
            replayed = self._replayed_aborted(segments)
        self._store_aborted(segments, segments[0].base_offset, replayed)
        return AbortedTransactions(self._indexed_aborted(segments))

    def _replayed_aborted(self, segments: list[SegmentNumbers]) -> list[AbortedTransaction]:
        try:
            return load_producers(
                self._fs, self._directory, segments, replay_from=segments[0].base_offset
            ).aborted
        except CorruptRecord as error:
            raise LogDamaged(f"{self._directory}: {error}") from error

    def _indexed_aborted(
        self, segments: list[SegmentNumbers], record: PartitionRecord | None = None
    ) -> list[AbortedTransaction]:
        """Decode the transaction indexes; raise CorruptRecord if they differ from `record`."""
        found = []
        for segment in segments:
            base = segment.base_offset
            mark = MISSING
            if exists := base in self._has_transaction_index:
                path = self._path(base, TRANSACTION_INDEX)
                data = self._fs.read_bytes(path)
                mark = mark_of(data)
            if record is not None:
                marks = record.segments.get(base)
                if marks is None or marks.transaction_index != mark:
                    name = file_name(base, TRANSACTION_INDEX)
                    raise CorruptRecord(f"{name} differs from {SHUTDOWN_RECORD_FILE}")
            if not exists:
                continue
            entries = decode_aborted(data)
            for entry in entries:
                if not base <= entry.last_offset < segment.next_offset:
                    raise CorruptRecord(f"{path.name} holds a marker of another segment: {entry}")
            found += entries
        return found


def _check_epochs(
    stored: LeaderEpochs, starts: Sequence[tuple[int, int]], log_start: int, gaps_below: int
) -> None:
    """Check leader epochs against the first batch of each. Raises CheckpointDamaged."""
    before = NO_EPOCH
    for number, (epoch, first) in enumerate(starts):
        end = starts[number + 1][1] if number + 1 < len(starts) else FAR_OFFSET
        facts = [(max(first, log_start), epoch)] if end > log_start else []
        if before != NO_EPOCH and first > max(log_start, gaps_below):
            facts.append((first - 1, before))
        before = epoch
        for offset, due in facts:
            if due != NO_EPOCH and stored.epoch_at(offset) != due:
                raise CheckpointDamaged(
                    f"{LEADER_EPOCH_FILE} has epoch {stored.epoch_at(offset)} for offset {offset},"
                    f" the batch has {due}"
                )
