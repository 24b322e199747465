"""Compacts one log: reads its dirty part, and rewrites older segments without superseded records.

Owns the decision about each batch, and the replacement files; the log publishes them. Checks every
batch that it reads, and replaces a segment only if all of it could be read. Runs on a cleaner
thread; takes no lock while it reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plog._native import batch, cleaning
from plog._native.batch import BatchHeader
from plog._native.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from plog._native.offset_map import OffsetMap
from plog._native.partition_log import Segment
from plog.errors import CorruptRecord, PlogError
from plog.storage.compaction import DirtyRange, SegmentSizes, group_segments
from plog.storage.ended_transactions import EndedTransactions
from plog.storage.filesystem import Filesystem
from plog.storage.index_files import IndexBuilder
from plog.storage.log import Log
from plog.storage.segment import SegmentNumbers, numbers_from_scan
from plog.storage.segment_files import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SEGMENT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    parse_file_name,
    path_of,
)
from plog.storage.segment_scan import BatchReader, ScannedBatch
from plog.storage.transaction_index import AbortedTransaction, encode_aborted

WRITE_BYTES = 1 << 20

Throttle = Callable[[int], None]
"""Called with the number of bytes read or written; sleeps if necessary. Raises `Abandoned`."""


class TooManyKeys(PlogError):
    """One batch has more keys than the key memory can hold."""


class Abandoned(Exception):
    """Compaction must stop: the log is deleted or moved, or the broker stops."""


@dataclass(slots=True)
class Cleaning:
    """The result of one pass over a log."""

    end: int = 0
    """Offset up to which the log is clean."""
    read_bytes: int = 0
    written_bytes: int = 0
    records: int = 0
    kept_records: int = 0
    keys: int = 0


class Cleaner:
    """Compacts logs, one after the other.

    Args:
        key_memory_bytes: memory for the keys of one pass (`log.cleaner.dedupe.buffer.size`).
    """

    def __init__(self, fs: Filesystem, *, key_memory_bytes: int, load_factor: float) -> None:
        self._fs = fs
        self._key_memory_bytes = key_memory_bytes
        self._load_factor = load_factor

    def clean(self, log: Log, dirty: DirtyRange, *, now_ms: int, throttle: Throttle) -> Cleaning:
        """Compact a log as far as the key memory allows.

        Raises:
            KafkaStorageError: a batch cannot be read, the disk has failed or is full; segments
                replaced before stay replaced.
            TooManyKeys: the memory cannot hold the keys of one batch.
            Abandoned: raised by `throttle`, or the segments have changed meanwhile.
        """
        done = Cleaning()
        latest = OffsetMap(self._key_memory_bytes, self._load_factor)
        segments = log.native.segments[:-1]
        # Before creating a .cleaned file: next to one, a start would undo the other replacement.
        log.finish_changes()
        with log.faults.judged():
            self._discard_leftovers(log.directory)
            done.end = self._read_keys(log, segments, dirty, latest, throttle)
            done.keys = latest.count
            cleanable = [one for one in segments if one.base_offset < done.end]
            by_base = {one.base_offset: one for one in cleanable}
            settings = log.settings
            # Of all segments: a marker may lie in a later segment than its records.
            end = cleanable[-1].next_offset if cleanable else 0
            transactions = EndedTransactions(log.transactions.aborted_between(0, end))
            keep_last = next((one.next_offset for one in reversed(cleanable) if one.size_bytes), 0)
            for group in group_segments(
                [_sizes(one) for one in cleanable],
                most_log_bytes=settings.segment_bytes,
                most_index_bytes=settings.segment_index_bytes,
            ):
                members = [by_base[sizes.base_offset] for sizes in group]
                _Group(
                    self._fs, log, members, latest, transactions, done, keep_last, now_ms, throttle
                ).replace()
        return done

    def _discard_leftovers(self, directory: Path) -> None:
        """Remove the files that a failed pass could not remove."""
        for name in self._fs.list_directory(directory):
            parsed = parse_file_name(name)
            if parsed is not None and parsed.suffix == CLEANED:
                self._fs.unlink(directory / name)

    def _read_keys(
        self,
        log: Log,
        segments: Sequence[Segment],
        dirty: DirtyRange,
        latest: OffsetMap,
        throttle: Throttle,
    ) -> int:
        """Fill the map from the dirty batches; return the offset up to which it has all keys."""
        transactions = EndedTransactions(
            log.transactions.aborted_between(dirty.first_dirty, dirty.end)
        )
        known_to = dirty.first_dirty
        for segment in segments:
            if segment.next_offset <= dirty.first_dirty:
                continue
            if segment.base_offset >= dirty.end:
                break
            for scanned in _batches(segment):
                header = scanned.header
                if header.last_offset < dirty.first_dirty:
                    continue
                throttle(header.size_bytes)
                if header.is_control:
                    transactions.is_idle(header)
                elif not transactions.is_aborted(header) and not latest.add_batch(
                    scanned.data, dirty.first_dirty
                ):
                    if known_to == dirty.first_dirty:
                        raise TooManyKeys(
                            f"{log.topic_partition}: the batch at offset {header.base_offset} has"
                            f" more keys than the {latest.capacity} that"
                            " log.cleaner.dedupe.buffer.size holds"
                        )
                    return known_to
                known_to = header.next_offset
        return max(known_to, dirty.end)


class _Group:
    """Segments that become one.

    Args:
        keep_last: end of the last batch that the pass cleans. That batch stays even without
            records, as in Kafka: the active segment may be empty, and the log needs a batch that
            ends at its end.
    """

    def __init__(
        self,
        fs: Filesystem,
        log: Log,
        segments: Sequence[Segment],
        latest: OffsetMap,
        transactions: EndedTransactions,
        done: Cleaning,
        keep_last: int,
        now_ms: int,
        throttle: Throttle,
    ) -> None:
        self._fs = fs
        self._log = log
        self._segments = segments
        self._latest = latest
        self._done = done
        self._keep_last = keep_last
        self._now_ms = now_ms
        self._throttle = throttle
        self._base = segments[0].base_offset
        self._horizon_ms = now_ms + log.settings.delete_retention_ms
        self._last_of_producer = log.last_offsets_of_producers()
        self._transactions = transactions
        self._kept_before = len(transactions.kept)

    def replace(self) -> None:
        """Write the remaining records, and replace the segments in the log."""
        try:
            numbers = self._write()
            if not self._log.replace_cleaned(self._segments, numbers, self._aborted):
                raise Abandoned(f"{self._log.topic_partition}: its segments have changed")
        except BaseException:
            with suppress(OSError):
                self._discard()
            raise

    @property
    def _aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions with a marker and records in these segments."""
        return self._transactions.kept[self._kept_before :]

    def _discard(self) -> None:
        for kind in SEGMENT:
            self._fs.unlink(
                path_of(self._log.directory, self._base, kind, CLEANED), missing_ok=True
            )

    def _write(self) -> SegmentNumbers:
        """Write `.cleaned` files, durably."""
        directory = self._log.directory
        builder = IndexBuilder(self._base, self._log.settings.index_interval_bytes)
        self._discard()  # files of an interrupted pass
        position, next_offset, first_append_ms = 0, self._base, -1
        pending = bytearray()
        with self._fs.opened(path_of(directory, self._base, LOG, CLEANED), create=True) as fd:
            for data in self._left():
                header = batch.read_header(data)
                at = position + len(pending)
                if not at:
                    first_append_ms = header.max_timestamp
                builder.on_batch(at, header)
                next_offset = header.next_offset
                pending += data
                if len(pending) >= WRITE_BYTES:
                    position += self._flush(fd, pending, position)
            position += self._flush(fd, pending, position)
            self._fs.fsync(fd)
        if builder.max_timestamp < 0:
            # Retention may use this time, and the records are no newer than before.
            written_ms = self._log.modified_ms(self._segments[-1])
            if written_ms is None:
                raise Abandoned(f"{self._log.topic_partition}: its segments have changed")
            self._fs.set_modified_ms(path_of(directory, self._base, LOG, CLEANED), written_ms)
        offsets, times = builder.finish()
        aborted = encode_aborted(self._aborted)
        for kind, content in (
            (OFFSET_INDEX, offsets),
            (TIME_INDEX, times),
            (TRANSACTION_INDEX, aborted),
        ):
            if content or kind != TRANSACTION_INDEX:
                self._fs.write_bytes(path_of(directory, self._base, kind, CLEANED), content)
        return numbers_from_scan(
            builder,
            base_offset=self._base,
            size_bytes=position,
            next_offset=next_offset,
            offset_bytes=len(offsets),
            time_bytes=len(times),
            first_append_ms=first_append_ms,
        )

    def _flush(self, fd: int, pending: bytearray, position: int) -> int:
        size = len(pending)
        if size:
            self._throttle(size)
            self._fs.pwrite(fd, bytes(pending), position)
            self._done.written_bytes += size
            pending.clear()
        return size

    def _left(self) -> Iterator[bytes | memoryview]:
        for segment in self._segments:
            for scanned in _batches(segment):
                header = scanned.header
                self._throttle(header.size_bytes)
                self._done.read_bytes += header.size_bytes
                self._done.records += header.records_count
                left = self._judge(scanned)
                is_last = header.next_offset == self._keep_last
                if left is None and (is_last or self._keeps_a_producer(header)):
                    left = cleaning.empty_batch(scanned.data)
                if left is not None:
                    yield left

    def _judge(self, scanned: ScannedBatch) -> bytes | memoryview | None:
        """Return the remaining batch, or None."""
        header = scanned.header
        # Once set, the delete horizon replaces the base timestamp (KIP-534).
        has_horizon = header.has_delete_horizon
        is_past = has_horizon and header.base_timestamp <= self._now_ms
        if header.is_control:
            if not self._transactions.is_idle(header):
                self._done.kept_records += header.records_count
                return scanned.data
            if is_past or not header.records_count:
                return None
            self._done.kept_records += header.records_count
            if has_horizon:
                return scanned.data
            return cleaning.set_delete_horizon(scanned.data, self._horizon_ms)
        if self._transactions.is_aborted(header) or not header.records_count:
            return None
        cleaned = cleaning.clean_batch(
            scanned.data,
            self._latest,
            known_to=self._done.end,
            drop_tombstones=is_past,
            horizon_ms=-1 if has_horizon else self._horizon_ms,
        )
        self._done.kept_records += cleaned.records
        if cleaned.data is None:
            return scanned.data
        return cleaned.data or None

    def _keeps_a_producer(self, header: BatchHeader) -> bool:
        """Return whether recovery needs the batch for its producer's sequence or epoch."""
        if header.producer_id < 0:
            return False
        last = self._last_of_producer.get(header.producer_id)
        if last is None:
            return False
        epoch, offset = last
        if offset is None:
            return header.is_control and header.producer_epoch == epoch
        return offset == header.last_offset


def _batches(segment: Segment) -> Iterator[ScannedBatch]:
    reader = BatchReader(lambda position, size: segment.read(position, size), 0, segment.size_bytes)
    yield from reader
    if reader.fault is not None:
        raise CorruptRecord(
            f"segment {segment.base_offset} at byte {reader.position}: {reader.fault}"
        )


def _sizes(segment: Segment) -> SegmentSizes:
    return SegmentSizes(
        segment.base_offset,
        segment.next_offset,
        segment.size_bytes,
        segment.offset_entries * OFFSET_ENTRY_BYTES,
        segment.time_entries * TIME_ENTRY_BYTES,
    )
