"""The sparse offset index and time index of a segment: their entries, search and check.

Owns the layout (big-endian; offsets relative to the segment's base offset) and
the bisection over it. Never looks at the log behind an index, and never knows
how long an index should be: the caller says how many entries count.

Search trusts the order that `check_offset_index` and `check_time_index` prove;
over unordered entries it still ends, within bounds, at some entry or none.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, INT64_MIN, UINT32_MAX, int32_t, int64_t, uint8_t, uint32_t)

from plog._native.wire cimport be32, be64, put_int32, put_int64

from plog.errors import CorruptRecord


cdef int64_t search_offset(const uint8_t* map, uint32_t count, int64_t relative) noexcept nogil:
    # Invariant: entries before `low` are at or below the target, those from `high` on above it.
    cdef uint32_t low = 0
    cdef uint32_t high = count
    cdef uint32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if <int32_t>be32(map + <size_t>middle * OFFSET_ENTRY_BYTES) <= relative:
            low = middle + 1
        else:
            high = middle
    return <int64_t>low - 1


cdef int64_t search_position(const uint8_t* map, uint32_t count, int64_t position) noexcept nogil:
    cdef uint32_t low = 0
    cdef uint32_t high = count
    cdef uint32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if <int32_t>be32(map + <size_t>middle * OFFSET_ENTRY_BYTES + 4) < position:
            low = middle + 1
        else:
            high = middle
    return low


cdef int64_t search_time(const uint8_t* map, uint32_t count, int64_t timestamp) noexcept nogil:
    cdef uint32_t low = 0
    cdef uint32_t high = count
    cdef uint32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if <int64_t>be64(map + <size_t>middle * TIME_ENTRY_BYTES) <= timestamp:
            low = middle + 1
        else:
            high = middle
    return <int64_t>low - 1


cdef int64_t clamped(object number) except? -1:
    # Entries hold 32 bits, so a search from beyond 64 ends where one from the edge does.
    cdef int overflow = 0
    cdef long long value = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow > 0:
        return INT64_MAX
    if overflow < 0:
        return INT64_MIN
    return value


cdef int64_t in_range(str name, object number, int64_t least, int64_t most) except? -1:
    cdef int overflow = 0
    cdef long long value = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow != 0 or value < least or value > most:
        raise OverflowError(f"{name} {number} is not in {least}..{most}")
    return value


cdef uint32_t count_entries(str name, Py_ssize_t size, int entry_bytes) except? 0:
    if size % entry_bytes != 0:
        raise CorruptRecord(f"{name} of {size} bytes is not a multiple of {entry_bytes}")
    if size // entry_bytes > UINT32_MAX:
        raise CorruptRecord(f"{name} of {size} bytes is larger than any segment's")
    return <uint32_t>(size // entry_bytes)


def lookup_offset(entries, base_offset, target):
    """(offset, position) of the greatest entry at or below `target`, else (base_offset, 0).

    Raises:
        CorruptRecord: the size of `entries` is not a multiple of 8.
    """
    cdef Py_buffer view
    cdef const uint8_t* found
    cdef int64_t at
    cdef int64_t relative = clamped(target - base_offset)
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        at = search_offset(<const uint8_t*>view.buf,
                           count_entries("offset index", view.len, OFFSET_ENTRY_BYTES), relative)
        if at < 0:
            return base_offset, 0
        found = <const uint8_t*>view.buf + at * OFFSET_ENTRY_BYTES
        return base_offset + <int32_t>be32(found), <int32_t>be32(found + 4)
    finally:
        PyBuffer_Release(&view)


def lookup_time(entries, base_offset, timestamp):
    """(timestamp, offset) of the greatest entry at or below `timestamp`, else (-1, base_offset).

    Raises:
        CorruptRecord: the size of `entries` is not a multiple of 12.
        OverflowError: `timestamp` does not fit 64 bits.
    """
    cdef Py_buffer view
    cdef const uint8_t* found
    cdef int64_t at
    cdef int64_t wanted = in_range("timestamp", timestamp, INT64_MIN, INT64_MAX)
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        at = search_time(<const uint8_t*>view.buf,
                         count_entries("time index", view.len, TIME_ENTRY_BYTES), wanted)
        if at < 0:
            return -1, base_offset
        found = <const uint8_t*>view.buf + at * TIME_ENTRY_BYTES
        return <int64_t>be64(found), base_offset + <int32_t>be32(found + 8)
    finally:
        PyBuffer_Release(&view)


def encode_offset_entry(relative_offset, position):
    """Return the 8 bytes of an entry; OverflowError unless both fit 31 bits and are not negative."""
    cdef uint8_t room[OFFSET_ENTRY_BYTES]
    put_int32(put_int32(room, <int32_t>in_range("relative offset", relative_offset, 0, INT32_MAX)),
              <int32_t>in_range("position", position, 0, INT32_MAX))
    return PyBytes_FromStringAndSize(<char*>room, OFFSET_ENTRY_BYTES)


def encode_time_entry(timestamp, relative_offset):
    """Return the 12 bytes of an entry; OverflowError unless both are 0 or more and fit 63 and 31 bits."""
    cdef uint8_t room[TIME_ENTRY_BYTES]
    put_int32(put_int64(room, in_range("timestamp", timestamp, 0, INT64_MAX)),
              <int32_t>in_range("relative offset", relative_offset, 0, INT32_MAX))
    return PyBytes_FromStringAndSize(<char*>room, TIME_ENTRY_BYTES)


cdef int64_t first_bad_offset_entry(const uint8_t* map, uint32_t count) noexcept nogil:
    # Number of the first entry whose relative offset or position does not rise, or -1.
    cdef int32_t relative = -1
    cdef int32_t position = -1
    cdef uint32_t at
    for at in range(count):
        if <int32_t>be32(map) <= relative or <int32_t>be32(map + 4) <= position:
            return at
        relative = <int32_t>be32(map)
        position = <int32_t>be32(map + 4)
        map += OFFSET_ENTRY_BYTES
    return -1


cdef int64_t first_bad_time_entry(const uint8_t* map, uint32_t count) noexcept nogil:
    # Number of the first entry whose timestamp does not rise or whose offset falls, or -1.
    cdef int64_t timestamp = -1
    cdef int32_t relative = 0
    cdef uint32_t at
    for at in range(count):
        if <int64_t>be64(map) <= timestamp or <int32_t>be32(map + 8) < relative:
            return at
        timestamp = <int64_t>be64(map)
        relative = <int32_t>be32(map + 8)
        map += TIME_ENTRY_BYTES
    return -1


def check_offset_index(entries, base_offset):
    """Return the number of entries, having proven that a search over them can be trusted.

    Relative offsets start at 0 or above and rise from entry to entry, and so do
    positions. An index still preallocated, with its tail of zeros, fails.

    Raises:
        CorruptRecord: the size is not a multiple of 8, or an offset or a position does not rise.
    """
    cdef Py_buffer view
    cdef uint32_t count
    cdef int64_t bad
    cdef const uint8_t* entry
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        count = count_entries("offset index", view.len, OFFSET_ENTRY_BYTES)
        with nogil:
            bad = first_bad_offset_entry(<const uint8_t*>view.buf, count)
        if bad >= 0:
            entry = <const uint8_t*>view.buf + bad * OFFSET_ENTRY_BYTES
            raise CorruptRecord(
                f"offset index entry {bad} of base offset {base_offset} does not rise: "
                f"relative offset {<int32_t>be32(entry)}, position {<int32_t>be32(entry + 4)}")
        return count
    finally:
        PyBuffer_Release(&view)


def check_time_index(entries, base_offset):
    """Return the number of entries, having proven that a search over them can be trusted.

    Timestamps start at 0 or above and rise from entry to entry; relative offsets
    start at 0 or above and never fall. An index still preallocated, with its tail
    of zeros, fails.

    Raises:
        CorruptRecord: the size is not a multiple of 12, a timestamp does not rise, or an offset falls.
    """
    cdef Py_buffer view
    cdef uint32_t count
    cdef int64_t bad
    cdef const uint8_t* entry
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        count = count_entries("time index", view.len, TIME_ENTRY_BYTES)
        with nogil:
            bad = first_bad_time_entry(<const uint8_t*>view.buf, count)
        if bad >= 0:
            entry = <const uint8_t*>view.buf + bad * TIME_ENTRY_BYTES
            raise CorruptRecord(
                f"time index entry {bad} of base offset {base_offset} does not rise: "
                f"timestamp {<int64_t>be64(entry)}, relative offset {<int32_t>be32(entry + 8)}")
        return count
    finally:
        PyBuffer_Release(&view)
