"""The 61 bytes before the records of a batch v2 (magic 2, Kafka 0.11, KIP-98): read, checked, restamped.

Owns where the header's fields are, what they must satisfy together with the bytes
behind them, and the words for a batch that does not. Never looks into the records,
never touches files, never assigns an offset on its own; the three restamping
functions are the only ones that write.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from plog._native.compression cimport CODEC_NONE
from plog._native.crc32c cimport crc32c_update
from plog._native.wire cimport be16, be64, put_int16, put_int32, put_int64


cdef uint32_t checksum(const uint8_t* p) noexcept nogil:
    # The CRC starts behind the leader epoch, which every leader stamps anew.
    return crc32c_update(0, p + AT_ATTRIBUTES, <size_t>(size_of(p) - AT_ATTRIBUTES))


cdef int check_batch(const uint8_t* p, const uint8_t* end, BatchFields* out) noexcept nogil:
    cdef int status = read_header(p, end, out)
    cdef int64_t size
    if status != BATCH_OK:
        return status
    size = size_of(p)
    if end - p < size:
        return BATCH_CUT
    if checksum(p) != out.crc:
        return BATCH_BAD_CRC
    if (not offsets_make_sense(out)
            or out.records_count < 0
            or <int64_t>out.records_count > <int64_t>out.last_offset_delta + 1):
        return BATCH_BAD_STRUCTURE
    if (out.attributes & ATTRIBUTE_CODEC == CODEC_NONE
            and <int64_t>out.records_count * LEAST_RECORD_BYTES > size - BATCH_HEADER_BYTES):
        return BATCH_BAD_STRUCTURE
    return BATCH_OK


cdef str batch_fault(int status, const uint8_t* p, const uint8_t* end, Py_ssize_t pos):
    cdef BatchFields fields
    if end - p < BATCH_HEADER_BYTES:
        return f"batch at {pos}: only {end - p} bytes are left, its header takes {BATCH_HEADER_BYTES}"
    load_fields(p, &fields)
    if status == BATCH_BAD_MAGIC:
        return f"batch at {pos}: magic {fields.magic}, must be 2"
    if status == BATCH_BAD_LENGTH:
        return f"batch at {pos}: batch_length {fields.batch_length} is less than its header"
    if status == BATCH_CUT:
        return f"batch at {pos}: only {end - p} bytes are left, it takes {size_of(p)}"
    if status == BATCH_BAD_CRC:
        return f"batch at {pos}: CRC is {checksum(p):08x}, its header says {fields.crc:08x}"
    return (
        f"batch at {pos}: base_offset {fields.base_offset}, last_offset_delta {fields.last_offset_delta},"
        f" records_count {fields.records_count} and {size_of(p)} bytes contradict each other"
    )


cdef int check_position(Py_ssize_t pos, Py_ssize_t size) except -1:
    if pos < 0 or pos > size:
        raise ValueError(f"position {pos} is outside the buffer of {size} bytes")
    return 0


# -- restamping: the only writers -----------------------------------------------------------------

cdef void restamp_offsets(uint8_t* p, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
    put_int64(p + AT_BASE_OFFSET, base_offset)
    put_int32(p + AT_LEADER_EPOCH, leader_epoch)


cdef void restamp_max_timestamp(uint8_t* p, int64_t timestamp_ms) noexcept nogil:
    if <int64_t>be64(p + AT_MAX_TIMESTAMP) == timestamp_ms:
        return
    put_int64(p + AT_MAX_TIMESTAMP, timestamp_ms)
    put_int32(p + AT_CRC, <int32_t>checksum(p))


cdef void restamp_append_time(uint8_t* p, int64_t timestamp_ms) noexcept nogil:
    put_int16(p + AT_ATTRIBUTES, <int16_t>(be16(p + AT_ATTRIBUTES) | ATTRIBUTE_LOG_APPEND_TIME))
    put_int64(p + AT_MAX_TIMESTAMP, timestamp_ms)
    put_int32(p + AT_CRC, <int32_t>checksum(p))
