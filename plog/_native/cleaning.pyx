"""Batches as compaction leaves them: fewer records, the same offsets, sequences and producers.

Owns the bytes of a batch that loses records, or learns when its tombstones may go. What stays
is copied as it stands, in stretches. Never decides about transactions, producers or time:
`storage.cleaner` does.
"""

from typing import NamedTuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from plog._native.batch_fields cimport (
    AT_ATTRIBUTES,
    AT_BASE_TIMESTAMP,
    AT_BATCH_LENGTH,
    AT_CRC,
    AT_LEADER_EPOCH,
    AT_MAX_TIMESTAMP,
    AT_RECORDS_COUNT,
    ATTRIBUTE_CODEC,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    BATCH_HEADER_BYTES,
    BATCH_OK,
    BatchFields,
    batch_fault,
    checksum,
    read_header,
    size_of,
)
from plog._native.codec_status cimport COMPRESSION_DEFAULT_LEVEL, COMPRESSION_NO_MEMORY, COMPRESSION_OK
from plog._native.compression cimport CODEC_NONE, compress_bytes
from plog._native.offset_map cimport OffsetMap
from plog._native.record_view cimport (
    RECORD_OK,
    RECORD_TIMESTAMP,
    RecordView,
    add_delta,
    compression_fault,
    open_records,
    read_record,
    read_short,
    read_short_long,
    record_fault,
)
from plog._native.wire cimport put_int16, put_int32, put_int64, put_varint, put_varlong

from plog._native.records import DECOMPRESSED_LIMIT
from plog.errors import CorruptRecord

cdef size_t _LIMIT = DECOMPRESSED_LIMIT

cdef enum:
    # A record's length and timestamp delta may grow by so much when its base timestamp changes.
    MOST_GROWTH = 14


class Cleaned(NamedTuple):
    """What is left of a batch: `data` is None where it is the batch as it was."""

    records: int
    data: bytes | None
    has_tombstones: bool


ctypedef struct Left:
    size_t size            # of the records that stay, one behind the other
    int32_t count
    int64_t max_timestamp
    bint has_tombstones
    int32_t at             # the record that cannot be read


# Copies the records that stay to `out`, which has room for all; RECORD_OK, or a record's fault.
cdef int keep_records(const uint8_t* p, const uint8_t* end, const BatchFields* batch, OffsetMap latest,
                      int64_t known_to, bint drop_tombstones, uint8_t* out, Left* left) noexcept nogil:
    cdef RecordView record
    cdef const uint8_t* begin
    cdef const uint8_t* run = p           # the stretch that stays and is not copied yet
    cdef int64_t offset
    cdef int64_t timestamp
    cdef int fault = RECORD_OK
    left.size = 0
    left.count = 0
    left.max_timestamp = INT64_MIN
    left.has_tombstones = False
    left.at = 0
    while left.at < batch.records_count:
        begin = p
        p = read_record(p, end, &record, &fault)
        if p == NULL:
            return fault
        left.at += 1
        offset = batch.base_offset + record.offset_delta
        if offset >= known_to or (
                record.key_size >= 0
                and not (drop_tombstones and record.value_size < 0)
                and latest.slot_of(record.key, record.key_size).after <= offset + 1):
            left.count += 1
            left.has_tombstones |= record.value_size < 0
            if not add_delta(batch.base_timestamp, record.timestamp_delta, &timestamp):
                return RECORD_TIMESTAMP
            if timestamp > left.max_timestamp:
                left.max_timestamp = timestamp
            continue
        memcpy(out + left.size, run, begin - run)
        left.size += begin - run
        run = p
    memcpy(out + left.size, run, p - run)
    left.size += p - run
    return RECORD_OK


# Writes records anew whose timestamps count from another base; `out` has room for MOST_GROWTH more for each. They
# have been read before.
cdef size_t rebase(const uint8_t* p, int32_t count, uint64_t shift, uint8_t* out) noexcept nogil:
    cdef uint8_t head[16]
    cdef uint8_t* to = out
    cdef uint8_t* head_end
    cdef const uint8_t* end
    cdef const uint8_t* rest
    cdef int32_t size = 0
    cdef int64_t delta = 0
    while count > 0:
        # Three bytes are always behind a length, and behind a record's attributes.
        p = read_short(p, p + 5, &size)
        end = p + size
        rest = read_short_long(p + 1, end, &delta)
        head[0] = p[0]
        head_end = put_varlong(head + 1, <int64_t>(<uint64_t>delta - shift))
        to = put_varint(to, <int32_t>((head_end - head) + (end - rest)))
        memcpy(to, head, head_end - head)
        to += head_end - head
        memcpy(to, rest, end - rest)
        to += end - rest
        p = end
        count -= 1
    return to - out


# The batch at `header` with other records, as bytes.
cdef bytes assemble(const uint8_t* header, int attributes, int64_t base_timestamp, int64_t max_timestamp,
                    int32_t count, const uint8_t* records, size_t size):
    cdef int codec = attributes & ATTRIBUTE_CODEC
    cdef uint8_t* packed = NULL
    cdef int status
    cdef bytes made
    cdef uint8_t* p
    try:
        if codec != CODEC_NONE and count:
            with nogil:
                status = compress_bytes(codec, COMPRESSION_DEFAULT_LEVEL, records, size, &packed, &size)
            if status == COMPRESSION_NO_MEMORY:
                raise MemoryError
            if status != COMPRESSION_OK:
                raise CorruptRecord(compression_fault(status, codec, _LIMIT))
            records = packed
        made = PyBytes_FromStringAndSize(NULL, BATCH_HEADER_BYTES + size)
        p = <uint8_t*><char*>made
        memcpy(p, header, BATCH_HEADER_BYTES)
        if size:
            memcpy(p + BATCH_HEADER_BYTES, records, size)
        put_int32(p + AT_BATCH_LENGTH, <int32_t>(BATCH_HEADER_BYTES + size - AT_LEADER_EPOCH))
        put_int16(p + AT_ATTRIBUTES, <int16_t>attributes)
        put_int64(p + AT_BASE_TIMESTAMP, base_timestamp)
        put_int64(p + AT_MAX_TIMESTAMP, max_timestamp)
        put_int32(p + AT_RECORDS_COUNT, count)
        put_int32(p + AT_CRC, <int32_t>checksum(p))
        return made
    finally:
        free(packed)


# Header and extent of the one batch that a buffer holds.
cdef int load(const Py_buffer* view, BatchFields* out) except -1:
    cdef const uint8_t* p = <const uint8_t*>view.buf
    cdef int status = read_header(p, p + view.len, out)
    if status != BATCH_OK:
        raise CorruptRecord(batch_fault(status, p, p + view.len, 0))
    if size_of(p) != view.len:
        raise CorruptRecord(f"{view.len} bytes where a batch takes {size_of(p)}")
    return 0


cdef object cleaned(const uint8_t* header, const BatchFields* batch, OffsetMap latest, int64_t known_to,
                    bint drop_tombstones, int64_t horizon_ms):
    cdef const uint8_t* records
    cdef uint8_t* owned = NULL
    cdef uint8_t* kept = NULL
    cdef uint8_t* moved = NULL
    cdef const uint8_t* out
    cdef size_t size
    cdef size_t out_size
    cdef Left left
    cdef int status
    cdef int fault = RECORD_OK
    cdef int attributes = batch.attributes
    cdef int64_t base_timestamp = batch.base_timestamp
    try:
        with nogil:
            status = open_records(header, batch, _LIMIT, &records, &size, &owned)
            if status == COMPRESSION_OK:
                kept = <uint8_t*>malloc(size + 1)
                if kept != NULL:
                    fault = keep_records(records, records + size, batch, latest, known_to, drop_tombstones,
                                         kept, &left)
        if status != COMPRESSION_OK:
            raise CorruptRecord(compression_fault(status, attributes & ATTRIBUTE_CODEC, _LIMIT))
        if kept == NULL:
            raise MemoryError
        if fault != RECORD_OK:
            raise CorruptRecord(record_fault(fault, left.at, 0))
        horizon_is_new = horizon_ms >= 0 and left.has_tombstones
        if left.count == batch.records_count and not horizon_is_new:
            return Cleaned(left.count, None, left.has_tombstones)
        if left.count == 0:
            return Cleaned(0, b"", False)
        out, out_size = kept, left.size
        if horizon_is_new:
            moved = <uint8_t*>malloc(left.size + <size_t>left.count * MOST_GROWTH)
            if moved == NULL:
                raise MemoryError
            with nogil:
                out_size = rebase(kept, left.count, <uint64_t>horizon_ms - <uint64_t>base_timestamp, moved)
            out = moved
            attributes |= ATTRIBUTE_DELETE_HORIZON
            base_timestamp = horizon_ms
        # Of one that says when it was appended this is every record's time.
        max_timestamp = batch.max_timestamp if attributes & ATTRIBUTE_LOG_APPEND_TIME else left.max_timestamp
        return Cleaned(
            left.count,
            assemble(header, attributes, base_timestamp, max_timestamp, left.count, out, out_size),
            left.has_tombstones,
        )
    finally:
        free(owned)
        free(kept)
        free(moved)


def clean_batch(batch not None, OffsetMap latest not None, *, int64_t known_to, bint drop_tombstones,
                int64_t horizon_ms=-1):
    cdef Py_buffer view
    cdef BatchFields fields
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        load(&view, &fields)
        return cleaned(<const uint8_t*>view.buf, &fields, latest, known_to, drop_tombstones, horizon_ms)
    finally:
        PyBuffer_Release(&view)


def set_delete_horizon(batch not None, int64_t horizon_ms):
    cdef Py_buffer view
    cdef BatchFields fields
    cdef const uint8_t* records
    cdef const uint8_t* p
    cdef uint8_t* owned = NULL
    cdef uint8_t* moved = NULL
    cdef size_t size
    cdef int status
    cdef int fault = RECORD_OK
    cdef int32_t index
    cdef RecordView record
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        load(&view, &fields)
        status = open_records(<const uint8_t*>view.buf, &fields, _LIMIT, &records, &size, &owned)
        if status != COMPRESSION_OK:
            raise CorruptRecord(compression_fault(status, fields.attributes & ATTRIBUTE_CODEC, _LIMIT))
        p = records
        for index in range(fields.records_count):
            p = read_record(p, records + size, &record, &fault)
            if p == NULL:
                raise CorruptRecord(record_fault(fault, index, 0))
        moved = <uint8_t*>malloc(size + <size_t>max(fields.records_count, 0) * MOST_GROWTH + 1)
        if moved == NULL:
            raise MemoryError
        size = rebase(records, fields.records_count, <uint64_t>horizon_ms - <uint64_t>fields.base_timestamp,
                      moved)
        return assemble(<const uint8_t*>view.buf, fields.attributes | ATTRIBUTE_DELETE_HORIZON, horizon_ms,
                        fields.max_timestamp, fields.records_count, moved, size)
    finally:
        free(owned)
        free(moved)
        PyBuffer_Release(&view)


def empty_batch(batch not None):
    cdef Py_buffer view
    cdef BatchFields fields
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        load(&view, &fields)
        # No codec: there is nothing to expand.
        return assemble(<const uint8_t*>view.buf, fields.attributes & ~ATTRIBUTE_CODEC, fields.base_timestamp,
                        fields.max_timestamp, 0, NULL, 0)
    finally:
        PyBuffer_Release(&view)
