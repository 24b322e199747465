"""Deep validation of produced batches for Python: what a leader finds, as error codes and in words.

Owns the order in which a batch is looked at, the code of each fault and the text that
a client reads. The rules themselves are `produce_rules`. Never changes a byte of the
batch, and never appends.
"""

from typing import NamedTuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, int8_t, uint8_t, uint32_t

from plog._native.batch_fields cimport (
    AT_MAGIC,
    ATTRIBUTE_CODEC,
    ATTRIBUTE_LOG_APPEND_TIME,
    BATCH_BAD_CRC,
    BATCH_CUT,
    BATCH_HEADER_BYTES,
    BATCH_OK,
    WORTH_RELEASING,
    BatchFields,
    batch_fault,
    check_position,
    checksum,
    read_header,
    size_of,
)
from plog._native.codec_status cimport COMPRESSION_OK, COMPRESSION_TOO_LARGE, COMPRESSION_UNKNOWN_CODEC
from plog._native.compression cimport CODEC_NONE, CODEC_ZSTD
from plog._native.produce_rules cimport (
    HEADER_BASE_OFFSET,
    HEADER_BASE_SEQUENCE,
    HEADER_CONTROL,
    HEADER_COUNT_AND_DELTA,
    HEADER_DELETE_HORIZON,
    HEADER_LAST_OFFSET_DELTA,
    HEADER_PRODUCER_EPOCH,
    HEADER_PRODUCER_ID,
    HEADER_RECORDS_COUNT,
    HEADER_TRANSACTIONAL,
    MOST_RECORD_ERRORS,
    REFUSED_ATTRIBUTES,
    REFUSED_KEY,
    REFUSED_OFFSET,
    Refusal,
    Rules,
    Walk,
    header_fault,
    rules_at,
    walk_batch,
)
from plog._native.record_view cimport RECORD_OK, compression_fault, record_fault

from plog.errors import ErrorCode

cdef object _new_tuple = tuple.__new__
cdef int _NONE = ErrorCode.NONE
cdef int _CORRUPT_MESSAGE = ErrorCode.CORRUPT_MESSAGE
cdef int _MESSAGE_TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE
cdef int _INVALID_TIMESTAMP = ErrorCode.INVALID_TIMESTAMP
cdef int _UNSUPPORTED_COMPRESSION_TYPE = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
cdef int _INVALID_RECORD = ErrorCode.INVALID_RECORD


class Validation(NamedTuple):
    """What deep validation of a produced batch found."""

    error: int
    message: str
    record_errors: list
    max_timestamp_offset_delta: int
    uncompressed_bytes: int
    max_timestamp: int


cdef str refusal_text(const Refusal* refusal, const Rules* rules):
    if refusal.why == REFUSED_ATTRIBUTES:
        return f"attributes are {refusal.value}, must be 0"
    if refusal.why == REFUSED_OFFSET:
        return f"offset delta is {refusal.value}, must be {refusal.index}"
    if refusal.why == REFUSED_KEY:
        return "a record of a compacted topic needs a key"
    return f"timestamp {refusal.value} is not within {rules.oldest} .. {rules.newest}"


cdef str header_refusal(const BatchFields* batch):
    """What is wrong with the header, or None."""
    cdef int fault = header_fault(batch)
    if fault == HEADER_BASE_OFFSET:
        return f"base_offset is {batch.base_offset}, a producer must leave it 0"
    if fault == HEADER_LAST_OFFSET_DELTA:
        return f"last_offset_delta is {batch.last_offset_delta}"
    if fault == HEADER_RECORDS_COUNT:
        return f"records_count is {batch.records_count}"
    if fault == HEADER_COUNT_AND_DELTA:
        return f"records_count is {batch.records_count}, last_offset_delta is {batch.last_offset_delta}"
    if fault == HEADER_CONTROL:
        return "clients must not write control batches"
    if fault == HEADER_DELETE_HORIZON:
        return "clients must not set a delete horizon"
    if fault == HEADER_PRODUCER_EPOCH:
        return f"producer_epoch is {batch.producer_epoch} with producer_id {batch.producer_id}"
    if fault == HEADER_BASE_SEQUENCE:
        return f"base_sequence is {batch.base_sequence} with producer_id {batch.producer_id}"
    if fault == HEADER_PRODUCER_ID:
        return f"producer_id is {batch.producer_id}"
    if fault == HEADER_TRANSACTIONAL:
        return "a transactional batch needs a producer_id"
    return None


cdef object refused(int error, str message):
    return _new_tuple(Validation, (error, message, [], -1, 0, -1))


cdef object judge(const Walk* walk, const BatchFields* batch, const Rules* rules, size_t limit,
                  int64_t now_ms):
    cdef int i
    cdef int error
    cdef list errors
    if walk.opened != COMPRESSION_OK:
        error = _MESSAGE_TOO_LARGE if walk.opened == COMPRESSION_TOO_LARGE else _CORRUPT_MESSAGE
        return refused(error, compression_fault(walk.opened, batch.attributes & ATTRIBUTE_CODEC, limit))
    if walk.fault != RECORD_OK:
        return refused(_INVALID_RECORD, record_fault(walk.fault, walk.count, walk.fault_at))
    if walk.refused:
        errors = [
            (walk.refusals[i].index, refusal_text(&walk.refusals[i], rules))
            for i in range(min(walk.refused, <int32_t>MOST_RECORD_ERRORS))
        ]
        error = _INVALID_TIMESTAMP if walk.refused_timestamp else _INVALID_RECORD
        return _new_tuple(Validation, (
            error,
            f"{walk.refused} of {walk.count} records refused",
            errors,
            -1,
            0,
            -1,
        ))
    size = BATCH_HEADER_BYTES + walk.size
    if rules.any_timestamp:
        return _new_tuple(Validation, (_NONE, "", [], 0, size, now_ms))
    if walk.max_timestamp < -1:
        return _new_tuple(Validation, (_NONE, "", [], -1, size, -1))
    return _new_tuple(Validation, (
        _NONE, "", [], walk.max_timestamp_offset_delta, size, walk.max_timestamp,
    ))


cdef object validate(const uint8_t* p, const uint8_t* end, Py_ssize_t pos, const Rules* rules,
                     int64_t now_ms, size_t limit):
    cdef BatchFields batch
    cdef Walk walk
    cdef uint32_t crc
    cdef int64_t size
    cdef int status
    cdef str text
    if p == end:
        return refused(_INVALID_RECORD, f"batch at {pos}: there is none")
    # Looked at before all else, so that an old message set is told from damage.
    if end - p > AT_MAGIC and p[AT_MAGIC] != 2:
        return refused(_INVALID_RECORD if p[AT_MAGIC] < 2 else _CORRUPT_MESSAGE,
                       f"batch at {pos}: magic {<int8_t>p[AT_MAGIC]}, must be 2")
    status = read_header(p, end, &batch)
    if status != BATCH_OK:
        return refused(_INVALID_RECORD if status == BATCH_CUT else _CORRUPT_MESSAGE,
                       batch_fault(status, p, end, pos))
    size = size_of(p)
    if end - p < size:
        return refused(_INVALID_RECORD, batch_fault(BATCH_CUT, p, end, pos))
    if end - p > size:
        return refused(_INVALID_RECORD, f"batch at {pos}: {end - p - size} bytes follow, it must be alone")
    if size < WORTH_RELEASING:
        crc = checksum(p)
    else:
        with nogil:
            crc = checksum(p)
    if crc != batch.crc:
        return refused(_CORRUPT_MESSAGE, batch_fault(BATCH_BAD_CRC, p, end, pos))
    text = header_refusal(&batch)
    if text is not None:
        return refused(_INVALID_RECORD, f"batch at {pos}: {text}")
    if batch.attributes & ATTRIBUTE_CODEC > CODEC_ZSTD:
        return refused(
            _UNSUPPORTED_COMPRESSION_TYPE,
            compression_fault(COMPRESSION_UNKNOWN_CODEC, batch.attributes & ATTRIBUTE_CODEC, limit),
        )
    if batch.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return refused(_INVALID_TIMESTAMP, f"batch at {pos}: producers must not set LogAppendTime")
    if size < WORTH_RELEASING and batch.attributes & ATTRIBUTE_CODEC == CODEC_NONE:
        walk_batch(p, &batch, rules, limit, &walk)
    else:
        with nogil:
            walk_batch(p, &batch, rules, limit, &walk)
    return judge(&walk, &batch, rules, limit, now_ms)


def validate_produced(
    data,
    *,
    Py_ssize_t pos=0,
    int64_t now_ms,
    int64_t before_max_ms,
    int64_t after_max_ms,
    bint log_append_time,
    bint key_required,
    size_t decompressed_limit,
):
    """Deep validation of one batch from a client, as the leader does before it appends."""
    cdef Py_buffer view
    cdef Rules rules = rules_at(now_ms, before_max_ms, after_max_ms)
    rules.any_timestamp = log_append_time
    rules.key_required = key_required
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        check_position(pos, view.len)
        return validate(<const uint8_t*>view.buf + pos, <const uint8_t*>view.buf + view.len, pos,
                        &rules, now_ms, decompressed_limit)
    finally:
        PyBuffer_Release(&view)
