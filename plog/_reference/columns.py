"""Readable twin of the kernel `columns`: records as rows, rows as Arrow's physical buffers.

Owns the same names with the same meaning. It is the oracle of the agreement
tests and never runs in a reader.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from plog._reference.batch import BatchHeader, check_batch, read_header
from plog._reference.record_view import RecordFault, TooLarge, open_records, read_record
from plog._reference.records import DECOMPRESSED_LIMIT, Record, iterate
from plog.errors import CorruptRecord
from plog.types import Buffer

COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
MOST_CONTROL_BYTES: Final = 65536


def _validity(values: Sequence[object | None]) -> bytes | None:
    if all(value is not None for value in values):
        return None
    bits = bytearray((len(values) + 7) // 8)
    for index, value in enumerate(values):
        if value is not None:
            bits[index // 8] |= 1 << index % 8
    return bytes(bits)


def _offsets(sizes: Sequence[int]) -> bytes:
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return struct.pack(f"={len(offsets)}i", *offsets)


def _binary(values: Sequence[bytes | None]) -> list[bytes | None]:
    held = [value or b"" for value in values]
    return [_validity(values), _offsets([len(value) for value in held]), b"".join(held)]


def _numbers(code: str, values: Sequence[int]) -> list[bytes | None]:
    return [None, struct.pack(f"={len(values)}{code}", *values)]


def _microseconds(timestamp_ms: int) -> int:
    if timestamp_ms > INT64_MAX // 1000:
        return INT64_MAX
    if timestamp_ms < -(INT64_MAX // 1000):
        return -INT64_MAX - 1
    return timestamp_ms * 1000


class ColumnBuilder:
    """Collects records as rows; `take` turns them into columns."""

    def __init__(
        self,
        columns: frozenset[str],
        topic: str,
        partition: int,
        *,
        decompressed_limit: int = DECOMPRESSED_LIMIT,
    ) -> None:
        unknown = frozenset(columns) - frozenset(COLUMNS)
        if unknown:
            raise ValueError(f"unknown column {', '.join(sorted(unknown))}")
        self._columns = columns
        self._topic = topic.encode("utf-8")
        self._partition = partition
        self._limit = decompressed_limit
        self._rows: list[Record] = []
        self._most_rows = INT32_MAX - 1
        if "topic" in columns:
            self._most_rows = min(self._most_rows, INT32_MAX // max(1, len(self._topic)))

    def append(
        self,
        records: Buffer,
        start_offset: int,
        end_offset: int,
        max_rows: int = INT32_MAX,
        aborted: list[tuple[int, int]] | None = None,
        max_bytes: int = INT64_MAX,
    ) -> int:
        """Decode records with start <= offset < end_offset; return the next one to ask for."""
        if start_offset < 0:
            raise ValueError(f"start_offset is {start_offset}")
        next_offset = start_offset
        max_rows = min(max_rows, self._most_rows)
        begun: set[int] = set()
        waiting = sorted((first, producer) for producer, first in aborted or ())
        view = memoryview(records).cast("B")
        pos = reached = 0
        while (
            next_offset < end_offset
            and len(self) < max_rows
            and self.data_bytes < max_bytes
            and not _is_cut(view, pos)
        ):
            header = read_header(view, pos)
            is_row = header.last_offset >= start_offset
            marks = aborted is not None and header.is_control
            if is_row or marks or header.base_offset < 0 or header.last_offset_delta < 0:
                check_batch(view, pos)
            if header.base_offset < reached:
                raise CorruptRecord(
                    f"batch at {pos}: base_offset {header.base_offset} is below {reached},"
                    " where the batch before it ends"
                )
            reached = header.next_offset
            if header.base_offset >= end_offset:
                return end_offset
            while waiting and waiting[0][0] <= header.last_offset:
                begun.add(waiting.pop(0)[1])
            if header.is_control:
                if aborted is not None and _is_abort_marker(view, header):
                    begun.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in begun:
                pass
            elif is_row:
                for record in iterate(view, pos, self._limit):
                    # What stands behind the rows asked for is not looked at.
                    if record.offset >= end_offset:
                        break
                    if record.offset >= start_offset:
                        if len(self) >= max_rows or self.data_bytes >= max_bytes:
                            return record.offset
                        self._rows.append(record)
            next_offset = max(next_offset, min(header.next_offset, end_offset))
            pos += header.size_bytes
        return next_offset

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def data_bytes(self) -> int:
        """Bytes of the buffers so far, but for validity bits and offsets' first entries."""
        return sum(
            len(buffer) - (4 if name in FIRST_ENTRIES and at == 1 else 0)
            for name, buffers in self._layout().items()
            for at, buffer in enumerate(buffers)
            if buffer is not None and at > 0
        )

    def take(self) -> dict[str, list[bytes | None]]:
        """Hand over the buffers of each wanted column and start anew; see the kernel's .pyi."""
        taken = self._layout()
        self._rows = []
        return taken

    def _layout(self) -> dict[str, list[bytes | None]]:
        rows = self._rows
        headers = [header for row in rows for header in row.headers]
        layout = {
            "key": _binary([row.key for row in rows]),
            "value": _binary([row.value for row in rows]),
            "topic": _binary([self._topic for _ in rows]),
            "partition": _numbers("i", [self._partition for _ in rows]),
            "offset": _numbers("q", [row.offset for row in rows]),
            "timestamp": _numbers("q", [_microseconds(row.timestamp) for row in rows]),
            "timestampType": _numbers("i", [row.timestamp_type for row in rows]),
            "headers": [
                # Spark's own Kafka source gives null for no headers, and no empty array.
                _validity([row.headers or None for row in rows]),
                _offsets([len(row.headers) for row in rows]),
            ],
            "headers.key": _binary([key.encode("utf-8") for key, _ in headers]),
            "headers.value": _binary([value for _, value in headers]),
        }
        return {
            name: buffers for name, buffers in layout.items() if name.split(".")[0] in self._columns
        }


FIRST_ENTRIES: Final = ("key", "value", "topic", "headers", "headers.key", "headers.value")
"""Columns whose buffer 1 holds offsets, which begin with a 0."""


def _is_cut(view: memoryview, pos: int) -> bool:
    batch = view[pos:]
    if len(batch) < 61:
        return True
    return read_header(view, pos).size_bytes > len(batch)


def _is_abort_marker(view: memoryview, header: BatchHeader) -> bool:
    """Key of a control record: version, type; type 0 is ABORT. An emptied batch marks nothing."""
    if header.records_count == 0:
        return False
    try:
        records = open_records(view, header, MOST_CONTROL_BYTES)
        raw, _ = read_record(memoryview(records), 0, 0)
    except (RecordFault, TooLarge) as fault:
        raise CorruptRecord(str(fault)) from fault
    size = -1 if raw.key is None else len(raw.key)
    if raw.key is None or size < 4:
        raise CorruptRecord(f"a control record's key has {size} bytes")
    return raw.key[2:4] == b"\0\0"
