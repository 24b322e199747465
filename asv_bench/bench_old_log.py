"""Partitions that hold gigabytes of old segments, on a disk that has no room for them.

Owns files with holes: a closed segment has its first and last batch, and the end of either index,
which is what a start after a clean shutdown reads. A hole reads as damage, so nothing else may be
read: scrubbing is off, and fetches begin after the old segments.
"""

from __future__ import annotations

from pathlib import Path

from plog._native.batch import read_header, restamp_offsets
from plog._native.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    encode_offset_entry,
    encode_time_entry,
)
from plog.ops.load import Batch
from plog.storage.leader_epochs import (
    LEADER_EPOCH_FILE,
    EpochStart,
    LeaderEpochs,
    encode_leader_epochs,
)
from plog.storage.producer_snapshot import encode_snapshot
from plog.storage.segment_files import (
    LOG,
    OFFSET_INDEX,
    PRODUCER_SNAPSHOT,
    SEGMENT,
    TIME_INDEX,
    path_of,
)
from plog.storage.shutdown_record import MARKED_BYTES

SEGMENT_BYTES = 1_000_000_000
"""A little less than log.segment.bytes, as closed segments are."""


def write_old_segments(directory: Path, batch: Batch, size_bytes: int) -> int:
    """Replace an empty partition's files by old segments and an empty one; return its offset."""
    for kind in SEGMENT:
        path_of(directory, 0, kind).unlink(missing_ok=True)
    base_offset = 0
    while size_bytes >= 2 * batch.size_bytes:
        segment_bytes = min(size_bytes, SEGMENT_BYTES)
        base_offset = _write_segment(directory, batch, base_offset, segment_bytes)
        size_bytes -= segment_bytes
    for kind in (LOG, OFFSET_INDEX, TIME_INDEX):
        path_of(directory, base_offset, kind).touch()
    path_of(directory, base_offset, PRODUCER_SNAPSHOT).write_bytes(encode_snapshot([]))
    epochs = LeaderEpochs([EpochStart(0, 0)])
    (directory / LEADER_EPOCH_FILE).write_text(encode_leader_epochs(epochs))
    return base_offset


def _write_segment(directory: Path, batch: Batch, base_offset: int, size_bytes: int) -> int:
    """Write a closed segment of at most that size; return the offset after it."""
    batches = size_bytes // batch.size_bytes
    next_offset = base_offset + batches * batch.records
    data = bytearray(batch.path.read_bytes())
    restamp_offsets(data, base_offset, 0)
    first = bytes(data)
    restamp_offsets(data, next_offset - batch.records, 0)
    position = (batches - 1) * batch.size_bytes
    timestamp = read_header(data).max_timestamp

    def offset_entry(number: int) -> bytes:
        return encode_offset_entry((number + 1) * batch.records - 1, number * batch.size_bytes)

    def time_entry(number: int) -> bytes:
        return encode_time_entry(timestamp - batches + 1 + number, number * batch.records)

    # As many entries as batches larger than index.interval.bytes get. A start after a clean
    # shutdown reads the last ones; the others are a hole.
    for kind, entry_bytes, entry in (
        (OFFSET_INDEX, OFFSET_ENTRY_BYTES, offset_entry),
        (TIME_INDEX, TIME_ENTRY_BYTES, time_entry),
    ):
        begin = max(1, batches - MARKED_BYTES // entry_bytes)
        entries = b"".join(map(entry, range(begin, batches)))
        _write(path_of(directory, base_offset, kind), {(begin - 1) * entry_bytes: entries})
    _write(path_of(directory, base_offset, LOG), {0: first, position: bytes(data)})
    return next_offset


def _write(path: Path, pieces: dict[int, bytes]) -> None:
    """Write a file that has nothing but these pieces, by position."""
    with path.open("wb") as file:
        for position, data in pieces.items():
            file.seek(position)
            file.write(data)
