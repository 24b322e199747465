"""Memory that becomes the buffers of Arrow columns, without a Python object per value.

Owns how values lie in Arrow's physical layout, how that memory grows, and its way to
Python as objects that speak the buffer protocol. Knows nothing of pyarrow, and of
records nothing at all. Never copies what it has once written, but to grow.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

cdef enum:
    LEAST_CAPACITY = 4096
    BITS_AHEAD = 512


# -- growing ---------------------------------------------------------------------------------------

cdef int grow(Growing* buffer, int64_t extra) noexcept nogil:
    cdef int64_t capacity = max(buffer.size + extra, buffer.capacity * 2, <int64_t>LEAST_CAPACITY)
    cdef uint8_t* data = <uint8_t*>realloc(buffer.data, <size_t>capacity)
    if data == NULL:
        return -1
    buffer.data = data
    buffer.capacity = capacity
    return 0


cdef int cover(Growing* bits, int64_t count) noexcept nogil:
    cdef int64_t extra = (count + 7) // 8 - bits.size
    if extra > 0:
        extra += BITS_AHEAD
        if reserve(bits, extra) < 0:
            return -1
        memset(bits.data + bits.size, 0xFF, <size_t>extra)
        bits.size += extra
    return 0


cdef int push_decoded(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept nogil:
    return decode_and_push(column, index, data, size)


cdef int decode_and_push(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept with gil:
    cdef bytes text
    try:
        text = PyUnicode_DecodeUTF8(<char*>data, size, "replace").encode("utf-8")
    except MemoryError:
        return -1
    return push_bytes_reserving(
        column, index, <const uint8_t*>PyBytes_AS_STRING(text), <int32_t>PyBytes_GET_SIZE(text))


# -- handing over ----------------------------------------------------------------------------------

cdef class ColumnBuffer:
    """Memory of a column, freed with this object; read it through the buffer protocol."""

    cdef uint8_t* data
    cdef Py_ssize_t size

    def __dealloc__(self):
        free(self.data)

    def __len__(self):
        return self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


cdef object hand_over(Growing* buffer):
    # Even an empty buffer has an address. What was reserved but never written takes no memory.
    cdef ColumnBuffer taken = ColumnBuffer()
    if reserve(buffer, 1) < 0:
        raise MemoryError
    taken.data = buffer.data
    taken.size = buffer.size
    buffer.data = NULL
    buffer.size = 0
    buffer.capacity = 0
    return taken


cdef object hand_over_bits(Growing* bits, int64_t count):
    if bits.size == 0:
        return None
    if cover(bits, count) < 0:
        raise MemoryError
    bits.size = (count + 7) // 8
    if count & 7:
        bits.data[bits.size - 1] &= <uint8_t>((1 << (count & 7)) - 1)
    return hand_over(bits)


cdef int start_offsets(Growing* offsets) except -1:
    if reserve(offsets, 4) < 0:
        raise MemoryError
    push32(offsets, 0)
    return 0


cdef list hand_over_binary(Binary* column, int64_t count):
    cdef object validity = hand_over_bits(&column.validity, count)
    cdef list taken = [validity, hand_over(&column.offsets), hand_over(&column.data)]
    start_offsets(&column.offsets)
    return taken


cdef list repeat_text(bytes text, int64_t count):
    # No more than 2 GB: append stops before.
    cdef Growing offsets
    cdef Growing data
    cdef int64_t size = PyBytes_GET_SIZE(text)
    cdef int64_t i
    memset(&offsets, 0, sizeof(offsets))
    memset(&data, 0, sizeof(data))
    if reserve(&offsets, 4 * (count + 1)) < 0 or reserve(&data, size * count) < 0:
        free(offsets.data)
        raise MemoryError
    push32(&offsets, 0)
    for i in range(count):
        memcpy(data.data + data.size, PyBytes_AS_STRING(text), <size_t>size)
        data.size += size
        push32(&offsets, <int32_t>data.size)
    return [None, hand_over(&offsets), hand_over(&data)]


cdef list repeat_number(int32_t number, int64_t count):
    cdef Growing data
    cdef int64_t i
    memset(&data, 0, sizeof(data))
    if reserve(&data, 4 * count) < 0:
        raise MemoryError
    for i in range(count):
        push32(&data, number)
    return [None, hand_over(&data)]
