"""Reads a partition of an internal topic from its start: what stands under each key at its end.

Owns the rules by which the records of a log become a table: the last one under a key stands, a
null value removes it, and what a transaction wrote stands where it was written, once its marker
commits it. Keys and values are bytes here; what they say is for who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from plog._native import batch, records
from plog._native.batch import BatchHeader
from plog.errors import CorruptRecord, KafkaStorageError
from plog.storage.log import Log

MARKER_KEY_BYTES = 4
COMMIT_TYPE = 1
"""In a marker's key, at its end: version int16, type int16."""


class Entry(NamedTuple):
    """A value, and the offset of its record; None where it was deleted."""

    value: bytes | None
    offset: int


Table = dict[bytes, Entry]


@dataclass(slots=True)
class Replayed:
    """What a partition says.

    `undecided` holds by producer id what open transactions have written.
    """

    table: Table = field(default_factory=dict)
    undecided: dict[int, Table] = field(default_factory=dict)
    end_offset: int = 0

    def take_batch(self, data: memoryview, header: BatchHeader) -> None:
        """Take one batch in. Raises CorruptRecord."""
        self.end_offset = header.next_offset
        if header.is_control:
            # One that a cleaner has emptied decides nothing: its transaction has left nothing.
            if header.records_count:
                self._take_marker(data, header)
            return
        table = self.table
        if header.is_transactional:
            table = self.undecided.setdefault(header.producer_id, {})
        for record in records.walk(data):
            if record.key is not None:
                table[record.key] = Entry(record.value, record.offset)

    def _take_marker(self, data: memoryview, header: BatchHeader) -> None:
        written = self.undecided.pop(header.producer_id, {})
        (marker,) = records.walk(data)
        key = marker.key or b""
        if len(key) < MARKER_KEY_BYTES or key[MARKER_KEY_BYTES - 1] != COMMIT_TYPE:
            return
        for name, entry in written.items():
            known = self.table.get(name)
            if known is None or known.offset < entry.offset:
                self.table[name] = entry

    def drop_deleted(self) -> None:
        """Drop what was deleted: at the end of the log nothing older is to come.

        A deletion is also of what a transaction, open to the end, has written before it: as its
        marker would have found.
        """
        for table in self.undecided.values():
            for key in [key for key, entry in table.items() if self._is_deleted(key, entry)]:
                del table[key]
        for key in [key for key, entry in self.table.items() if entry.value is None]:
            del self.table[key]

    def _is_deleted(self, key: bytes, entry: Entry) -> bool:
        if entry.value is None:
            return True
        known = self.table.get(key)
        return known is not None and known.value is None and known.offset > entry.offset


def replay(
    log: Log, *, chunk_bytes: int, abandoned: Callable[[], bool] = lambda: False
) -> Replayed:
    """Read a log from its start to the end that it has now.

    Blocks on the disk: for a thread of its own.

    Args:
        chunk_bytes: how much is read at once, but for larger batches.
        abandoned: asked between chunks; what is read is worth nothing once it says yes.

    Raises:
        KafkaStorageError: the log cannot be read, or holds what no broker has written.
    """
    found = Replayed(end_offset=log.log_start_offset)
    end = log.log_end_offset
    while found.end_offset < end and not abandoned():
        at = found.end_offset
        span = log.read(at, chunk_bytes, end, whole_first_batch=True)
        if span is None:
            # No batch is there: compaction may have left that of a segment's end.
            found.end_offset = end
            break
        data = memoryview(span.read())
        try:
            for header in _whole_batches(data):
                if header.last_offset >= at:
                    found.take_batch(_of(data, header), header)
        except (CorruptRecord, ValueError) as damage:
            raise KafkaStorageError(f"{log.topic_partition} cannot be read: {damage}") from damage
        if found.end_offset == at:
            raise KafkaStorageError(f"{log.topic_partition} has no batch at offset {at}")
    found.drop_deleted()
    return found


def _whole_batches(data: memoryview) -> Iterator[BatchHeader]:
    position = 0
    while len(data) - position >= batch.HEADER_BYTES:
        header = batch.read_header(data, position)
        if position + header.size_bytes > len(data):
            return
        yield header
        position += header.size_bytes


def _of(data: memoryview, header: BatchHeader) -> memoryview:
    return data[header.position : header.position + header.size_bytes]
