"""The `.txnindex` file: the aborted transactions whose marker lies in a segment.

Owns the 34-byte entries, and which of them a reader of committed records needs.

    version i16 = 0, producer_id i64, first_offset i64, last_offset i64 (the marker's),
    last_stable_offset i64 (what it was once the transaction had ended)
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from plog._native.aborted_list import PublishedAborted
from plog.errors import CorruptRecord

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
FAR_OFFSET = (1 << 63) - 1
MOST_PUBLISHED = 1024
"""Of a log, to the fast path: each that is aborted has them all published anew, 32 KB in memory."""


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
    """The aborted transactions of a log, in the order of their markers.

    Encoded, a seventh of what objects take. One thread at a time adds to it; any thread may read.
    """

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._encoded = bytearray(encode_aborted(entries))
        self._ending: tuple[AbortedTransaction, ...] = ()

    def __len__(self) -> int:
        return len(self._encoded) // ENTRY_BYTES + len(self._ending)

    @contextmanager
    def ending(self, producer_id: int, first_offset: int) -> Iterator[None]:
        """Count a transaction as aborted while its marker is written.

        As soon as the marker is there, readers of committed records may pass it: they must know
        before. Until then they do not come so far.
        """
        entry = AbortedTransaction(producer_id, first_offset, FAR_OFFSET, FAR_OFFSET)
        self._ending = (*self._ending, entry)
        try:
            yield
        finally:
            self._ending = tuple(one for one in self._ending if one is not entry)

    def add(self, entry: AbortedTransaction) -> None:
        """Take in a transaction whose marker is the latest."""
        self._encoded += encode_aborted([entry])

    def _entry(self, number: int) -> AbortedTransaction:
        _, *fields = _ENTRY.unpack_from(self._encoded, number * ENTRY_BYTES)
        return AbortedTransaction(*fields)

    def overlapping(self, fetch_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Return those with records or their marker in [`fetch_offset`, `upper_offset`)."""
        # First: one that has ended meanwhile is then found twice rather than not at all.
        found = [entry for entry in self._ending if entry.first_offset < upper_offset]
        count = len(self._encoded) // ENTRY_BYTES
        first = bisect_left(
            range(count), fetch_offset, key=lambda number: self._entry(number).last_offset
        )
        for number in range(first, count):
            entry = self._entry(number)
            if entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                break  # what was still open then, and all that came later, begins past it
        return found

    def published(self) -> PublishedAborted | None:
        """Return the latest of them for the fast path, None where there are none."""
        if not self:
            return None
        left_out = max(len(self._encoded) // ENTRY_BYTES - MOST_PUBLISHED, 0)
        return PublishedAborted(
            bytes(self._encoded[left_out * ENTRY_BYTES :]),
            [(entry.producer_id, entry.first_offset) for entry in self._ending],
            self._entry(left_out - 1).last_offset + 1 if left_out else 0,
        )

    def below(self, end_offset: int) -> AbortedTransactions:
        """Return those whose marker lies below an offset, where the log was truncated."""
        entries = map(self._entry, range(len(self._encoded) // ENTRY_BYTES))
        return AbortedTransactions(entry for entry in entries if entry.last_offset < end_offset)

    def between(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return those whose marker lies in [`start_offset`, `end_offset`)."""
        return list(map(self._entry, self._numbers(start_offset, end_offset)))

    def _numbers(self, start_offset: int, end_offset: int) -> range:
        count = len(self._encoded) // ENTRY_BYTES
        first, end = (
            bisect_left(range(count), at, key=lambda number: self._entry(number).last_offset)
            for at in (start_offset, end_offset)
        )
        return range(first, end)

    def compacted(
        self, start_offset: int, end_offset: int, kept: Iterable[AbortedTransaction]
    ) -> AbortedTransactions:
        """Return these with `kept` for those whose marker lies in a range, which was compacted.

        Whose marker may go must not be known any more: what its producer committed later would be
        taken for aborted.
        """
        replaced = self._numbers(start_offset, end_offset)
        found = AbortedTransactions(kept)
        found._encoded[:0] = self._encoded[: replaced.start * ENTRY_BYTES]
        found._encoded += self._encoded[replaced.stop * ENTRY_BYTES :]
        return found

    def from_offset(self, start_offset: int) -> AbortedTransactions:
        """Return those whose marker lies at an offset or past it, where the log begins now."""
        entries = map(self._entry, range(len(self._encoded) // ENTRY_BYTES))
        return AbortedTransactions(entry for entry in entries if entry.last_offset >= start_offset)
