"""Readable twin of the kernel `batch`: record batches v2 (magic 2, KIP-98).

Owns the same names with the same meaning, one rule after the other. It is the
oracle of the agreement tests and never runs in a broker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from plog._reference.compression import decompress
from plog._reference.crc32c import crc32c
from plog._reference.wire import decode_varint, decode_varlong
from plog.errors import CorruptRecord, ErrorCode, MalformedBytes
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
MOST_RECORD_ERRORS: Final = 100
NO_TIMESTAMP: Final = -1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

CODEC_NONE: Final = 0
CODEC_ZSTD: Final = 4


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


class Validation(NamedTuple):
    """What deep validation of a produced batch found; see the kernel's .pyi."""

    error: int
    message: str
    record_errors: list[tuple[int, str]]
    max_timestamp_offset_delta: int
    uncompressed_bytes: int
    max_timestamp: int


def _bytes_from(data: Buffer, pos: int) -> memoryview:
    view = memoryview(data).cast("B")
    if not 0 <= pos <= len(view):
        raise ValueError(f"position {pos} is outside the buffer of {len(view)} bytes")
    return view[pos:]


def read_header(data: Buffer, pos: int = 0) -> BatchHeader:
    """Header of the batch at `pos`; neither the CRC nor the rest of the batch is looked at.

    Raises:
        CorruptRecord: fewer than 61 bytes, magic not 2, batch_length below 49.
    """
    batch = _bytes_from(data, pos)
    if len(batch) < HEADER_BYTES:
        raise CorruptRecord(
            f"batch at {pos}: {len(batch)} bytes are there, its header takes {HEADER_BYTES}"
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
    _check_bounds_and_crc(data, header)
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


def _check_bounds_and_crc(data: Buffer, header: BatchHeader) -> None:
    batch = _bytes_from(data, header.position)
    if len(batch) < header.size_bytes:
        raise CorruptRecord(
            f"batch at {header.position}: {len(batch)} bytes are there,"
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


# -- records ---------------------------------------------------------------------------------------


class RecordFault(Exception):
    """Why the records of a batch cannot be read: which one, where, and how the fault is called."""

    def __init__(self, index: int, at: int, text: str) -> None:
        super().__init__(f"record {index} at byte {at} of the records: {text}")


class RawRecord(NamedTuple):
    """A record as its bytes say, before base offset and base timestamp are added."""

    attributes: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def _read_sized(record: memoryview, pos: int) -> tuple[bytes | None, int]:
    size, pos = decode_varint(record, pos)
    if size < -1 or size > len(record) - pos:
        raise MalformedBytes("a length does not fit")
    if size == -1:
        return None, pos
    return bytes(record[pos : pos + size]), pos + size


def read_record(records: memoryview, pos: int, index: int) -> tuple[RawRecord, int]:
    """Read the record at `pos`; return it and where the next one starts. Raises RecordFault."""
    try:
        size, start = decode_varint(records, pos)
    except MalformedBytes as error:
        raise RecordFault(index, pos, "its length does not fit") from error
    if not LEAST_RECORD_BYTES - 1 <= size <= len(records) - start:
        raise RecordFault(index, pos, "its length does not fit")
    record = records[start : start + size]
    attributes = int.from_bytes(record[:1], "big", signed=True)
    try:
        timestamp_delta, at = decode_varlong(record, 1)
        offset_delta, at = decode_varint(record, at)
        key, at = _read_sized(record, at)
        value, at = _read_sized(record, at)
        headers_count, at = decode_varint(record, at)
    except MalformedBytes as error:
        raise RecordFault(index, pos, "a field does not fit in its length") from error
    headers: list[tuple[bytes, bytes | None]] = []
    try:
        if not 0 <= headers_count * 2 <= len(record) - at:
            raise MalformedBytes("so many headers do not fit")
        for _ in range(headers_count):
            header_key, at = _read_sized(record, at)
            if header_key is None:
                raise MalformedBytes("a header's key is null")
            header_value, at = _read_sized(record, at)
            headers.append((header_key, header_value))
    except MalformedBytes as error:
        raise RecordFault(index, pos, "a header does not fit in its length") from error
    if at != size:
        raise RecordFault(index, pos, "bytes are left over in its length")
    raw = RawRecord(attributes, timestamp_delta, offset_delta, key, value, headers)
    return raw, start + size


def iterate_records(header: BatchHeader, records: Buffer) -> Iterator[tuple[int, RawRecord, int]]:
    """Every record with where it starts and its timestamp: records_count of them, no byte more.

    Raises RecordFault.
    """
    view = memoryview(records)
    pos = 0
    for index in range(header.records_count):
        if pos == len(view):
            raise RecordFault(index, pos, "it is missing")
        raw, after = read_record(view, pos, index)
        timestamp = header.base_timestamp + raw.timestamp_delta
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise RecordFault(index, pos, "its timestamp overflows")
        yield pos, raw, timestamp
        pos = after
    if pos != len(view):
        raise RecordFault(header.records_count, pos, "bytes are left over behind the last record")


class TooLarge(Exception):
    """The records would take more bytes than the caller allows."""


def open_records(data: Buffer, header: BatchHeader, limit: int) -> bytes:
    """Return the bytes of the records, expanded if they were compressed.

    Raises:
        CorruptRecord: they are not of the header's codec, or the codec is unknown.
        TooLarge: they take more than `limit` bytes.
    """
    start = header.position + HEADER_BYTES
    stored = bytes(memoryview(data).cast("B")[start : header.position + header.size_bytes])
    if header.codec == CODEC_NONE:
        return stored
    if header.codec > CODEC_ZSTD:
        raise CorruptRecord(f"codec {header.codec} is unknown")
    try:
        return decompress(header.codec, stored, limit)
    except CorruptRecord as error:
        if "limit" in str(error):
            raise TooLarge(f"records take more than {limit} bytes uncompressed") from error
        raise CorruptRecord(f"records are not valid data of codec {header.codec}") from error


# -- what a leader asks of a client's batch --------------------------------------------------------


def _refused(error: ErrorCode, message: str) -> Validation:
    return Validation(error, message, [], -1, 0, -1)


def validate_produced(
    data: Buffer,
    *,
    pos: int = 0,
    now_ms: int,
    before_max_ms: int,
    after_max_ms: int,
    log_append_time: bool,
    key_required: bool,
    decompressed_limit: int,
) -> Validation:
    """Deep validation of one batch from a client, as the leader does before it appends."""
    batch = _bytes_from(data, pos)
    if not batch:
        return _refused(ErrorCode.INVALID_RECORD, f"batch at {pos}: there is none")
    if len(batch) > AT_MAGIC and batch[AT_MAGIC] != 2:
        magic = int.from_bytes(batch[AT_MAGIC : AT_MAGIC + 1], "big", signed=True)
        code = ErrorCode.INVALID_RECORD if magic in (0, 1) else ErrorCode.CORRUPT_MESSAGE
        return _refused(code, f"batch at {pos}: magic {magic}, must be 2")
    is_cut = len(batch) < HEADER_BYTES
    try:
        header = read_header(data, pos)
        surplus = len(batch) - header.size_bytes
        if surplus > 0:
            return _refused(
                ErrorCode.INVALID_RECORD,
                f"batch at {pos}: {surplus} bytes follow, it must be alone",
            )
        is_cut = surplus < 0
        _check_bounds_and_crc(data, header)
    except CorruptRecord as corrupt:
        code = ErrorCode.INVALID_RECORD if is_cut else ErrorCode.CORRUPT_MESSAGE
        return _refused(code, str(corrupt))
    text = _header_refusal(header)
    if text is not None:
        return _refused(ErrorCode.INVALID_RECORD, f"batch at {pos}: {text}")
    if header.codec > CODEC_ZSTD:
        return _refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.codec} is unknown")
    if header.is_log_append_time:
        return _refused(
            ErrorCode.INVALID_TIMESTAMP, f"batch at {pos}: producers must not set LogAppendTime"
        )
    try:
        records = open_records(data, header, decompressed_limit)
        found = list(iterate_records(header, records))
    except TooLarge as too_large:
        return _refused(ErrorCode.MESSAGE_TOO_LARGE, str(too_large))
    except CorruptRecord as corrupt:
        return _refused(ErrorCode.CORRUPT_MESSAGE, str(corrupt))
    except RecordFault as fault:
        return _refused(ErrorCode.INVALID_RECORD, str(fault))

    oldest = min(max(now_ms - before_max_ms, INT64_MIN), INT64_MAX)
    newest = min(max(now_ms + after_max_ms, INT64_MIN), INT64_MAX)
    errors: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    for index, (_, raw, timestamp) in enumerate(found):
        if raw.attributes != 0:
            errors.append((index, f"attributes are {raw.attributes}, must be 0"))
        elif raw.offset_delta != index:
            errors.append((index, f"offset delta is {raw.offset_delta}, must be {index}"))
        elif key_required and raw.key is None:
            errors.append((index, "a record of a compacted topic needs a key"))
        elif log_append_time or timestamp == NO_TIMESTAMP or oldest <= timestamp <= newest:
            continue
        else:
            errors.append((index, f"timestamp {timestamp} is not within {oldest} .. {newest}"))
            code = ErrorCode.INVALID_TIMESTAMP
    if errors:
        message = f"{len(errors)} of {len(found)} records refused"
        return Validation(code, message, errors[:MOST_RECORD_ERRORS], -1, 0, -1)

    uncompressed_bytes = HEADER_BYTES + len(records)
    if log_append_time:
        return Validation(ErrorCode.NONE, "", [], 0, uncompressed_bytes, now_ms)
    timestamps = [timestamp for _, _, timestamp in found]
    greatest = max(timestamps)
    if greatest < NO_TIMESTAMP:
        return Validation(ErrorCode.NONE, "", [], -1, uncompressed_bytes, NO_TIMESTAMP)
    return Validation(
        ErrorCode.NONE, "", [], timestamps.index(greatest), uncompressed_bytes, greatest
    )


def _header_refusal(header: BatchHeader) -> str | None:
    """What Kafka's leader refuses of a client whatever the records say.

    Without a producer id the other producer fields are not looked at: Sarama
    and KafkaJS leave zeros there.
    """
    if header.base_offset != 0:
        return f"base_offset is {header.base_offset}, a producer must leave it 0"
    if header.last_offset_delta < 0:
        return f"last_offset_delta is {header.last_offset_delta}"
    if header.records_count < 1:
        return f"records_count is {header.records_count}"
    if header.records_count != header.last_offset_delta + 1:
        return (
            f"records_count is {header.records_count},"
            f" last_offset_delta is {header.last_offset_delta}"
        )
    if header.is_control:
        return "clients must not write control batches"
    if header.has_delete_horizon:
        return "clients must not set a delete horizon"
    if header.producer_id < -1:
        return f"producer_id is {header.producer_id}"
    if header.producer_id == -1:
        return "a transactional batch needs a producer_id" if header.is_transactional else None
    if header.producer_epoch < 0:
        return f"producer_epoch is {header.producer_epoch} with producer_id {header.producer_id}"
    if header.base_sequence < 0:
        return f"base_sequence is {header.base_sequence} with producer_id {header.producer_id}"
    return None


# -- restamping ------------------------------------------------------------------------------------


def _writable_batch(buffer: Buffer, pos: int) -> memoryview:
    header = read_header(buffer, pos)
    batch = _bytes_from(buffer, pos)
    if batch.readonly:
        raise BufferError("the buffer is read-only")
    if len(batch) < header.size_bytes:
        raise CorruptRecord(
            f"batch at {pos}: {len(batch)} bytes are there, it takes {header.size_bytes}"
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
