"""Readable twin of the kernel `rows`: Arrow columns into record batches.

Owns the same names with the same meaning. It is the oracle of the agreement
tests and never runs in a producer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from plog._reference.murmur2 import murmur2
from plog._reference.records import BatchBuilder
from plog.types import Buffer

BUFFERS: Final = {
    "key": 3,
    "value": 3,
    "headers": 2,
    "headers.key": 3,
    "headers.value": 3,
    "partition": 2,
    "timestamp_ms": 2,
}
WIDTHS: Final = {"partition": 4, "timestamp_ms": 8}
INT32_MAX: Final = 2**31 - 1
MOST_BATCH_BYTES: Final = 0x7FFFFF00
LENGTHS_BYTES: Final = 10
"""Of a header's key and value, each as long as it can be."""

Headers: TypeAlias = list[tuple[bytes, bytes | None]]


class _Column:
    """One column's buffers; values are counted from the array's first."""

    def __init__(self, buffers: Sequence[Buffer | None], first: int) -> None:
        held = [b"" if buffer is None else bytes(buffer) for buffer in buffers]
        self._validity = None if buffers[0] is None else held[0]
        self._first = first
        self.offsets, self.data = held[1], held[-1]
        self.bits = INT32_MAX if self._validity is None else max(8 * len(held[0]) - first, 0)

    @property
    def cells(self) -> int:
        """How many values the bits and offsets are for."""
        return min(self.bits, max(len(self.offsets) // 4 - 1 - self._first, 0))

    def numbers(self, width: int) -> int:
        """How many values the bits and data are for."""
        return min(self.bits, max(len(self.data) // width - self._first, 0))

    def is_null(self, index: int) -> bool:
        index += self._first
        return self._validity is not None and not self._validity[index // 8] >> index % 8 & 1

    def range(self, index: int, size: int) -> range | None:
        """Return where a value is within `size` bytes or items; None when it is not."""
        start, end = struct.unpack_from("=2i", self.offsets, 4 * (self._first + index))
        return range(start, end) if 0 <= start <= end <= size else None

    def cell(self, index: int, fault: str) -> bytes | None:
        found = self.range(index, len(self.data))
        if found is None:
            raise ValueError(fault)
        return None if self.is_null(index) else self.data[found.start : found.stop]

    def number(self, index: int, code: str) -> int | None:
        if self.is_null(index):
            return None
        width = struct.calcsize(f"={code}")
        (value,) = struct.unpack_from(f"={code}", self.data, width * (self._first + index))
        assert isinstance(value, int)
        return value


class RowColumns:
    """Rows in the buffers of Arrow columns."""

    def __init__(
        self,
        rows: int,
        columns: Mapping[str, Sequence[Buffer | None]],
        array_offsets: Mapping[str, int] | None = None,
    ) -> None:
        firsts = dict(array_offsets or {})
        unknown = (frozenset(columns) | frozenset(firsts)) - frozenset(BUFFERS)
        if unknown:
            raise ValueError(f"unknown column {', '.join(sorted(unknown))}")
        if not 0 <= rows < INT32_MAX:
            raise ValueError(f"{rows} rows")
        if len({name in columns for name in ("headers", "headers.key", "headers.value")}) > 1:
            raise ValueError("headers need their keys and values")
        for name, count in BUFFERS.items():
            if name in columns and len(columns[name]) != count:
                raise ValueError(f"{name}: {len(columns[name])} buffers, not {count}")
            if not 0 <= firsts.get(name, 0) < INT32_MAX:
                raise ValueError(f"{name}: begins at {firsts[name]}")
        self._columns = {
            name: _Column(buffers, firsts.get(name, 0)) for name, buffers in columns.items()
        }
        self._rows = rows
        for name, width in (("key", 0), ("value", 0), ("headers", 0), *WIDTHS.items()):
            column = self._columns.get(name)
            if column is not None:
                count = column.numbers(width) if width else column.cells
                if count < rows:
                    raise ValueError(f"{name}: {count} values for {rows} rows")
        self.placed, self.largest_partition, self.largest = 0, -1, (0, 0)
        for row in range(rows):
            self._check(row)

    def __len__(self) -> int:
        return self._rows

    def _check(self, row: int) -> None:
        key, value, headers = self._record(row)
        partition = self._number("partition", row, "i")
        if partition is not None:
            if partition < 0:
                raise ValueError(f"row {row}: its partition is negative")
            self.placed += 1
            self.largest_partition = max(self.largest_partition, partition)
        timestamp = self._number("timestamp_ms", row, "q")
        if timestamp is not None and timestamp < 0:
            raise ValueError(f"row {row}: its timestamp is before 1970")
        size = len(key or b"") + len(value or b"")
        if headers:
            size += BatchBuilder.headers_size(headers) + LENGTHS_BYTES * len(headers)
        if size > self.largest[1]:
            self.largest = (row, size)

    def _number(self, name: str, row: int, code: str) -> int | None:
        column = self._columns.get(name)
        return None if column is None else column.number(row, code)

    def _cell(self, name: str, row: int) -> bytes | None:
        column = self._columns.get(name)
        if column is None:
            return None
        return column.cell(row, f"row {row}: its {name} is not within the data")

    def _record(self, row: int) -> tuple[bytes | None, bytes | None, Headers]:
        return self._cell("key", row), self._cell("value", row), self._headers(row)

    def _headers(self, row: int) -> Headers:
        lists = self._columns.get("headers")
        if lists is None:
            return []
        keys, values = self._columns["headers.key"], self._columns["headers.value"]
        items = lists.range(row, min(keys.cells, values.cells))
        if items is None:
            raise ValueError(f"row {row}: its headers are not within the items")
        found: Headers = []
        for item in () if lists.is_null(row) else items:
            key = keys.cell(item, f"row {row}: a header's key is not within the data")
            value = values.cell(item, f"row {row}: a header's value is not within the data")
            if key is None:
                raise ValueError(f"row {row}: a header has no key")
            found.append((key, value))
        return found

    def partitions(self, count: int, sticky: int) -> bytes:
        """Return each row's partition as a column of int32; see the kernel's .pyi."""
        if count < 1:
            raise ValueError(f"a topic of {count} partitions")
        chosen = []
        for row in range(len(self)):
            partition = self._number("partition", row, "i")
            if partition is None:
                key = self._cell("key", row)
                partition = sticky if key is None else (murmur2(key) & 0x7FFFFFFF) % count
            elif partition >= count:
                raise ValueError(f"row {row}: its partition is not one of {count}")
            chosen.append(partition)
        return struct.pack(f"={len(chosen)}i", *chosen)

    def fill(
        self,
        builder: BatchBuilder,
        order: Buffer,
        start: int,
        end: int,
        timestamp_ms: int,
        limit_bytes: int,
    ) -> int:
        """Append rows to a builder; return the place of the first one that is not taken."""
        places = _numbers(order)
        if not 0 <= start <= end <= len(places):
            raise ValueError(f"places {start} to {end} of {len(places)}")
        before = len(builder)
        try:
            for at in range(start, end):
                row = places[at]
                if not 0 <= row < len(self):
                    raise ValueError(f"row {row}: it does not exist")
                given = self._number("timestamp_ms", row, "q")
                builder.add(timestamp_ms if given is None else given, *self._record(row))
                if len(builder) > 1 and builder.uncompressed_bytes > min(
                    limit_bytes, MOST_BATCH_BYTES
                ):
                    builder.cut(len(builder) - 1)
                    return at
        except ValueError:
            builder.cut(before)
            raise
        return end


def _numbers(column: Buffer) -> list[int]:
    held = bytes(column)
    return list(struct.unpack_from(f"={len(held) // 4}i", held))


def group(partitions: Buffer, groups: int) -> tuple[bytes, list[int]]:
    """Sort rows by their partition, and leave those of one as they stand."""
    if groups < 1:
        raise ValueError(f"{groups} groups")
    size = memoryview(partitions).nbytes
    if size % 4:
        raise ValueError(f"{size} bytes are not a column of int32")
    of = _numbers(partitions)
    for row, partition in enumerate(of):
        if not 0 <= partition < groups:
            raise ValueError(f"row {row}: its partition is not one of {groups}")
    order = sorted(range(len(of)), key=of.__getitem__)
    starts = [sum(partition < start for partition in of) for start in range(groups + 1)]
    return struct.pack(f"={len(order)}i", *order), starts
