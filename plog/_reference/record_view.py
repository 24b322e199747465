"""Readable twin of the kernel `record_view`: the records behind a header, opened and read in place.

Owns where a record's fields are in the bytes, and the words for bytes that are no
record. It is what the twins of `validation`, `records` and `columns` are built on,
and never runs in a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from plog._reference.batch import CODEC_NONE, HEADER_BYTES, LEAST_RECORD_BYTES, BatchHeader
from plog._reference.compression import decompress
from plog._reference.wire import decode_varint, decode_varlong
from plog.errors import CorruptRecord, MalformedBytes
from plog.types import Buffer

CODEC_ZSTD: Final = 4
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


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
