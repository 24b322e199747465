"""Readable twin of the kernel `records`: records as Python objects, and batches built of them.

Owns the same names with the same meaning. It is the oracle of the agreement
tests and never runs in a broker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from plog._reference.batch import (
    AT_ATTRIBUTES,
    AT_CRC,
    CODEC_NONE,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    BatchHeader,
    check_batch,
)
from plog._reference.compression import DEFAULT_LEVEL, compress
from plog._reference.crc32c import crc32c
from plog._reference.record_view import (
    RawRecord,
    RecordFault,
    TooLarge,
    iterate_records,
    open_records,
)
from plog._reference.wire import encode_varint, encode_varlong
from plog.errors import CorruptRecord, MessageTooLarge
from plog.types import Buffer

DECOMPRESSED_LIMIT: Final = (1 << 31) - 1
MOST_BYTES: Final = 2**31 - 1 - HEADER_BYTES


Headers: TypeAlias = Sequence[tuple[str, Buffer | None]]


class Record(NamedTuple):
    """One record. `timestamp` is ms since 1970; `timestamp_type` 0 CreateTime, 1 LogAppendTime."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def walk(
    batch: Buffer, *, pos: int = 0, decompressed_limit: int = DECOMPRESSED_LIMIT
) -> list[Record]:
    """Every record of one batch (control batches too). The CRC is checked. Raises CorruptRecord."""
    return list(iterate(batch, pos, decompressed_limit))


def iterate(batch: Buffer, pos: int, decompressed_limit: int) -> Iterator[Record]:
    """Do what `walk` does, but fail only when the record that is wrong is reached."""
    header = check_batch(batch, pos)
    last_delta = -1
    try:
        records = open_records(batch, header, decompressed_limit)
        for index, (at, raw, timestamp) in enumerate(iterate_records(header, records)):
            # Compaction leaves gaps, so deltas only have to rise.
            if not last_delta < raw.offset_delta <= header.last_offset_delta:
                raise RecordFault(index, at, "its offset delta does not fit the batch")
            last_delta = raw.offset_delta
            yield _record(header, raw, timestamp)
    except (RecordFault, TooLarge) as fault:
        raise CorruptRecord(str(fault)) from fault


def _record(header: BatchHeader, raw: RawRecord, timestamp: int) -> Record:
    return Record(
        header.base_offset + raw.offset_delta,
        header.max_timestamp if header.is_log_append_time else timestamp,
        int(header.is_log_append_time),
        raw.key,
        raw.value,
        # As Java does, what is not UTF-8 becomes U+FFFD.
        tuple((key.decode("utf-8", "replace"), value) for key, value in raw.headers),
    )


def _sized(data: Buffer | None) -> bytes:
    if data is None:
        return encode_varint(-1)
    held = bytes(memoryview(data))
    return encode_varint(len(held)) + held


def _packed(headers: Sequence[tuple[bytes, Buffer | None]]) -> bytes:
    pieces = [encode_varint(len(headers))]
    for name, data in headers:
        pieces += [_sized(name), _sized(data)]
    return b"".join(pieces)


class BatchBuilder:
    """Collects records of one batch v2; the fields a broker owns are left for it to stamp."""

    def __init__(
        self,
        *,
        codec: int = 0,
        level: int = DEFAULT_LEVEL,
        log_append_time: bool = False,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> None:
        if codec != CODEC_NONE:
            # An unknown codec or level is refused now, and not when the batch is built.
            compress(codec, b"", level)
        self._codec = codec
        self._level = level
        self._attributes = codec | log_append_time << 3 | transactional << 4
        self._producer = (producer_id, producer_epoch, base_sequence)
        self._records = bytearray()
        self._timestamps: list[int] = []
        self._ends: list[int] = []

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers = (),
    ) -> int:
        """Add a record and return the uncompressed size of the batch so far, in bytes."""
        self.add(timestamp, key, value, [(name.encode("utf-8"), data) for name, data in headers])
        return self.uncompressed_bytes

    def add(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[bytes, Buffer | None]],
    ) -> None:
        """Add a record whose headers' keys are bytes."""
        base = self._timestamps[0] if self._timestamps else timestamp
        if not -(2**63) <= timestamp - base < 2**63:
            raise ValueError(f"timestamp {timestamp} is too far from {base}")
        body = bytearray(1)  # attributes
        body += encode_varlong(timestamp - base)
        body += encode_varint(len(self))
        body += _sized(key)
        body += _sized(value)
        body += _packed(headers)
        record = encode_varint(len(body)) + body
        if len(self._records) + len(record) > MOST_BYTES:
            size = len(self._records) + len(record)
            raise MessageTooLarge(f"a batch cannot hold {size} bytes of records")
        self._ends.append(len(self._records) + len(record))
        self._records += record
        self._timestamps.append(timestamp)

    def cut(self, count: int) -> None:
        """Keep the first `count` records alone."""
        del self._timestamps[count:], self._ends[count:]
        del self._records[self._ends[-1] if self._ends else 0 :]

    @staticmethod
    def headers_size(headers: Sequence[tuple[bytes, Buffer | None]]) -> int:
        """Return the bytes that headers take in a record, with their count."""
        return len(_packed(headers))

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def uncompressed_bytes(self) -> int:
        """Bytes of the batch so far, were it not compressed."""
        return HEADER_BYTES + len(self._records)

    def set_producer(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Say who produces, and the sequence of the first record; before `build`."""
        self._producer = (producer_id, producer_epoch, base_sequence)

    def build(self, base_offset: int = 0, leader_epoch: int = -1) -> bytes:
        """Return the batch: header, records (compressed where asked), CRC. May be called again."""
        if not self._timestamps:
            raise ValueError("a batch needs a record")
        records = bytes(self._records)
        if self._codec != CODEC_NONE:
            records = compress(self._codec, records, self._level)
        header = HEADER.pack(
            base_offset,
            HEADER_BYTES - LOG_OVERHEAD + len(records),
            leader_epoch,
            2,
            0,
            self._attributes,
            len(self) - 1,
            self._timestamps[0],
            max(self._timestamps),
            *self._producer,
            len(self),
        )
        batch = bytearray(header + records)
        struct.pack_into(">I", batch, AT_CRC, crc32c(batch[AT_ATTRIBUTES:]))
        return bytes(batch)


def build_batch(
    records: Iterable[
        tuple[int, Buffer | None, Buffer | None, Sequence[tuple[str, Buffer | None]]]
    ],
    *,
    codec: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    log_append_time: bool = False,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Build one batch of (timestamp, key, value, headers)."""
    builder = BatchBuilder(
        codec=codec,
        log_append_time=log_append_time,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return builder.build(base_offset, leader_epoch)


def control_batch(
    *,
    abort: bool,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int = -1,
) -> bytes:
    """The 78-byte transaction marker (KIP-98): key is version and type, value version and epoch."""
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=producer_epoch, transactional=True
    )
    builder._attributes |= 0x20
    builder.append(
        timestamp,
        struct.pack(">hh", 0, 0 if abort else 1),
        struct.pack(">hi", 0, coordinator_epoch),
    )
    return builder.build(offset, leader_epoch)
