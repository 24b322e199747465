"""Reads the batches of a `.log` file one after another, with bounded memory.

Owns how bytes on disk become batch headers: `BatchReader` checks every batch
whole, `walk_headers` steps from header to header, `find_batch` looks for any
batch at all in bytes that are not what they should be. Never decides what bad
bytes mean, and writes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from plog._native import batch
from plog._native.batch import HEADER_BYTES, BatchHeader
from plog._native.crc32c import crc32c
from plog.errors import CorruptRecord
from plog.storage.filesystem import Filesystem

CHUNK_BYTES = 1 << 20
WHOLE_BATCH_BYTES = 16 << 20
"""Larger batches are checksummed in pieces before memory is spent on their word."""

_LENGTH_AT = 8
_LEADER_EPOCH_AT = 12
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_MAGIC = 2

_OFFSET_LENGTH = struct.Struct(">qi")
_OFFSET_SPAN = (1 << 31) - 1
"""A segment's offsets are within 31 bits of its base offset."""


ReadAt: TypeAlias = Callable[[int, int], bytes]
"""(position, size) -> bytes of a `.log` file; fewer only at its end."""


def reader_of(fs: Filesystem, fd: int) -> ReadAt:
    """Return how to read an open file."""
    return lambda position, size: fs.pread(fd, size, position)


class ScannedBatch(NamedTuple):
    """A batch whose CRC and structure are right."""

    position: int  # in the file
    header: BatchHeader
    data: memoryview  # the whole batch

    @property
    def end_position(self) -> int:
        """Where the next batch starts."""
        return self.position + self.header.size_bytes


class OffsetOrder:
    """What the offsets of a segment's batches must be: rising, without gaps but where legal.

    The CRC does not cover them. Compaction alone leaves gaps, below `gaps_legal_below`.
    """

    def __init__(self, base_offset: int, gaps_legal_below: int) -> None:
        self.base_offset = base_offset
        self.gaps_legal_below = gaps_legal_below
        self.expected = base_offset

    def fault_of(self, header: BatchHeader) -> str | None:
        """Take the next batch; return what is wrong with its offsets, None when nothing is."""
        base_offset, expected = header.base_offset, self.expected
        if not expected <= base_offset <= header.last_offset <= self.base_offset + _OFFSET_SPAN:
            return f"base offset {base_offset}, expected {expected}"
        if base_offset > expected and base_offset > self.gaps_legal_below:
            return f"base offset {base_offset}, expected {expected} in a log without gaps"
        self.expected = header.next_offset
        return None


class BatchReader:
    """Iterates over the batches between two positions of a file, and stops at the first bad one.

    Then `position` is where it stopped: `end`, or the first byte of what is no batch, and
    `fault` says what is wrong with it. `is_cut`: the bytes end before the batch they begin.
    """

    def __init__(self, read: ReadAt, position: int, end: int) -> None:
        self._read = read
        self.position = position
        self.end = end
        self.fault: str | None = None
        self.is_cut = False

    def __iter__(self) -> Iterator[ScannedBatch]:
        chunk = memoryview(b"")
        start = self.position  # of the chunk, in the file
        while self.position < self.end:
            at = self.position - start
            size = _batch_bytes(chunk, at)
            if size is None or at + size > len(chunk):
                needed = max(size or 0, HEADER_BYTES)
                if needed > self.end - self.position:
                    self.is_cut = True
                    self.fault = (
                        f"{self.end - self.position} bytes are left for a batch of {needed}"
                    )
                    return
                if size is not None and size > WHOLE_BATCH_BYTES and not self._crc_fits(size):
                    self.fault = f"a batch of {size} bytes whose CRC does not match"
                    return
                wanted = min(max(needed, CHUNK_BYTES), self.end - self.position)
                chunk = memoryview(self._read(self.position, wanted))
                start = self.position
                if len(chunk) < needed:
                    self.is_cut = True
                    self.fault = f"the file ends after {len(chunk)} of {needed} bytes"
                    return
                continue
            try:
                header = batch.check_batch(chunk, at)
            except CorruptRecord as error:
                self.fault = str(error).partition(": ")[2] or str(error)
                return
            yield ScannedBatch(self.position, header, chunk[at : at + header.size_bytes])
            self.position += header.size_bytes

    def _crc_fits(self, size: int) -> bool:
        head = self._read(self.position, HEADER_BYTES)
        asked = int.from_bytes(head[_CRC_AT:_ATTRIBUTES_AT], "big")
        crc = 0
        at = self.position + _ATTRIBUTES_AT
        end = self.position + size
        while at < end:
            piece = self._read(at, min(CHUNK_BYTES, end - at))
            if not piece:
                return False
            crc = crc32c(piece, crc)
            at += len(piece)
        return crc == asked


def _batch_bytes(chunk: memoryview, at: int) -> int | None:
    """Return what the header at `at` says its batch takes; None when it is not all there.

    A length that no batch can have, or another magic, counts as a bare header: `check_batch`
    then names the fault without a read of what the length claims.
    """
    if at + HEADER_BYTES > len(chunk):
        return None
    length = int.from_bytes(chunk[at + _LENGTH_AT : at + _LEADER_EPOCH_AT], "big", signed=True)
    if chunk[at + _MAGIC_AT] != _MAGIC:
        return HEADER_BYTES
    return max(length + _LEADER_EPOCH_AT, HEADER_BYTES)


def walk_headers(
    read: ReadAt, position: int, end: int, *, chunk_bytes: int = 4096
) -> Iterator[tuple[int, BatchHeader]]:
    """Step from header to header between two positions, the second a batch boundary; no CRCs.

    Yields (position in the file, header).

    Raises:
        CorruptRecord: a header does not read as one, or a batch crosses `end`.
        OSError: the file cannot be read.
    """
    chunk = b""
    start = position
    while position < end:
        at = position - start
        if at + HEADER_BYTES > len(chunk):
            chunk = read(position, min(chunk_bytes, end - position))
            start = position
            at = 0
        try:
            header = batch.read_header(chunk, at)
        except CorruptRecord as error:
            fault = str(error).partition(": ")[2] or str(error)
            raise CorruptRecord(f"batch at {position}: {fault}") from error
        if position + header.size_bytes > end:
            raise CorruptRecord(
                f"batch at {position}: it takes {header.size_bytes} bytes,"
                f" only {end - position} are left"
            )
        yield position, header
        position += header.size_bytes


def find_batch(fs: Filesystem, fd: int, start: int, end: int, least_offset: int) -> int | None:
    """Return the position of the first whole valid batch that starts in [start, end).

    Its base offset must be `least_offset` or later, as far as one segment can hold: bytes left
    from an earlier life of the disk blocks are no evidence. Every byte position is tried, so a
    record value that holds such a batch is taken for one; that errs on the side of damage.
    """
    at = start
    while at + HEADER_BYTES <= end:
        chunk = fs.pread(fd, min(CHUNK_BYTES, end - at), at)
        last_start = len(chunk) - HEADER_BYTES
        if last_start < 0:
            return None
        magic_at = chunk.find(_MAGIC, _MAGIC_AT)
        while magic_at != -1 and magic_at - _MAGIC_AT <= last_start:
            begin = magic_at - _MAGIC_AT
            offset, length = _OFFSET_LENGTH.unpack_from(chunk, begin)
            size = length + _LEADER_EPOCH_AT
            if (
                least_offset <= offset <= least_offset + _OFFSET_SPAN
                and HEADER_BYTES <= size <= end - at - begin
                and _is_batch(fs, fd, at + begin, size)
            ):
                return at + begin
            magic_at = chunk.find(_MAGIC, magic_at + 1)
        at += last_start + 1
    return None


def count_batches(fs: Filesystem, fd: int, start: int, end: int, least_offset: int) -> int:
    """Return how many valid batches lie in [start, end), wherever they begin."""
    count = 0
    at = start
    while (found := find_batch(fs, fd, at, end, least_offset)) is not None:
        reader = BatchReader(reader_of(fs, fd), found, end)
        count += sum(1 for _ in reader)
        at = max(reader.position, found + 1)
    return count


def _is_batch(fs: Filesystem, fd: int, position: int, size: int) -> bool:
    reader = BatchReader(reader_of(fs, fd), position, position + size)
    return next(iter(reader), None) is not None


def is_zero(fs: Filesystem, fd: int, start: int, end: int) -> bool:
    """Tell whether a stretch holds zeros only: what a crash leaves of unwritten pages."""
    while start < end:
        chunk = fs.pread(fd, min(CHUNK_BYTES, end - start), start)
        if not chunk:
            return True
        if chunk.count(0) != len(chunk):
            return False
        start += len(chunk)
    return True
