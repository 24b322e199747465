# How the fast path reads requests and writes answers: Kafka's strings, arrays and headers, in their old and their flexible form (KIP-482).
# As in wire.pxd, a reader returns the cursor behind what it read, or NULL: the request is malformed.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from libc.string cimport memcpy

from plog._native.wire cimport put_int16, put_int32, put_unsigned_varint, read_int16, read_int32, read_unsigned_varint

ctypedef struct RequestHead:
    int16_t api_key
    int16_t version
    int32_t correlation_id
    int64_t received_us          # when its last byte was read, monotonic; not in the request
    int64_t connection           # that it came by; not in the request either

cdef enum:
    NULL_LENGTH = -1
    LONGEST_STRING = 32767
    MOST_ELEMENTS = 250000       # of all arrays of a request together, and tagged fields; as framing.MOST_REQUEST_ELEMENTS


# How many fields a section of tagged fields has. They count in the elements that are `left`.
cdef inline const uint8_t* read_tag_count(
        const uint8_t* p, const uint8_t* end, int64_t* left, uint32_t* count) noexcept nogil:
    p = read_unsigned_varint(p, end, count)
    if p == NULL or count[0] > left[0]:
        return NULL
    left[0] -= count[0]
    return p


# The tag and the size of one; `tag` has the last one's, or -1, for they ascend.
cdef inline const uint8_t* read_tag(
        const uint8_t* p, const uint8_t* end, int64_t* tag, uint32_t* size) noexcept nogil:
    cdef uint32_t found = 0
    p = read_unsigned_varint(p, end, &found)
    if p == NULL or found <= tag[0]:
        return NULL
    tag[0] = found
    p = read_unsigned_varint(p, end, size)
    return p if p != NULL and size[0] <= end - p else NULL


# Behind a section whose fields are skipped.
cdef inline const uint8_t* skip_tags(const uint8_t* p, const uint8_t* end, int64_t* left) noexcept nogil:
    cdef uint32_t count = 0
    cdef uint32_t size = 0
    cdef int64_t tag = -1
    cdef uint32_t number
    p = read_tag_count(p, end, left, &count)
    if p == NULL:
        return NULL
    for number in range(count):
        p = read_tag(p, end, &tag, &size)
        if p == NULL:
            return NULL
        p += size
    return p


# The length before a string, bytes or array; NULL_LENGTH for null, which the old form states by any negative number.
cdef inline const uint8_t* read_length(
        const uint8_t* p, const uint8_t* end, bint flexible, bint short_form, int32_t* out) noexcept nogil:
    cdef uint32_t stored = 0
    cdef int16_t small = 0
    if flexible:
        p = read_unsigned_varint(p, end, &stored)
        if p == NULL or stored > 0x7FFFFFFF:
            return NULL
        out[0] = <int32_t>stored - 1
        return p
    if short_form:
        p = read_int16(p, end, &small)
        out[0] = small
    else:
        p = read_int32(p, end, out)
    out[0] = max(out[0], <int32_t>NULL_LENGTH)
    return p


cdef inline const uint8_t* read_string(
        const uint8_t* p, const uint8_t* end, bint flexible, const uint8_t** text, int32_t* size) noexcept nogil:
    p = read_length(p, end, flexible, True, size)
    # The flexible form could state more than the old one, and does not.
    if p == NULL or size[0] > LONGEST_STRING or size[0] > end - p:
        return NULL
    text[0] = p
    return p if size[0] < 0 else p + size[0]


cdef inline const uint8_t* read_bytes(
        const uint8_t* p, const uint8_t* end, bint flexible, const uint8_t** data, int32_t* size) noexcept nogil:
    p = read_length(p, end, flexible, False, size)
    if p == NULL or size[0] > end - p:
        return NULL
    data[0] = p
    return p if size[0] < 0 else p + size[0]


# As the standard has it (RFC 3629): the shortest form, no surrogates, nothing above U+10FFFF. Also of null.
cdef inline bint is_utf8(const uint8_t* text, int32_t size) noexcept nogil:
    cdef int32_t at = 0
    cdef int32_t more
    cdef uint8_t first
    cdef uint8_t least
    cdef uint8_t most
    while at < size:
        first = text[at]
        at += 1
        if first < 0x80:
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 + (first >= 0xE0) + (first >= 0xF0)
        if more > size - at:
            return False
        least = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        most = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        while more > 0:
            if not least <= text[at] <= most:
                return False
            least = 0x80
            most = 0xBF
            at += 1
            more -= 1
    return True


# API key, version and correlation id, which stand first in every header.
cdef inline const uint8_t* read_head(const uint8_t* p, const uint8_t* end, RequestHead* out) noexcept nogil:
    p = read_int16(p, end, &out.api_key)
    if p != NULL:
        p = read_int16(p, end, &out.version)
    if p != NULL:
        p = read_int32(p, end, &out.correlation_id)
    return p


# The rest of the header: a client id (never in the flexible form; null at any negative length), and tagged fields.
cdef inline const uint8_t* read_client_id(
        const uint8_t* p, const uint8_t* end, bint flexible, const uint8_t** text, int32_t* size) noexcept nogil:
    cdef int64_t left = MOST_ELEMENTS
    cdef int16_t stored = 0
    p = read_int16(p, end, &stored)
    if p == NULL or stored > end - p or not is_utf8(p, stored):
        return NULL
    text[0] = p
    size[0] = max(stored, <int16_t>NULL_LENGTH)
    p += max(stored, <int16_t>0)
    return skip_tags(p, end, &left) if flexible else p


# --- answers: the sizes and forms of the same --------------------------------------------------------

cdef inline int32_t varint_size(uint32_t value) noexcept nogil:
    cdef int32_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


# Of the length before an array or bytes (-1: null).
cdef inline int64_t length_size(int32_t length, bint flexible) noexcept nogil:
    return varint_size(<uint32_t>length + 1) if flexible else 4


cdef inline uint8_t* put_length(uint8_t* p, int32_t length, bint flexible) noexcept nogil:
    return put_unsigned_varint(p, <uint32_t>length + 1) if flexible else put_int32(p, length)


cdef inline int64_t string_size(int32_t size, bint flexible) noexcept nogil:
    return (varint_size(<uint32_t>size + 1) if flexible else 2) + max(size, 0)


cdef inline uint8_t* put_string(uint8_t* p, const uint8_t* text, int32_t size, bint flexible) noexcept nogil:
    p = put_unsigned_varint(p, <uint32_t>size + 1) if flexible else put_int16(p, <int16_t>size)
    if size > 0:
        memcpy(p, text, size)
        p += size
    return p
