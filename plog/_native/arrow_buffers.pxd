# Memory that becomes the buffers of Arrow columns: numbers, offsets, bytes, and bits that say what is null.
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

ctypedef struct Growing:
    uint8_t* data
    int64_t size
    int64_t capacity

ctypedef struct Binary:      # offsets has one entry more than there are values
    Growing offsets
    Growing data
    Growing validity         # empty as long as nothing is null

cdef int grow(Growing* buffer, int64_t extra) noexcept nogil
# Bits of so many values and some to come, new ones set.
cdef int cover(Growing* bits, int64_t count) noexcept nogil
cdef int push_decoded(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept nogil


# Room for so many bytes more, amortised. 0, or -1 without memory; so in all that may need memory.
cdef inline int reserve(Growing* buffer, int64_t extra) noexcept nogil:
    if extra <= buffer.capacity - buffer.size:
        return 0
    return grow(buffer, extra)


# Room was reserved. Arrow's numbers are the machine's.
cdef inline void push32(Growing* buffer, int32_t value) noexcept nogil:
    memcpy(buffer.data + buffer.size, &value, 4)
    buffer.size += 4


cdef inline void push64(Growing* buffer, int64_t value) noexcept nogil:
    memcpy(buffer.data + buffer.size, &value, 8)
    buffer.size += 8


cdef inline int set_null(Growing* bits, int64_t index) noexcept nogil:
    if index >> 3 >= bits.size and cover(bits, index + 1) < 0:
        return -1
    bits.data[index >> 3] &= <uint8_t>(~(1 << (index & 7)))
    return 0


# The value `index`; a size of -1 is null. Room in offsets and data was reserved.
cdef inline int push_bytes(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept nogil:
    if size > 0:
        memcpy(column.data.data + column.data.size, data, <size_t>size)
        column.data.size += size
    elif size < 0 and set_null(&column.validity, index) < 0:
        return -1
    push32(&column.offsets, <int32_t>column.data.size)
    return 0


cdef inline int push_bytes_reserving(
        Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept nogil:
    if reserve(&column.offsets, 4) < 0 or reserve(&column.data, max(size, 0)) < 0:
        return -1
    return push_bytes(column, index, data, size)


# What is not UTF-8 becomes U+FFFD, as in Java; almost every header key is ASCII.
cdef inline int push_text(Binary* column, int64_t index, const uint8_t* data, int32_t size) noexcept nogil:
    cdef int32_t i
    cdef uint8_t seen = 0
    for i in range(size):
        seen |= data[i]
    if seen >= 0x80:
        return push_decoded(column, index, data, size)
    return push_bytes_reserving(column, index, data, size)


cdef inline void drop(Growing* buffer) noexcept nogil:
    free(buffer.data)
    memset(buffer, 0, sizeof(Growing))


cdef inline void drop_binary(Binary* column) noexcept nogil:
    drop(&column.offsets)
    drop(&column.data)
    drop(&column.validity)


# The first entry of offsets, which every column begins with.
cdef int start_offsets(Growing* offsets) except -1
# The memory as a ColumnBuffer, its bytes no longer the buffer's. Bits are None where nothing is null.
cdef object hand_over(Growing* buffer)
cdef object hand_over_bits(Growing* bits, int64_t count)
# A column's buffers in Arrow's order; the column starts anew.
cdef list hand_over_binary(Binary* column, int64_t count)
# Columns of one value, `count` times.
cdef list repeat_text(bytes text, int64_t count)
cdef list repeat_number(int32_t number, int64_t count)
