"""The `.txnindex` file: the aborted transactions whose marker lies in a segment.

Owns the 34-byte entries. Never decides which transactions a fetch needs.

    version i16 = 0, producer_id i64, first_offset i64, last_offset i64 (the marker's),
    last_stable_offset i64 (what it was once the transaction had ended)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from plog.errors import CorruptRecord

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """One entry."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    """Encode a whole file, or entries to append to one."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_aborted(data: bytes) -> list[AbortedTransaction]:
    """Decode a whole file.

    Raises:
        CorruptRecord: cut, another version, or offsets that contradict each other.
    """
    if len(data) % ENTRY_BYTES:
        raise CorruptRecord(f"transaction index of {len(data)} bytes")
    entries = []
    marker = -1
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTransaction(*fields)
        if version != _VERSION:
            raise CorruptRecord(f"transaction index entry of version {version}")
        if not 0 <= entry.first_offset <= entry.last_offset or entry.last_offset <= marker:
            raise CorruptRecord(f"transaction index entry out of order: {entry}")
        marker = entry.last_offset
        entries.append(entry)
    return entries
