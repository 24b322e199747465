"""Readable twin of the kernel `cleaning`: batches as compaction leaves them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

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
from plog._reference.compression import compress
from plog._reference.crc32c import crc32c
from plog._reference.offset_map import OffsetMap
from plog._reference.record_view import RawRecord, iterate_records, open_records
from plog._reference.records import DECOMPRESSED_LIMIT, walk
from plog._reference.wire import encode_varint, encode_varlong
from plog.types import Buffer

CODEC: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
DELETE_HORIZON: Final = 0x40


class Cleaned(NamedTuple):
    """What is left of a batch: `data` is None where it is the batch as it was."""

    records: int
    data: bytes | None
    has_tombstones: bool


def clean_batch(
    batch: Buffer,
    latest: OffsetMap,
    *,
    known_to: int,
    drop_tombstones: bool,
    horizon_ms: int = -1,
) -> Cleaned:
    """Return a batch without what later records of the same key have superseded."""
    header, found = _read(batch)
    kept = []
    for raw, timestamp in found:
        offset = header.base_offset + raw.offset_delta
        if offset >= known_to or (
            raw.key is not None
            and not (drop_tombstones and raw.value is None)
            and latest.latest(raw.key) <= offset
        ):
            kept.append((raw, timestamp))
    has_tombstones = any(raw.value is None for raw, _ in kept)
    sets_horizon = horizon_ms >= 0 and has_tombstones
    if len(kept) == len(found) and not sets_horizon:
        return Cleaned(len(kept), None, has_tombstones)
    if not kept:
        return Cleaned(0, b"", False)
    max_timestamp = max(timestamp for _, timestamp in kept)
    if header.attributes & LOG_APPEND_TIME:
        max_timestamp = header.max_timestamp
    data = _assemble(header, kept, max_timestamp, horizon_ms if sets_horizon else None)
    return Cleaned(len(kept), data, has_tombstones)


def set_delete_horizon(batch: Buffer, horizon_ms: int) -> bytes:
    """Return a batch that says since when its tombstones or its marker may go."""
    header, found = _read(batch)
    return _assemble(header, found, header.max_timestamp, horizon_ms)


def empty_batch(batch: Buffer) -> bytes:
    """Return a batch's header without any records."""
    header, _ = _read(batch)
    return _assemble(
        header._replace(attributes=header.attributes & ~CODEC), [], header.max_timestamp, None
    )


def _read(batch: Buffer) -> tuple[BatchHeader, list[tuple[RawRecord, int]]]:
    """Return the header, and each record with its timestamp by the batch's base."""
    walk(batch)  # raises what is wrong with it
    header = check_batch(batch)
    records = open_records(batch, header, DECOMPRESSED_LIMIT)
    return header, [(raw, timestamp) for _, raw, timestamp in iterate_records(header, records)]


def _assemble(
    header: BatchHeader,
    records: Sequence[tuple[RawRecord, int]],
    max_timestamp: int,
    horizon_ms: int | None,
) -> bytes:
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon_ms
    body = b"".join(_encode(raw, timestamp - base_timestamp) for raw, timestamp in records)
    if attributes & CODEC != CODEC_NONE and records:
        body = compress(attributes & CODEC, body)
    made = bytearray(
        HEADER.pack(
            header.base_offset,
            HEADER_BYTES - LOG_OVERHEAD + len(body),
            header.partition_leader_epoch,
            2,
            0,
            attributes,
            header.last_offset_delta,
            base_timestamp,
            max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            len(records),
        )
        + body
    )
    struct.pack_into(">I", made, AT_CRC, crc32c(made[AT_ATTRIBUTES:]))
    return bytes(made)


def _encode(raw: RawRecord, timestamp_delta: int) -> bytes:
    body = struct.pack(">b", raw.attributes) + encode_varlong(timestamp_delta)
    body += encode_varint(raw.offset_delta) + _sized(raw.key) + _sized(raw.value)
    body += encode_varint(len(raw.headers))
    for key, value in raw.headers:
        body += _sized(key) + _sized(value)
    return encode_varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data
