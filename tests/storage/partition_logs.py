"""What the tests of partition_log share: batches and segment files made by hand.

Nothing here uses the code under test beyond the constructors.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import crcmod.predefined

from plog._native.partition_log import PartitionLog, Segment

crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")

TRANSACTIONAL = 0x10
CONTROL = 0x20


def make_batch(
    records: int = 1,
    size: int = 61,
    *,
    timestamp: int = 1000,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """Build a v2 batch of `size` bytes whose records are filler; no test here looks into them."""
    body = struct.pack(
        ">hiqqqhii",
        attributes,
        records - 1,
        timestamp,
        timestamp,
        producer_id,
        epoch,
        sequence,
        records,
    ) + bytes(size - 61)
    return bytearray(struct.pack(">qiibI", 0, size - 12, -1, 2, crc32c(body)) + body)


class Placed(NamedTuple):
    """One batch in a `.log` file."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int


def walk(data: bytes) -> list[Placed]:
    """Read the headers of whole batches one behind the other; a cut one at the end is left out."""
    found = []
    position = 0
    while len(data) - position >= 61:
        base_offset, length, leader_epoch = struct.unpack_from(">qii", data, position)
        (delta,) = struct.unpack_from(">i", data, position + 23)
        if position + 12 + length > len(data):
            break
        found.append(Placed(position, 12 + length, base_offset, base_offset + delta, leader_epoch))
        position += 12 + length
    return found


def segment_of(files: Sequence[int], base_offset: int = 0, **numbers: int) -> Segment:
    """Make a segment of descriptors (log, index, time index); empty unless `numbers` say else."""
    empty = {
        "size_bytes": 0,
        "next_offset": base_offset,
        "offset_entries": 0,
        "time_entries": 0,
        "max_timestamp": -1,
        "max_timestamp_offset": base_offset,
        "bytes_since_index_entry": 0,
        "first_append_ms": -1,
        "max_index_bytes": 1 << 20,
    }
    log, offset_index, time_index = files
    return Segment(
        base_offset,
        log_fd=log,
        offset_index_fd=offset_index,
        time_index_fd=time_index,
        **(empty | numbers),
    )


def log_of(segments: Sequence[Segment], directory: Path, **numbers: int) -> PartitionLog:
    """Make a log; everything begins and ends at 0 unless `numbers` say otherwise."""
    ends = {
        "log_start_offset": 0,
        "high_watermark": 0,
        "durable_end": 0,
        "leader_epoch": 0,
        "index_interval_bytes": 4096,
    }
    return PartitionLog(list(segments), directory=directory, **(ends | numbers))


class Directory:
    """A partition's directory on real files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)

    def file(self, base_offset: int, suffix: str) -> Path:
        return self.path / f"{base_offset:020d}.{suffix}"

    def data(self, base_offset: int, suffix: str = "log") -> bytes:
        return self.file(base_offset, suffix).read_bytes()

    def offset_index(self, base_offset: int) -> list[tuple[int, int]]:
        return list(struct.iter_unpack(">ii", self.data(base_offset, "index")))

    def time_index(self, base_offset: int) -> list[tuple[int, int]]:
        return list(struct.iter_unpack(">qi", self.data(base_offset, "timeindex")))

    def segment(self, base_offset: int, **numbers: int) -> Segment:
        """Open (or make) the segment's files; it is empty unless `numbers` say otherwise."""
        fds = [
            os.open(self.file(base_offset, suffix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            for suffix in ("log", "index", "timeindex")
        ]
        return segment_of(fds, base_offset, **numbers)

    def written(
        self,
        base_offset: int,
        batches: list[tuple[int, int, int]],
        *,
        next_offset: int,
        index_interval_bytes: int = 300,
        **numbers: int,
    ) -> Segment:
        """Write a segment of (base offset, records, size) batches, with their offset index."""
        log, index, since, entries = b"", b"", 0, 0
        for first, records, size in batches:
            batch = make_batch(records, size)
            batch[:8] = struct.pack(">q", first)
            if since > index_interval_bytes:
                index += struct.pack(">ii", first + records - 1 - base_offset, len(log))
                entries, since = entries + 1, 0
            log += batch
            since += size
        self.file(base_offset, "log").write_bytes(log)
        self.file(base_offset, "index").write_bytes(index)
        self.file(base_offset, "timeindex").write_bytes(b"")
        known = {
            "size_bytes": len(log),
            "next_offset": next_offset,
            "offset_entries": entries,
            "bytes_since_index_entry": since,
        }
        return self.segment(base_offset, **(known | numbers))

    def log(self, segments: list[Segment] | None = None, **numbers: int) -> PartitionLog:
        """Make a writable log of a sole replica, with leader epoch 5."""
        given = [self.segment(0)] if segments is None else segments
        log = log_of(given, self.path, **({"leader_epoch": 5} | numbers))
        log.set_leader(5, writable=True, sole_replica=True)
        return log

    def roll(self, log: PartitionLog, **numbers: int) -> Segment:
        """Publish a new active segment, as storage does."""
        fresh = self.segment(log.log_end_offset, **numbers)
        old = log.segments
        log.replace_segments([*old, fresh])
        old[-1].seal()
        return fresh
