# The header of a record batch v2 (magic 2): its fields, checks and restamping. Format: docs/FORMATS.md.
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from plog._native.wire cimport be16, be32, be64

cdef enum:
    BATCH_HEADER_BYTES = 61
    # Where the fields start.
    AT_BASE_OFFSET = 0
    AT_BATCH_LENGTH = 8
    AT_LEADER_EPOCH = 12
    AT_MAGIC = 16
    AT_CRC = 17
    AT_ATTRIBUTES = 21
    AT_LAST_OFFSET_DELTA = 23
    AT_BASE_TIMESTAMP = 27
    AT_MAX_TIMESTAMP = 35
    AT_PRODUCER_ID = 43
    AT_PRODUCER_EPOCH = 51
    AT_BASE_SEQUENCE = 53
    AT_RECORDS_COUNT = 57
    # A record's length, attributes, timestamp delta, offset delta, key length, value length, headers count: a byte each.
    LEAST_RECORD_BYTES = 7

cdef enum:
    ATTRIBUTE_CODEC = 0x07
    ATTRIBUTE_LOG_APPEND_TIME = 0x08
    ATTRIBUTE_TRANSACTIONAL = 0x10
    ATTRIBUTE_CONTROL = 0x20
    ATTRIBUTE_DELETE_HORIZON = 0x40

# A header is looked at in this order: cut, magic, length; a batch then: cut, CRC, structure.
cdef enum:
    BATCH_OK = 0
    BATCH_CUT = -1            # the bytes end before the batch does
    BATCH_BAD_LENGTH = -2     # batch_length below the header's size, or negative
    BATCH_BAD_MAGIC = -3
    BATCH_BAD_CRC = -4
    BATCH_BAD_STRUCTURE = -5  # header fields contradict each other or the size

ctypedef struct BatchFields:
    int64_t base_offset
    int32_t batch_length
    int32_t partition_leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t records_count

# Below so many bytes a checksum or a walk takes less time than giving the interpreter lock away and
# waiting for it again.
cdef enum:
    WORTH_RELEASING = 32768


# Bytes of the whole batch at p, as its header says.
cdef inline int64_t size_of(const uint8_t* p) noexcept nogil:
    return <int64_t><int32_t>be32(p + AT_BATCH_LENGTH) + AT_LEADER_EPOCH


# Of the last record, also when compaction removed it.
cdef inline int64_t last_offset(const BatchFields* batch) noexcept nogil:
    return batch.base_offset + batch.last_offset_delta


# From 0 up, without overflow.
cdef inline bint offsets_make_sense(const BatchFields* batch) noexcept nogil:
    return (batch.base_offset >= 0
            and batch.last_offset_delta >= 0
            and batch.base_offset <= INT64_MAX - 1 - batch.last_offset_delta)


# The 61 bytes at p, whatever they say.
cdef inline void load_fields(const uint8_t* p, BatchFields* out) noexcept nogil:
    out.base_offset = <int64_t>be64(p + AT_BASE_OFFSET)
    out.batch_length = <int32_t>be32(p + AT_BATCH_LENGTH)
    out.partition_leader_epoch = <int32_t>be32(p + AT_LEADER_EPOCH)
    out.magic = <int8_t>p[AT_MAGIC]
    out.crc = be32(p + AT_CRC)
    out.attributes = <int16_t>be16(p + AT_ATTRIBUTES)
    out.last_offset_delta = <int32_t>be32(p + AT_LAST_OFFSET_DELTA)
    out.base_timestamp = <int64_t>be64(p + AT_BASE_TIMESTAMP)
    out.max_timestamp = <int64_t>be64(p + AT_MAX_TIMESTAMP)
    out.producer_id = <int64_t>be64(p + AT_PRODUCER_ID)
    out.producer_epoch = <int16_t>be16(p + AT_PRODUCER_EPOCH)
    out.base_sequence = <int32_t>be32(p + AT_BASE_SEQUENCE)
    out.records_count = <int32_t>be32(p + AT_RECORDS_COUNT)


# Header only: length and magic are checked, the CRC is not. BATCH_CUT when fewer than 61 bytes are there;
# that the whole batch is there is not asked.
cdef inline int read_header(const uint8_t* p, const uint8_t* end, BatchFields* out) noexcept nogil:
    if end - p < BATCH_HEADER_BYTES:
        return BATCH_CUT
    load_fields(p, out)
    if out.magic != 2:
        return BATCH_BAD_MAGIC
    if out.batch_length < BATCH_HEADER_BYTES - AT_LEADER_EPOCH:
        return BATCH_BAD_LENGTH
    return BATCH_OK


# The CRC of a batch that is there whole.
cdef uint32_t checksum(const uint8_t* p) noexcept nogil
# The whole batch at p: header, length within end, CRC, and what a header alone can prove: offsets from 0 up
# without overflow, records_count within last_offset_delta + 1 and, uncompressed, within the bytes there.
cdef int check_batch(const uint8_t* p, const uint8_t* end, BatchFields* out) noexcept nogil
cdef void restamp_offsets(uint8_t* p, int64_t base_offset, int32_t leader_epoch) noexcept nogil
# Sets the LogAppendTime bit and max_timestamp, and computes the CRC anew.
cdef void restamp_append_time(uint8_t* p, int64_t timestamp_ms) noexcept nogil
# Sets max_timestamp alone, and computes the CRC anew unless nothing changed.
cdef void restamp_max_timestamp(uint8_t* p, int64_t timestamp_ms) noexcept nogil

# What CorruptRecord says of a batch at `p`, `pos` bytes into the caller's buffer.
cdef str batch_fault(int status, const uint8_t* p, const uint8_t* end, Py_ssize_t pos)
# ValueError unless `pos` is within a buffer of `size` bytes.
cdef int check_position(Py_ssize_t pos, Py_ssize_t size) except -1
