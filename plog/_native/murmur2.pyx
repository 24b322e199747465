"""Murmur2 as Kafka's default partitioner computes it.

Owns the hash alone; taking it modulo the partitions is the partitioner's.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    SEED = 0x9747B28C
    MULTIPLIER = 0x5BD1E995


cdef uint32_t hash_bytes(const uint8_t* p, size_t size) noexcept nogil:
    # Words are little-endian. Java's length is a 32-bit int, so only its low bits count.
    cdef uint32_t state = <uint32_t>SEED ^ <uint32_t>size
    cdef uint32_t word
    while size >= 4:
        word = p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
        word *= <uint32_t>MULTIPLIER
        word ^= word >> 24
        word *= <uint32_t>MULTIPLIER
        state = state * <uint32_t>MULTIPLIER ^ word
        p += 4
        size -= 4
    if size > 0:
        if size > 2:
            state ^= <uint32_t>p[2] << 16
        if size > 1:
            state ^= <uint32_t>p[1] << 8
        state = (state ^ p[0]) * <uint32_t>MULTIPLIER
    state ^= state >> 13
    state *= <uint32_t>MULTIPLIER
    return state ^ state >> 15


def murmur2(data):
    """Hash `data` as Kafka's default partitioner does; an unsigned 32-bit value."""
    cdef Py_buffer view
    cdef uint32_t value
    if type(data) is bytes:
        return hash_bytes(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    value = hash_bytes(<const uint8_t*>view.buf, view.len)
    PyBuffer_Release(&view)
    return value
