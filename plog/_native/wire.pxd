# Bounded big-endian integers and varints: what every other kernel reads and writes with.
#
# A reader takes the cursor and the end, stores the value and returns the cursor
# behind it, or NULL when the bytes do not suffice (or a varint is too long); it
# never reads at or past `end`. A writer is given room by its caller and returns
# the cursor behind what it wrote.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef inline uint16_t be16(const uint8_t* p) noexcept nogil:
    return <uint16_t>((<uint32_t>p[0] << 8) | p[1])


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>be32(p) << 32) | be32(p + 4)


cdef inline uint8_t* put_int8(uint8_t* p, int8_t value) noexcept nogil:
    p[0] = <uint8_t>value
    return p + 1


cdef inline uint8_t* put_int16(uint8_t* p, int16_t value) noexcept nogil:
    p[0] = <uint8_t>((<uint16_t>value) >> 8)
    p[1] = <uint8_t>value
    return p + 2


cdef inline uint8_t* put_int32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t v = <uint32_t>value
    p[0] = <uint8_t>(v >> 24)
    p[1] = <uint8_t>(v >> 16)
    p[2] = <uint8_t>(v >> 8)
    p[3] = <uint8_t>v
    return p + 4


cdef inline uint8_t* put_int64(uint8_t* p, int64_t value) noexcept nogil:
    put_int32(p, <int32_t>(<uint64_t>value >> 32))
    return put_int32(p + 4, <int32_t>value)


cdef inline const uint8_t* read_int8(
        const uint8_t* p, const uint8_t* end, int8_t* out) noexcept nogil:
    if end - p < 1:
        return NULL
    out[0] = <int8_t>p[0]
    return p + 1


cdef inline const uint8_t* read_int16(
        const uint8_t* p, const uint8_t* end, int16_t* out) noexcept nogil:
    if end - p < 2:
        return NULL
    out[0] = <int16_t>be16(p)
    return p + 2


cdef inline const uint8_t* read_int32(
        const uint8_t* p, const uint8_t* end, int32_t* out) noexcept nogil:
    if end - p < 4:
        return NULL
    out[0] = <int32_t>be32(p)
    return p + 4


cdef inline const uint8_t* read_int64(
        const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil:
    if end - p < 8:
        return NULL
    out[0] = <int64_t>be64(p)
    return p + 8


cdef inline const uint8_t* read_unsigned_varint(
        const uint8_t* p, const uint8_t* end, uint32_t* out) noexcept nogil:
    # At most 5 bytes; bits beyond the 32nd are refused.
    cdef uint32_t value = 0
    cdef uint32_t shift = 0
    while p < end:
        if shift == 28 and p[0] > 0x0F:
            return NULL
        value |= (<uint32_t>(p[0] & 0x7F)) << shift
        if p[0] < 0x80:
            out[0] = value
            return p + 1
        p += 1
        shift += 7
    return NULL


cdef inline const uint8_t* read_unsigned_varlong(
        const uint8_t* p, const uint8_t* end, uint64_t* out) noexcept nogil:
    # At most 10 bytes; bits beyond the 64th are refused.
    cdef uint64_t value = 0
    cdef uint32_t shift = 0
    while p < end:
        if shift == 63 and p[0] > 0x01:
            return NULL
        value |= (<uint64_t>(p[0] & 0x7F)) << shift
        if p[0] < 0x80:
            out[0] = value
            return p + 1
        p += 1
        shift += 7
    return NULL


cdef inline const uint8_t* read_varint(
        const uint8_t* p, const uint8_t* end, int32_t* out) noexcept nogil:
    # Zigzag.
    cdef uint32_t raw = 0
    p = read_unsigned_varint(p, end, &raw)
    if p != NULL:
        out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return p


cdef inline const uint8_t* read_varlong(
        const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil:
    # Zigzag.
    cdef uint64_t raw = 0
    p = read_unsigned_varlong(p, end, &raw)
    if p != NULL:
        out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return p


cdef inline uint8_t* put_unsigned_varint(uint8_t* p, uint32_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        value >>= 7
        p += 1
    p[0] = <uint8_t>value
    return p + 1


cdef inline uint8_t* put_varint(uint8_t* p, int32_t value) noexcept nogil:
    return put_unsigned_varint(p, (<uint32_t>value << 1) ^ <uint32_t>(value >> 31))


cdef inline uint8_t* put_varlong(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t v = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    while v >= 0x80:
        p[0] = <uint8_t>(v | 0x80)
        v >>= 7
        p += 1
    p[0] = <uint8_t>v
    return p + 1
