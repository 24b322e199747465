"""Big-endian integers and varints for Python callers.

Owns the words of the errors; the reading and writing itself is inline in
wire.pxd. Never reads outside the buffer it is given, and never judges a value.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, UINT32_MAX,
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t)

from plog.errors import MalformedBytes

cdef enum:
    INT8
    INT16
    INT32
    INT64
    UINT32
    UNSIGNED_VARINT
    VARINT
    VARLONG

NAMES = ("int8", "int16", "int32", "int64", "uint32", "unsigned varint", "varint", "varlong")
# Bytes of a fixed-width integer, or the most that a varint may take.
WIDTHS = (1, 2, 4, 8, 4, 5, 5, 10)


cdef inline const uint8_t* read(
        int kind, const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil:
    cdef int8_t int8 = 0
    cdef int16_t int16 = 0
    cdef int32_t int32 = 0
    cdef uint32_t uint32 = 0
    if kind == INT64:
        return read_int64(p, end, out)
    if kind == VARLONG:
        return read_varlong(p, end, out)
    if kind == INT8:
        p = read_int8(p, end, &int8)
        out[0] = int8
    elif kind == INT16:
        p = read_int16(p, end, &int16)
        out[0] = int16
    elif kind == UNSIGNED_VARINT:
        p = read_unsigned_varint(p, end, &uint32)
        out[0] = uint32
    elif kind == VARINT:
        p = read_varint(p, end, &int32)
        out[0] = int32
    else:
        p = read_int32(p, end, &int32)
        out[0] = <uint32_t>int32 if kind == UINT32 else <int64_t>int32
    return p


cdef object malformed(int kind, const uint8_t* data, Py_ssize_t size, object pos):
    # Says why `read` refused, or why it was not even asked.
    cdef Py_ssize_t at, last
    if pos < 0 or pos > size:
        return MalformedBytes(f"{NAMES[kind]} at {pos}: outside the {size} bytes given")
    at = pos
    if kind < UNSIGNED_VARINT:
        return MalformedBytes(
            f"{NAMES[kind]} at {at} needs {WIDTHS[kind]} bytes, {size - at} are left of {size}")
    last = at + WIDTHS[kind] - 1
    while at < size and at < last and data[at] >= 0x80:
        at += 1
    if at == last and at < size:
        return MalformedBytes(
            f"{NAMES[kind]} at {pos} is longer than {64 if kind == VARLONG else 32} bits")
    return MalformedBytes(f"{NAMES[kind]} at {pos} is cut: the data ends at {size}")


cdef inline object decode_from(int kind, const uint8_t* data, Py_ssize_t size, object pos):
    cdef int overflow = 0
    cdef int64_t value = 0
    cdef const uint8_t* behind
    cdef long long at = PyLong_AsLongLongAndOverflow(pos, &overflow)
    if overflow != 0 or at < 0 or at > size:
        raise malformed(kind, data, size, pos)
    behind = read(kind, data + at, data + size, &value)
    if behind == NULL:
        raise malformed(kind, data, size, pos)
    return value, behind - data


cdef inline object decode(int kind, object data, object pos):
    cdef Py_buffer view
    if type(data) is bytes:
        return decode_from(
            kind, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), pos)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return decode_from(kind, <const uint8_t*>view.buf, view.len, pos)
    finally:
        PyBuffer_Release(&view)


def decode_int8(data, pos):
    """Read one signed byte at `pos`; return it and the position behind it."""
    return decode(INT8, data, pos)


def decode_int16(data, pos):
    """Read a signed 2-byte integer at `pos`; return it and the position behind it."""
    return decode(INT16, data, pos)


def decode_int32(data, pos):
    """Read a signed 4-byte integer at `pos`; return it and the position behind it."""
    return decode(INT32, data, pos)


def decode_int64(data, pos):
    """Read a signed 8-byte integer at `pos`; return it and the position behind it."""
    return decode(INT64, data, pos)


def decode_uint32(data, pos):
    """Read an unsigned 4-byte integer at `pos`; return it and the position behind it."""
    return decode(UINT32, data, pos)


def decode_unsigned_varint(data, pos):
    """Read an unsigned varint of at most 5 bytes at `pos`; return it and the position behind it."""
    return decode(UNSIGNED_VARINT, data, pos)


def decode_varint(data, pos):
    """Read a zigzag varint of at most 5 bytes at `pos`; return it and the position behind it."""
    return decode(VARINT, data, pos)


def decode_varlong(data, pos):
    """Read a zigzag varint of at most 10 bytes at `pos`; return it and the position behind it."""
    return decode(VARLONG, data, pos)


cdef long long in_range(object value, int kind, long long least, long long most) except? -1:
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow != 0 or number < least or number > most:
        raise OverflowError(f"{value} does not fit the {NAMES[kind]}'s range {least}..{most}")
    return number


def encode_unsigned_varint(value):
    """Return the 1 to 5 bytes of `value`; OverflowError unless it is an unsigned 32-bit number."""
    cdef uint8_t room[5]
    cdef uint8_t* behind = put_unsigned_varint(
        room, <uint32_t>in_range(value, UNSIGNED_VARINT, 0, UINT32_MAX))
    return PyBytes_FromStringAndSize(<char*>room, behind - room)


def encode_varint(value):
    """Return the 1 to 5 zigzag bytes of `value`; OverflowError unless it has 32 signed bits."""
    cdef uint8_t room[5]
    cdef uint8_t* behind = put_varint(room, <int32_t>in_range(value, VARINT, INT32_MIN, INT32_MAX))
    return PyBytes_FromStringAndSize(<char*>room, behind - room)


def encode_varlong(value):
    """Return the 1 to 10 zigzag bytes of `value`; OverflowError unless it has 64 signed bits."""
    cdef uint8_t room[10]
    cdef uint8_t* behind = put_varlong(
        room, in_range(value, VARLONG, INT64_MIN, INT64_MAX))
    return PyBytes_FromStringAndSize(<char*>room, behind - room)
