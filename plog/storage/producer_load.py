"""Finds a partition's producers when its log is opened.

Owns the choice of snapshot, the replay of the batches after it (with the aborted
transactions they reveal), and the bounded look back for the four batches that a
snapshot does not keep. Never changes the log; removes snapshots that are damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from plog._native import records
from plog._native.batch import BatchHeader
from plog._native.partition_log import ProducerEntry
from plog.errors import CorruptRecord
from plog.storage.filesystem import Filesystem
from plog.storage.index_files import position_at, position_below
from plog.storage.producer_snapshot import decode_snapshot, encode_snapshot
from plog.storage.producer_state import (
    CompletedTransaction,
    Marker,
    ProducerReplay,
    WindowRefill,
)
from plog.storage.segment import SegmentNumbers
from plog.storage.segment_files import (
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    parse_file_name,
    path_of,
)
from plog.storage.segment_scan import reader_of, walk_headers
from plog.storage.transaction_index import AbortedTransaction

REPLAY_CHUNK_BYTES = 1 << 16
REFILL_BYTES = 16 << 20
REFILL_BATCHES = 4096
"""How far back, counted from the snapshot's offset, the other four batches are looked for.

A client has at most five requests of `max.request.size` (1 MiB) in flight; a producer whose
batches lie further back has been silent while the others wrote so much. The bounds keep the
start of a broker with thousands of partitions short.
"""
REFILL_STEP_BYTES = 1 << 18

_COMMIT_MARKER = 1
_ABORT_MARKER = 0


class LoadedProducers(NamedTuple):
    """The producers at the log end."""

    entries: list[ProducerEntry]
    aborted: list[AbortedTransaction]  # whose markers were replayed, in their order
    reports: list[str]


def snapshot_offsets(fs: Filesystem, directory: Path) -> list[int]:
    """Return the offsets of the snapshots there are, ascending."""
    parsed = (parse_file_name(name) for name in fs.list_directory(directory))
    return sorted(
        file.base_offset
        for file in parsed
        if file is not None and file.kind == PRODUCER_SNAPSHOT and not file.suffix
    )


def store_snapshot(
    fs: Filesystem, directory: Path, offset: int, entries: Sequence[ProducerEntry]
) -> None:
    """Write the snapshot of the producers below `offset`. Raises OSError."""
    fs.replace_bytes(path_of(directory, offset, PRODUCER_SNAPSHOT), encode_snapshot(entries))


def refresh_snapshot(
    fs: Filesystem, directory: Path, offset: int, entries: Sequence[ProducerEntry]
) -> None:
    """Make the snapshot of `offset` say so, without waiting for the disk. Raises OSError.

    For what has been derived from the batches: a power cut that loses it costs the next start
    the same replay, from the snapshot before.
    """
    path = path_of(directory, offset, PRODUCER_SNAPSHOT)
    data = encode_snapshot(entries)
    if fs.exists(path) and fs.read_bytes(path) == data:
        return
    fs.rename_into_place(path, data, sync=False)


def read_marker(batch: bytes | memoryview) -> Marker | None:
    """Return what a control batch says; None for the kinds that no log of a topic should hold.

    Raises:
        CorruptRecord: it does not hold a control record, as one that was emptied does not.
    """
    found = records.walk(batch)
    if not found or found[0].key is None or len(found[0].key) < 4:
        raise CorruptRecord("a control batch without a control record")
    kind = int.from_bytes(found[0].key[2:4], "big", signed=True)
    if kind not in (_COMMIT_MARKER, _ABORT_MARKER):
        return None
    value = found[0].value
    if value is None or len(value) < 6:
        raise CorruptRecord("a transaction marker without a coordinator epoch")
    return Marker(
        abort=kind == _ABORT_MARKER,
        coordinator_epoch=int.from_bytes(value[2:6], "big", signed=True),
    )


def replay_control(
    replay: ProducerReplay, header: BatchHeader, read: Callable[[], bytes | memoryview]
) -> CompletedTransaction | None:
    """Apply a control batch; return the transaction that it ended, if any.

    Raises:
        CorruptRecord: as `read_marker`.
    """
    if not header.records_count:
        replay.on_emptied_marker(header)
        return None
    marker = read_marker(read())
    return None if marker is None else replay.on_marker(header, marker)


def load_producers(
    fs: Filesystem,
    directory: Path,
    segments: Sequence[SegmentNumbers],
    *,
    replay_from: int,
) -> LoadedProducers:
    """Load the newest good snapshot at or below `replay_from`, and replay what comes after.

    Without one, every batch is replayed, also those that DeleteRecords has hidden.

    Raises:
        CorruptRecord: a batch header on the way does not read as one.
        OSError: a file cannot be read.
    """
    reports: list[str] = []
    snapshot_offset, entries = 0, list[ProducerEntry]()
    for offset in reversed(snapshot_offsets(fs, directory)):
        if offset > replay_from:
            continue
        path = path_of(directory, offset, PRODUCER_SNAPSHOT)
        try:
            entries = decode_snapshot(fs.read_bytes(path))
        except CorruptRecord as error:
            reports.append(f"{path.name} removed; using the previous snapshot: {error}")
            fs.unlink(path)
            continue
        snapshot_offset = offset
        break
    if entries:
        entries = _refilled(fs, directory, segments, snapshot_offset, entries)
    replay = ProducerReplay(entries)
    aborted = []
    for fd, position, header in _headers_from(fs, directory, segments, snapshot_offset):
        if not header.is_control:
            replay.on_batch(header)
            continue
        read = partial(fs.pread, fd, header.size_bytes, position)
        completed = replay_control(replay, header, read)
        if completed is not None and completed.aborted:
            unstable = replay.first_unstable_offset()
            aborted.append(
                AbortedTransaction(
                    producer_id=completed.producer_id,
                    first_offset=completed.first_offset,
                    last_offset=completed.last_offset,
                    last_stable_offset=header.next_offset if unstable is None else unstable,
                )
            )
    return LoadedProducers(list(replay.entries.values()), aborted, reports)


def _headers_from(
    fs: Filesystem, directory: Path, segments: Sequence[SegmentNumbers], offset: int
) -> Iterator[tuple[int, int, BatchHeader]]:
    """Yield (descriptor, position, header) of the batches that hold `offset` or come later."""
    for segment in segments:
        if segment.next_offset <= offset or not segment.size_bytes:
            continue
        start = _position_at(fs, directory, segment, offset)
        with fs.opened(path_of(directory, segment.base_offset, LOG)) as fd:
            for position, header in walk_headers(
                reader_of(fs, fd), start, segment.size_bytes, chunk_bytes=REPLAY_CHUNK_BYTES
            ):
                if header.next_offset > offset:
                    yield fd, position, header


def _position_at(fs: Filesystem, directory: Path, segment: SegmentNumbers, offset: int) -> int:
    """Return a batch's position at or before the batch that holds `offset`."""
    if offset <= segment.base_offset:
        return 0
    offsets = fs.read_bytes(path_of(directory, segment.base_offset, OFFSET_INDEX))
    with fs.opened(path_of(directory, segment.base_offset, LOG)) as fd:
        return position_at(reader_of(fs, fd), offsets, segment.base_offset, offset)


def _refilled(
    fs: Filesystem,
    directory: Path,
    segments: Sequence[SegmentNumbers],
    snapshot_offset: int,
    entries: list[ProducerEntry],
) -> list[ProducerEntry]:
    refill = WindowRefill(entries)
    bytes_left, batches_left = REFILL_BYTES, REFILL_BATCHES
    for segment in reversed(segments):
        if segment.base_offset >= snapshot_offset or not segment.size_bytes:
            continue
        offsets = fs.read_bytes(path_of(directory, segment.base_offset, OFFSET_INDEX))
        with fs.opened(path_of(directory, segment.base_offset, LOG)) as fd:
            end = segment.size_bytes
            if segment.next_offset > snapshot_offset:
                end = position_at(reader_of(fs, fd), offsets, segment.base_offset, snapshot_offset)
                for position, header in walk_headers(reader_of(fs, fd), end, segment.size_bytes):
                    if header.base_offset >= snapshot_offset:
                        break
                    end = position + header.size_bytes
            while end > 0 and bytes_left > 0 and batches_left > 0 and refill.wanting:
                start = position_below(
                    reader_of(fs, fd), offsets, segment.base_offset, end - REFILL_STEP_BYTES
                )
                walked = list(
                    walk_headers(reader_of(fs, fd), start, end, chunk_bytes=REPLAY_CHUNK_BYTES)
                )
                for _, header in reversed(walked):
                    refill.on_batch(header)
                bytes_left -= end - start
                batches_left -= len(walked)
                end = start
    return list(refill.entries.values())
