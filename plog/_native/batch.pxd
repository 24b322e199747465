# Record batch v2 (magic 2): header fields, checks, restamping. Format: PROTOCOL of Kafka 0.11+.
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

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

# Header only: length and magic are checked, the CRC is not. BATCH_CUT when fewer than 61 bytes are there;
# that the whole batch is there is not asked.
cdef int read_header(const uint8_t* p, const uint8_t* end, BatchFields* out) noexcept nogil
# The whole batch at p: header, length within end, CRC, and what a header alone can prove: offsets from 0 up
# without overflow, records_count within last_offset_delta + 1 and, uncompressed, within the bytes there.
cdef int check_batch(const uint8_t* p, const uint8_t* end, BatchFields* out) noexcept nogil
cdef void restamp_offsets(uint8_t* p, int64_t base_offset, int32_t leader_epoch) noexcept nogil
# Sets the LogAppendTime bit and max_timestamp, and computes the CRC anew.
cdef void restamp_append_time(uint8_t* p, int64_t timestamp_ms) noexcept nogil
# Sets max_timestamp alone, and computes the CRC anew unless nothing changed.
cdef void restamp_max_timestamp(uint8_t* p, int64_t timestamp_ms) noexcept nogil

# The records of the batch at p: in place when they are not compressed, else expanded into memory that the
# caller frees (`owned`, NULL otherwise). Returns a COMPRESSION_ status.
cdef int open_records(const uint8_t* p, const BatchFields* batch, size_t limit, const uint8_t** records,
                      size_t* size, uint8_t** owned) noexcept nogil

# What the leader demands of a produced batch's records.
ctypedef struct Rules:
    int64_t oldest
    int64_t newest
    bint any_timestamp
    bint key_required

# The bounds of timestamps as of now, without overflow.
cdef Rules rules_at(int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms) noexcept nogil
# Whether validate_produced would accept these `size` bytes, no more and no less; *max_timestamp is then what the
# header must say.
cdef bint is_acceptable(
    const uint8_t* p, int64_t size, const Rules* rules, size_t limit, int64_t* max_timestamp) noexcept nogil

# What CorruptRecord says of a batch at `p`, `pos` bytes into the caller's buffer.
cdef str batch_fault(int status, const uint8_t* p, const uint8_t* end, Py_ssize_t pos)
cdef str compression_fault(int status, int codec, size_t limit)
cdef str record_fault(int fault, int64_t index, int64_t at)
