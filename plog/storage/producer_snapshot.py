"""The bytes of a `.snapshot` file: a partition's producers at an offset.

Owns Kafka's format, version 1. Never decides which snapshot to use. It keeps the
newest batch of each producer only; `producer_state.WindowRefill` finds the others.

    at 0   version         i16 = 1
    at 2   CRC-32C         u32, of everything after it
    at 6   entries         i32, then 46 bytes each, in ascending producer id
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from plog._native.crc32c import crc32c
from plog._native.partition_log import ProducerEntry, SequencedBatch
from plog.errors import CorruptRecord
from plog.storage.producer_state import MAX_SEQUENCE, ONLY_ZERO_NEXT
from plog.types import NO_OFFSET

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
# producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch,
# current_txn_first_offset
_ENTRY = struct.Struct(">qhiqiqiq")


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Encode a snapshot."""
    rows = []
    for entry in sorted(entries):
        newest = entry.batches[-1] if entry.batches else ONLY_ZERO_NEXT
        rows.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                newest.last_sequence,
                newest.last_offset,
                newest.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        )
    body = _COUNT.pack(len(rows)) + b"".join(rows)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """Decode a snapshot.

    Raises:
        CorruptRecord: cut, extended, another version, the CRC does not match, or an entry that no
            producer can have.
    """
    if len(data) < _HEAD.size + _COUNT.size:
        raise CorruptRecord(f"producer snapshot of {len(data)} bytes")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptRecord(f"producer snapshot of version {version}, not {_VERSION}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise CorruptRecord("producer snapshot: CRC does not match")
    (count,) = _COUNT.unpack_from(body)
    rows = body[_COUNT.size :]
    if count < 0 or len(rows) != count * _ENTRY.size:
        raise CorruptRecord(f"producer snapshot: {count} entries in {len(rows)} bytes")
    return [_entry(*row) for row in _ENTRY.iter_unpack(rows)]


def _entry(
    producer_id: int,
    producer_epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    current_txn_first_offset: int,
) -> ProducerEntry:
    if producer_id < 0 or current_txn_first_offset < NO_OFFSET:
        raise CorruptRecord(
            f"producer snapshot: producer {producer_id},"
            f" in a transaction from offset {current_txn_first_offset}"
        )
    newest = ONLY_ZERO_NEXT
    if last_offset != NO_OFFSET:
        newest = SequencedBatch(
            first_sequence=(last_sequence - offset_delta) % (MAX_SEQUENCE + 1),
            last_sequence=last_sequence,
            last_offset=last_offset,
            offset_delta=offset_delta,
            timestamp=timestamp,
        )
    return ProducerEntry(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        batches=(newest,),
        last_timestamp=timestamp,
        coordinator_epoch=coordinator_epoch,
        current_txn_first_offset=current_txn_first_offset,
    )
