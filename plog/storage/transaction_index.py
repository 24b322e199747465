"""The `.txnindex` file: the aborted transactions whose marker lies in a segment.

Owns the 34-byte entries, and which of them a reader of committed records needs.

    version i16 = 0, producer_id i64, first_offset i64, last_offset i64 (the marker's),
    last_stable_offset i64 (what it was once the transaction had ended)
"""

from __future__ import annotations

import struct
from bisect import bisect_left
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


class AbortedTransactions:
    """The aborted transactions of a log, in the order of their markers. Never changes.

    Most logs have none; those that have keep them encoded, a seventh of what objects take.
    """

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._encoded = encode_aborted(entries)

    def __len__(self) -> int:
        return len(self._encoded) // ENTRY_BYTES

    def _entry(self, number: int) -> AbortedTransaction:
        _, *fields = _ENTRY.unpack_from(self._encoded, number * ENTRY_BYTES)
        return AbortedTransaction(*fields)

    def overlapping(self, fetch_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Return those with records or their marker in [`fetch_offset`, `upper_offset`)."""
        found = []
        first = bisect_left(
            range(len(self)), fetch_offset, key=lambda number: self._entry(number).last_offset
        )
        for number in range(first, len(self)):
            entry = self._entry(number)
            if entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                break  # what was still open then, and all that came later, begins past it
        return found

    def below(self, end_offset: int) -> AbortedTransactions:
        """Return those whose marker lies below an offset, where the log was truncated."""
        entries = map(self._entry, range(len(self)))
        return AbortedTransactions(entry for entry in entries if entry.last_offset < end_offset)
