"""Readable twin of the kernel `batch`: headers of record batches v2 (magic 2, KIP-98).

Owns the same names with the same meaning, one rule after the other, and what the
kernel `batch_fields` knows. It is the oracle of the agreement tests and never runs
in a broker.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from plog._reference.crc32c import crc32c
from plog.errors import CorruptRecord
from plog.types import Buffer

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
AT_MAGIC: Final = 16
AT_CRC: Final = 17
AT_ATTRIBUTES: Final = 21
AT_MAX_TIMESTAMP: Final = 35
LOG_OVERHEAD: Final = 12
"""Bytes before those that batch_length counts."""
LEAST_RECORD_BYTES: Final = 7
"""Length, attributes, timestamp delta, offset delta, key length, value length, headers count."""
INT64_MAX: Final = 2**63 - 1

CODEC_NONE: Final = 0


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, with what follows from them."""

    position: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also when compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where the next batch may start."""
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; it wraps past 2147483647 to 0; -1 without a sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) % 2**31

    @property
    def codec(self) -> int:
        """Codec of the records."""
        return self.attributes & 0x07

    @property
    def is_log_append_time(self) -> bool:
        """Whether max_timestamp is the time of the append, and that of every record."""
        return bool(self.attributes & 0x08)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a marker and none of a client's data."""
        return bool(self.attributes & 0x20)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether base_timestamp is the time when tombstones may go (KIP-534)."""
        return bool(self.attributes & 0x40)


def bytes_from(data: Buffer, pos: int) -> memoryview:
    """Return `data` from `pos` on. Raises ValueError: `pos` is outside it."""
    view = memoryview(data).cast("B")
    if not 0 <= pos <= len(view):
        raise ValueError(f"position {pos} is outside the buffer of {len(view)} bytes")
    return view[pos:]


def read_header(data: Buffer, pos: int = 0) -> BatchHeader:
    """Header of the batch at `pos`; neither the CRC nor the rest of the batch is looked at.

    Raises:
        CorruptRecord: fewer than 61 bytes, magic not 2, batch_length below 49.
    """
    batch = bytes_from(data, pos)
    if len(batch) < HEADER_BYTES:
        raise CorruptRecord(
            f"batch at {pos}: only {len(batch)} bytes are left, its header takes {HEADER_BYTES}"
        )
    header = BatchHeader(pos, *HEADER.unpack_from(batch))
    if header.magic != 2:
        raise CorruptRecord(f"batch at {pos}: magic {header.magic}, must be 2")
    if header.size_bytes < HEADER_BYTES:
        raise CorruptRecord(
            f"batch at {pos}: batch_length {header.batch_length} is less than its header"
        )
    return header


def check_batch(data: Buffer, pos: int = 0) -> BatchHeader:
    """Header, bounds and CRC of the batch at `pos`, and that its fields agree with each other.

    Raises CorruptRecord.
    """
    header = read_header(data, pos)
    check_bounds_and_crc(data, header)
    if (
        not _offsets_make_sense(header)
        or header.records_count < 0
        or header.records_count > header.last_offset_delta + 1
        or not _records_can_fit(header)
    ):
        raise _contradiction(header)
    return header


def _offsets_make_sense(header: BatchHeader) -> bool:
    return (
        header.base_offset >= 0
        and header.last_offset_delta >= 0
        and header.next_offset <= INT64_MAX
    )


def _contradiction(header: BatchHeader) -> CorruptRecord:
    return CorruptRecord(
        f"batch at {header.position}: base_offset {header.base_offset}, last_offset_delta"
        f" {header.last_offset_delta}, records_count {header.records_count} and"
        f" {header.size_bytes} bytes contradict each other"
    )


def check_bounds_and_crc(data: Buffer, header: BatchHeader) -> None:
    """Raise CorruptRecord unless the batch is there whole, as its CRC says."""
    batch = bytes_from(data, header.position)
    if len(batch) < header.size_bytes:
        raise CorruptRecord(
            f"batch at {header.position}: only {len(batch)} bytes are left,"
            f" it takes {header.size_bytes}"
        )
    crc = crc32c(batch[AT_ATTRIBUTES : header.size_bytes])
    if crc != header.crc:
        raise CorruptRecord(
            f"batch at {header.position}: CRC is {crc:08x}, its header says {header.crc:08x}"
        )


def _records_can_fit(header: BatchHeader) -> bool:
    if header.codec != CODEC_NONE:
        return True
    return header.records_count * LEAST_RECORD_BYTES <= header.size_bytes - HEADER_BYTES


def scan(data: Buffer) -> list[BatchHeader]:
    """Every batch of a record set, each with its CRC checked; a cut tail is CorruptRecord."""
    found: list[BatchHeader] = []
    pos = 0
    while pos < len(memoryview(data).cast("B")):
        found.append(check_batch(data, pos))
        pos += found[-1].size_bytes
    return found


def whole(data: Buffer, offset: int) -> tuple[int, int]:
    """Where the last batch that is there whole ends, and the offset after it or after `offset`."""
    size, pos = len(memoryview(data).cast("B")), 0
    while size - pos >= HEADER_BYTES:
        header = read_header(data, pos)
        if not _offsets_make_sense(header):
            raise _contradiction(header)
        if header.size_bytes > size - pos:
            break
        offset = max(offset, header.next_offset)
        pos += header.size_bytes
    return pos, offset


# -- restamping ------------------------------------------------------------------------------------


def _writable_batch(buffer: Buffer, pos: int) -> memoryview:
    header = read_header(buffer, pos)
    batch = bytes_from(buffer, pos)
    if batch.readonly:
        raise BufferError("the buffer is read-only")
    if len(batch) < header.size_bytes:
        raise CorruptRecord(
            f"batch at {pos}: only {len(batch)} bytes are left, it takes {header.size_bytes}"
        )
    return batch[: header.size_bytes]


def _stamp_crc(batch: memoryview) -> None:
    struct.pack_into(">I", batch, AT_CRC, crc32c(batch[AT_ATTRIBUTES:]))


def restamp_offsets(buffer: Buffer, base_offset: int, leader_epoch: int, pos: int = 0) -> None:
    """Write base_offset and partition_leader_epoch, which the CRC does not cover."""
    batch = _writable_batch(buffer, pos)
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)


def restamp_append_time(buffer: Buffer, timestamp_ms: int, pos: int = 0) -> None:
    """Set the LogAppendTime bit and max_timestamp, and the CRC they change."""
    batch = _writable_batch(buffer, pos)
    batch[AT_ATTRIBUTES + 1] |= 0x08
    struct.pack_into(">q", batch, AT_MAX_TIMESTAMP, timestamp_ms)
    _stamp_crc(batch)


def restamp_max_timestamp(buffer: Buffer, timestamp_ms: int, pos: int = 0) -> None:
    """Set max_timestamp, and the CRC it changes."""
    batch = _writable_batch(buffer, pos)
    if struct.unpack_from(">q", batch, AT_MAX_TIMESTAMP) != (timestamp_ms,):
        struct.pack_into(">q", batch, AT_MAX_TIMESTAMP, timestamp_ms)
        _stamp_crc(batch)
