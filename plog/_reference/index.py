"""A segment's sparse offset index and time index, written to be read.

The oracle of `plog._native.index`. Entries are big-endian; offsets are relative
to the segment's base offset. Searches bisect, because over entries that are not
in order the answer depends on the path.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

from plog.errors import CorruptRecord
from plog.types import Buffer

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


def _entries(name: str, layout: struct.Struct, entries: Buffer) -> list[tuple[int, int]]:
    size = memoryview(entries).nbytes
    if size % layout.size != 0:
        raise CorruptRecord(f"{name} of {size} bytes is not a multiple of {layout.size}")
    return [(first, second) for first, second in layout.iter_unpack(entries)]


def lookup_offset(entries: Buffer, base_offset: int, target: int) -> tuple[int, int]:
    """(offset, position) of the greatest entry at or below `target`, else (base_offset, 0).

    Raises:
        CorruptRecord: the size of `entries` is not a multiple of 8.
    """
    known = _entries("offset index", _OFFSET_ENTRY, entries)
    behind = bisect_right(known, target - base_offset, key=lambda entry: entry[0])
    if behind == 0:
        return base_offset, 0
    relative, position = known[behind - 1]
    return base_offset + relative, position


def lookup_time(entries: Buffer, base_offset: int, timestamp: int) -> tuple[int, int]:
    """(timestamp, offset) of the greatest entry at or below `timestamp`, else (-1, base_offset).

    Raises:
        CorruptRecord: the size of `entries` is not a multiple of 12.
        OverflowError: `timestamp` does not fit 64 bits.
    """
    _check_range("timestamp", timestamp, -(2**63), 2**63 - 1)
    known = _entries("time index", _TIME_ENTRY, entries)
    behind = bisect_right(known, timestamp, key=lambda entry: entry[0])
    if behind == 0:
        return -1, base_offset
    found, relative = known[behind - 1]
    return found, base_offset + relative


def _check_range(name: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise OverflowError(f"{name} {number} is not in {least}..{most}")


def encode_offset_entry(relative_offset: int, position: int) -> bytes:
    """8 bytes; OverflowError unless both are 0 or more and fit 31 bits."""
    _check_range("relative offset", relative_offset, 0, 2**31 - 1)
    _check_range("position", position, 0, 2**31 - 1)
    return _OFFSET_ENTRY.pack(relative_offset, position)


def encode_time_entry(timestamp: int, relative_offset: int) -> bytes:
    """12 bytes; OverflowError unless both are 0 or more and fit 63 and 31 bits."""
    _check_range("timestamp", timestamp, 0, 2**63 - 1)
    _check_range("relative offset", relative_offset, 0, 2**31 - 1)
    return _TIME_ENTRY.pack(timestamp, relative_offset)


def check_offset_index(entries: Buffer, base_offset: int) -> int:
    """Return the number of entries, having proven that a search over them can be trusted.

    Relative offsets start at 0 or above and rise from entry to entry, and so do
    positions. An index still preallocated, with its tail of zeros, fails.

    Raises:
        CorruptRecord: the size is not a multiple of 8, or an offset or a position does not rise.
    """
    known = _entries("offset index", _OFFSET_ENTRY, entries)
    last_relative = last_position = -1
    for number, (relative, position) in enumerate(known):
        if relative <= last_relative or position <= last_position:
            raise CorruptRecord(
                f"offset index entry {number} of base offset {base_offset} does not rise: "
                f"relative offset {relative}, position {position}"
            )
        last_relative, last_position = relative, position
    return len(known)


def check_time_index(entries: Buffer, base_offset: int) -> int:
    """Return the number of entries, having proven that a search over them can be trusted.

    Timestamps start at 0 or above and rise from entry to entry; relative offsets
    start at 0 or above and never fall. An index still preallocated, with its tail
    of zeros, fails.

    Raises:
        CorruptRecord: the size is not a multiple of 12, a timestamp does not rise, or an offset
            falls.
    """
    known = _entries("time index", _TIME_ENTRY, entries)
    last_timestamp, last_relative = -1, 0
    for number, (timestamp, relative) in enumerate(known):
        if timestamp <= last_timestamp or relative < last_relative:
            raise CorruptRecord(
                f"time index entry {number} of base offset {base_offset} does not rise: "
                f"timestamp {timestamp}, relative offset {relative}"
            )
        last_timestamp, last_relative = timestamp, relative
    return len(known)
