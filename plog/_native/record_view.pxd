# The records of a batch v2, read in place: lengths exact, nothing past `end`, nothing allocated for a record.
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from plog._native.batch_fields cimport LEAST_RECORD_BYTES, BatchFields
from plog._native.wire cimport read_varint, read_varlong

# Why a record could not be read.
cdef enum:
    RECORD_OK = 0
    RECORD_LENGTH = 1     # its length is cut, below the least, or runs past the end
    RECORD_FIELD = 2      # a field does not fit in its length
    RECORD_HEADER = 3     # a header does not fit in its length, or there cannot be so many
    RECORD_TAIL = 4       # bytes are left over behind its last header
    RECORD_TIMESTAMP = 5  # base timestamp and delta overflow 64 bits
    RECORD_OFFSET = 6     # offset deltas do not rise, or run past last_offset_delta
    RECORD_MISSING = 7    # records_count promises more records than there are
    RECORD_SURPLUS = 8    # bytes are left over behind the last record

ctypedef struct RecordView:
    int64_t timestamp_delta
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers
    int32_t offset_delta
    int32_t key_size       # -1: null
    int32_t value_size     # -1: null
    int32_t headers_count
    int8_t attributes

ctypedef struct HeaderView:
    const uint8_t* key
    const uint8_t* value
    int32_t key_size
    int32_t value_size     # -1: null


# Almost every varint of a record is one to three bytes long: read without a loop, so that the
# branches of the one are not the branches of another. The raw value, before zigzag; NULL when the
# varint is longer, or so near the end that only `wire` may read it.
cdef inline const uint8_t* read_raw(
        const uint8_t* p, const uint8_t* end, uint32_t* out) noexcept nogil:
    cdef uint32_t raw
    if end - p < 3:
        return NULL
    raw = p[0]
    if raw < 0x80:
        out[0] = raw
        return p + 1
    raw = (raw & 0x7F) | (<uint32_t>p[1] << 7)
    if p[1] < 0x80:
        out[0] = raw
        return p + 2
    if p[2] >= 0x80:
        return NULL
    out[0] = (raw & 0x3FFF) | (<uint32_t>p[2] << 14)
    return p + 3


cdef inline const uint8_t* read_short(
        const uint8_t* p, const uint8_t* end, int32_t* out) noexcept nogil:
    cdef uint32_t raw
    cdef const uint8_t* after = read_raw(p, end, &raw)
    if after == NULL:
        return read_varint(p, end, out)
    out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return after


cdef inline const uint8_t* read_short_long(
        const uint8_t* p, const uint8_t* end, int64_t* out) noexcept nogil:
    cdef uint32_t raw
    cdef const uint8_t* after = read_raw(p, end, &raw)
    if after == NULL:
        return read_varlong(p, end, out)
    out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return after


# A length of -1 (null) or more, and so many bytes behind it.
cdef inline const uint8_t* read_sized(
        const uint8_t* p, const uint8_t* end, const uint8_t** data, int32_t* size) noexcept nogil:
    p = read_short(p, end, size)
    if p == NULL or size[0] < -1:
        return NULL
    data[0] = p
    if size[0] <= 0:
        return p
    if end - p < size[0]:
        return NULL
    return p + size[0]


cdef inline const uint8_t* read_header_view(
        const uint8_t* p, const uint8_t* end, HeaderView* out) noexcept nogil:
    p = read_sized(p, end, &out.key, &out.key_size)
    if p == NULL or out.key_size < 0:
        return NULL
    return read_sized(p, end, &out.value, &out.value_size)


# The headers at `p`, looked at but not kept; the cursor behind them, or NULL.
cdef inline const uint8_t* skip_headers(
        const uint8_t* p, const uint8_t* end, int32_t count) noexcept nogil:
    cdef HeaderView header
    # A header takes two bytes at least.
    if count < 0 or count > (end - p) // 2:
        return NULL
    while count > 0:
        p = read_header_view(p, end, &header)
        if p == NULL:
            return NULL
        count -= 1
    return p


# The record at `p`; the cursor behind it, or NULL with the reason in `fault`.
cdef inline const uint8_t* read_record(
        const uint8_t* p, const uint8_t* end, RecordView* out, int* fault) noexcept nogil:
    cdef int32_t size
    p = read_short(p, end, &size)
    if p == NULL or size < LEAST_RECORD_BYTES - 1 or end - p < size:
        fault[0] = RECORD_LENGTH
        return NULL
    end = p + size
    out.attributes = <int8_t>p[0]
    p += 1
    p = read_short_long(p, end, &out.timestamp_delta)
    if p != NULL:
        p = read_short(p, end, &out.offset_delta)
    if p != NULL:
        p = read_sized(p, end, &out.key, &out.key_size)
    if p != NULL:
        p = read_sized(p, end, &out.value, &out.value_size)
    if p == NULL:
        fault[0] = RECORD_FIELD
        return NULL
    # Most records end here, too near their end for the readers above.
    if end - p == 1 and p[0] == 0:
        out.headers_count = 0
        return end
    p = read_short(p, end, &out.headers_count)
    if p == NULL:
        fault[0] = RECORD_FIELD
        return NULL
    out.headers = p
    if out.headers_count != 0:
        p = skip_headers(p, end, out.headers_count)
        if p == NULL:
            fault[0] = RECORD_HEADER
            return NULL
    if p != end:
        fault[0] = RECORD_TAIL
        return NULL
    return p


# False when the sum does not fit 64 bits.
cdef inline bint add_delta(int64_t base, int64_t delta, int64_t* out) noexcept nogil:
    out[0] = <int64_t>(<uint64_t>base + <uint64_t>delta)
    return ((base ^ out[0]) & (delta ^ out[0])) >= 0


# The records of the batch at p: in place when they are not compressed, else expanded into memory that the
# caller frees (`owned`, NULL otherwise). Returns a COMPRESSION_ status.
cdef int open_records(const uint8_t* p, const BatchFields* batch, size_t limit, const uint8_t** records,
                      size_t* size, uint8_t** owned) noexcept nogil

# What CorruptRecord says of records that could not be opened, or of one that could not be read.
cdef str compression_fault(int status, int codec, size_t limit)
cdef str record_fault(int fault, int64_t index, int64_t at)
