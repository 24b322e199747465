"""Records of a batch v2 as Python objects: reading them, and building batches as a producer does.

Owns the conversion between records and bytes. It stamps no offset and no leader
epoch but those it is told, and judges nothing: `validation` does. Where a record's
fields are in the bytes is known to `record_view` alone.
"""

from typing import NamedTuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from plog._native.batch_fields cimport (
    AT_ATTRIBUTES,
    AT_BASE_SEQUENCE,
    AT_CRC,
    AT_LEADER_EPOCH,
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER_BYTES,
    BATCH_OK,
    BatchFields,
    batch_fault,
    check_batch,
    check_position,
)
from plog._native.codec_status cimport COMPRESSION_NO_MEMORY, COMPRESSION_OK
from plog._native.compression cimport CODEC_NONE, compress_bytes
from plog._native.crc32c cimport crc32c_update
from plog._native.record_view cimport (
    RECORD_MISSING,
    RECORD_OFFSET,
    RECORD_OK,
    RECORD_SURPLUS,
    RECORD_TIMESTAMP,
    HeaderView,
    RecordView,
    add_delta,
    compression_fault,
    open_records,
    read_header_view,
    read_record,
    record_fault,
)
from plog._native.wire cimport put_int8, put_int16, put_int32, put_int64, put_varint, put_varlong

from plog._native.compression import DEFAULT_LEVEL, compress
from plog.errors import CorruptRecord, MessageTooLarge

# What a batch may expand to for any reader, so that none stops at what another has let in.
DECOMPRESSED_LIMIT = (1 << 31) - 1

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject* (*tp_alloc)(PyTypeObject* kind, Py_ssize_t items) except NULL
    void PyTuple_SET_ITEM(PyObject* made, Py_ssize_t index, PyObject* stolen)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    VARINT_BYTES = 5
    LEAST_CAPACITY = 1024


class Record(NamedTuple):
    """One record. `timestamp` is ms since 1970; `timestamp_type` 0 CreateTime, 1 LogAppendTime."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes
    value: bytes
    headers: tuple


cdef object _Record = Record


# -- reading ---------------------------------------------------------------------------------------

cdef inline object bytes_or_none(const uint8_t* data, int32_t size):
    if size < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*>data, size)


cdef tuple header_tuples(const RecordView* record, const uint8_t* end):
    cdef const uint8_t* p = record.headers
    cdef HeaderView header
    cdef list found = []
    cdef int32_t i
    for i in range(record.headers_count):
        p = read_header_view(p, end, &header)
        if p == NULL:
            # Read well a moment ago: someone else writes to this buffer.
            raise CorruptRecord("a header changed while it was read")
        # As Java does, what is not UTF-8 becomes U+FFFD.
        key = PyUnicode_DecodeUTF8(<char*>header.key, header.key_size, "replace")
        found.append((key, bytes_or_none(header.value, header.value_size)))
    return tuple(found)


cdef inline void set_item(PyObject* made, Py_ssize_t index, object item):
    Py_INCREF(item)
    PyTuple_SET_ITEM(made, index, <PyObject*>item)


cdef object new_record(offset, timestamp, timestamp_type, key, value, headers):
    # A named tuple is a tuple; filled in place it costs no second one.
    cdef PyObject* made = (<PyTypeObject*>_Record).tp_alloc(<PyTypeObject*>_Record, 6)
    cdef object record = <object>made
    Py_DECREF(record)
    set_item(made, 0, offset)
    set_item(made, 1, timestamp)
    set_item(made, 2, timestamp_type)
    set_item(made, 3, key)
    set_item(made, 4, value)
    set_item(made, 5, headers)
    return record


cdef list read_all(const uint8_t* p, const uint8_t* end, const BatchFields* batch):
    cdef const uint8_t* start = p
    cdef const uint8_t* after
    cdef RecordView record
    cdef int fault = RECORD_OK
    cdef int32_t index = 0
    cdef int32_t last_delta = -1
    cdef bint append_time = batch.attributes & ATTRIBUTE_LOG_APPEND_TIME
    cdef int64_t timestamp
    cdef list found = []
    while index < batch.records_count:
        if p == end:
            raise CorruptRecord(record_fault(RECORD_MISSING, index, p - start))
        after = read_record(p, end, &record, &fault)
        if after == NULL:
            raise CorruptRecord(record_fault(fault, index, p - start))
        if not add_delta(batch.base_timestamp, record.timestamp_delta, &timestamp):
            raise CorruptRecord(record_fault(RECORD_TIMESTAMP, index, p - start))
        # Compaction leaves gaps, so deltas only have to rise.
        if record.offset_delta <= last_delta or record.offset_delta > batch.last_offset_delta:
            raise CorruptRecord(record_fault(RECORD_OFFSET, index, p - start))
        last_delta = record.offset_delta
        found.append(new_record(
            batch.base_offset + record.offset_delta,
            batch.max_timestamp if append_time else timestamp,
            1 if append_time else 0,
            bytes_or_none(record.key, record.key_size),
            bytes_or_none(record.value, record.value_size),
            header_tuples(&record, after) if record.headers_count else (),
        ))
        index += 1
        p = after
    if p != end:
        raise CorruptRecord(record_fault(RECORD_SURPLUS, index, p - start))
    return found


cdef list walk_batch(const uint8_t* p, const uint8_t* end, Py_ssize_t pos, size_t limit):
    cdef BatchFields batch
    cdef const uint8_t* records = NULL
    cdef uint8_t* owned = NULL
    cdef size_t size = 0
    cdef int status
    cdef int opened = COMPRESSION_OK
    with nogil:
        status = check_batch(p, end, &batch)
        if status == BATCH_OK:
            opened = open_records(p, &batch, limit, &records, &size, &owned)
    if status != BATCH_OK:
        raise CorruptRecord(batch_fault(status, p, end, pos))
    if opened != COMPRESSION_OK:
        raise CorruptRecord(compression_fault(opened, batch.attributes & ATTRIBUTE_CODEC, limit))
    try:
        return read_all(records, records + size, &batch)
    finally:
        free(owned)


def walk(batch, *, Py_ssize_t pos=0, size_t decompressed_limit=DECOMPRESSED_LIMIT):
    """Every record of one batch (control batches too). The CRC is checked."""
    cdef Py_buffer view
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        check_position(pos, view.len)
        return walk_batch(<const uint8_t*>view.buf + pos, <const uint8_t*>view.buf + view.len, pos,
                          decompressed_limit)
    finally:
        PyBuffer_Release(&view)


# -- building --------------------------------------------------------------------------------------

cdef inline int32_t varlong_size(int64_t value) noexcept nogil:
    cdef uint64_t raw = (<uint64_t>value << 1) ^ <uint64_t>(value >> 63)
    cdef int32_t size = 1
    while raw >= 0x80:
        raw >>= 7
        size += 1
    return size


cdef inline uint8_t* put_bytes(uint8_t* p, const uint8_t* data, int64_t size) noexcept nogil:
    # Null, and bytes that there are none of, have no address.
    if size > 0:
        memcpy(p, data, <size_t>size)
        p += size
    return p


cdef int make_room(Building* batch, int64_t size) noexcept nogil:
    # Room for so many bytes more behind the records there are.
    cdef int64_t capacity = batch.capacity
    cdef uint8_t* records
    if batch.size + size > capacity:
        capacity = max(batch.size + size, capacity * 2, <int64_t>LEAST_CAPACITY)
        records = <uint8_t*>realloc(batch.records, <size_t>capacity)
        if records == NULL:
            return ADD_NO_MEMORY
        batch.records = records
        batch.capacity = capacity
    return ADD_OK


cdef int start_record(
        Building* batch, int64_t timestamp, const uint8_t* key, int64_t key_size, const uint8_t* value,
        int64_t value_size, int64_t headers_size, int64_t limit_bytes, uint8_t** at) noexcept nogil:
    cdef int64_t delta = 0
    cdef int64_t body
    cdef uint8_t* p
    if batch.count:
        delta = <int64_t>(<uint64_t>timestamp - <uint64_t>batch.base_timestamp)
        if ((timestamp ^ batch.base_timestamp) & (timestamp ^ delta)) < 0:
            return ADD_TOO_FAR
    if batch.count == INT32_MAX:
        return ADD_TOO_MANY
    body = 1 + varlong_size(delta) + varint_size(<uint32_t>batch.count) + 1 + 1 + headers_size
    if key_size >= 0:
        body += varint_size(<uint32_t>key_size) - 1 + key_size
    if value_size >= 0:
        body += varint_size(<uint32_t>value_size) - 1 + value_size
    if batch.count and BATCH_HEADER_BYTES + batch.size + varint_size(<uint32_t>body) + body > limit_bytes:
        return ADD_FULL
    if batch.size + body + VARINT_BYTES > INT32_MAX - BATCH_HEADER_BYTES:
        return ADD_TOO_LARGE
    if make_room(batch, body + VARINT_BYTES) != ADD_OK:
        return ADD_NO_MEMORY
    p = put_varint(batch.records + batch.size, <int32_t>body)
    p = put_int8(p, 0)
    p = put_varlong(p, delta)
    p = put_varint(p, batch.count)
    p = put_varint(p, <int32_t>key_size)
    p = put_bytes(p, key, key_size)
    p = put_varint(p, <int32_t>value_size)
    at[0] = put_bytes(p, value, value_size)
    return ADD_OK


cdef void end_record(Building* batch, int64_t timestamp, const uint8_t* end) noexcept nogil:
    batch.size = end - batch.records
    if batch.count == 0:
        batch.base_timestamp = timestamp
        batch.max_timestamp = timestamp
    elif timestamp > batch.max_timestamp:
        batch.max_timestamp = timestamp
    batch.count += 1


cdef int refuse_record(int status, const Building* batch, int64_t timestamp, int64_t size) except -1:
    if status == ADD_TOO_FAR:
        raise ValueError(f"timestamp {timestamp} is too far from {batch.base_timestamp}")
    if status == ADD_TOO_MANY:
        raise MessageTooLarge("a batch cannot hold more records")
    if status == ADD_NO_MEMORY:
        raise MemoryError
    raise MessageTooLarge(f"a batch cannot hold {batch.size + size} bytes of records")


cdef class BatchBuilder:
    """Collects records of one batch v2; the fields a broker owns are left for it to stamp."""

    def __init__(
        self,
        *,
        int codec=0,
        int level=DEFAULT_LEVEL,
        bint log_append_time=False,
        int64_t producer_id=-1,
        int16_t producer_epoch=-1,
        int32_t base_sequence=-1,
        bint transactional=False,
    ):
        if codec != CODEC_NONE:
            # An unknown codec or level is refused now, and not when the batch is built.
            compress(codec, b"", level)
        self.attributes = <int16_t>codec
        if log_append_time:
            self.attributes |= ATTRIBUTE_LOG_APPEND_TIME
        if transactional:
            self.attributes |= ATTRIBUTE_TRANSACTIONAL
        self.level = level
        self.batch.size = 0
        self.batch.count = 0
        self.set_producer(producer_id, producer_epoch, base_sequence)

    def __dealloc__(self):
        free(self.batch.records)

    def __len__(self):
        return self.batch.count

    @property
    def uncompressed_bytes(self):
        """Bytes of the batch so far, were it not compressed."""
        return BATCH_HEADER_BYTES + self.batch.size

    cpdef object set_producer(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence):
        """Say who produces, and the sequence of the first record; before `build`."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence

    def append(self, int64_t timestamp, key, value, headers=()):
        """Add a record and return the uncompressed size of the batch so far, in bytes."""
        cdef Py_buffer key_view
        cdef Py_buffer value_view
        cdef const char* key_data = NULL
        cdef const char* value_data = NULL
        cdef Py_ssize_t key_size = -1
        cdef Py_ssize_t value_size = -1
        cdef bint release_key = False
        cdef bint release_value = False
        try:
            if type(key) is bytes:
                key_data = PyBytes_AS_STRING(key)
                key_size = PyBytes_GET_SIZE(key)
            elif key is not None:
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
                release_key = True
                key_data = <const char*>key_view.buf
                key_size = key_view.len
            if type(value) is bytes:
                value_data = PyBytes_AS_STRING(value)
                value_size = PyBytes_GET_SIZE(value)
            elif value is not None:
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                release_value = True
                value_data = <const char*>value_view.buf
                value_size = value_view.len
            self.add(timestamp, key_data, key_size, value_data, value_size, headers)
        finally:
            if release_key:
                PyBuffer_Release(&key_view)
            if release_value:
                PyBuffer_Release(&value_view)
        return BATCH_HEADER_BYTES + self.batch.size

    cdef int add(self, int64_t timestamp, const char* key, Py_ssize_t key_size, const char* value,
                 Py_ssize_t value_size, headers) except -1:
        cdef bytes packed = None
        cdef Py_ssize_t packed_size = 1
        cdef uint8_t* p = NULL
        cdef int status
        if self.busy:
            raise RuntimeError("another thread builds this batch")
        if headers:
            packed = pack_headers(headers)
            packed_size = PyBytes_GET_SIZE(packed)
        status = start_record(&self.batch, timestamp, <const uint8_t*>key, key_size, <const uint8_t*>value,
                              value_size, packed_size, INT64_MAX, &p)
        if status != ADD_OK:
            refuse_record(status, &self.batch, timestamp, max(key_size, 0) + max(value_size, 0) + packed_size)
        if packed is None:
            p[0] = 0
            p += 1
        else:
            p = put_bytes(p, <const uint8_t*>PyBytes_AS_STRING(packed), packed_size)
        end_record(&self.batch, timestamp, p)
        return 0

    def build(self, int64_t base_offset=0, int32_t leader_epoch=-1):
        """Return the batch: header, records (compressed where asked) and CRC. It may be called again."""
        cdef uint8_t* compressed = NULL
        cdef const uint8_t* records = self.batch.records
        cdef size_t size = <size_t>self.batch.size
        cdef int codec = self.attributes & ATTRIBUTE_CODEC
        cdef int status = COMPRESSION_OK
        if self.batch.count == 0:
            raise ValueError("a batch needs a record")
        if self.busy:
            raise RuntimeError("another thread builds this batch")
        if codec != CODEC_NONE:
            self.busy = True
            with nogil:
                status = compress_bytes(codec, self.level, self.batch.records, <size_t>self.batch.size, &compressed, &size)
            self.busy = False
            if status == COMPRESSION_NO_MEMORY:
                raise MemoryError
            if status != COMPRESSION_OK:
                raise ValueError(f"codec {codec} refuses level {self.level}")
            records = compressed
        try:
            if size > INT32_MAX - BATCH_HEADER_BYTES:
                raise MessageTooLarge(f"a batch cannot hold {size} bytes of records")
            return self.assemble(records, size, base_offset, leader_epoch)
        finally:
            free(compressed)

    cdef bytes assemble(self, const uint8_t* records, size_t size, int64_t base_offset, int32_t leader_epoch):
        cdef bytes batch = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(BATCH_HEADER_BYTES + size))
        cdef uint8_t* start = <uint8_t*>PyBytes_AS_STRING(batch)
        cdef uint8_t* p
        p = put_int64(start, base_offset)
        p = put_int32(p, <int32_t>(BATCH_HEADER_BYTES - AT_LEADER_EPOCH + size))
        p = put_int32(p, leader_epoch)
        p = put_int8(p, 2)
        p += 4
        p = put_int16(p, self.attributes)
        p = put_int32(p, self.batch.count - 1)
        p = put_int64(p, self.batch.base_timestamp)
        p = put_int64(p, self.batch.max_timestamp)
        p = put_int64(p, self.producer_id)
        p = put_int16(p, self.producer_epoch)
        p = put_int32(p, self.base_sequence)
        p = put_int32(p, self.batch.count)
        memcpy(p, records, size)
        stamp_crc(start, BATCH_HEADER_BYTES + size)
        return batch


cdef void stamp_crc(uint8_t* batch, size_t size) noexcept:
    put_int32(batch + AT_CRC, <int32_t>crc32c_update(0, batch + AT_ATTRIBUTES, size - AT_ATTRIBUTES))


cdef bytes pack_headers(headers):
    # Off the hot path: a count, then keys and values with their lengths.
    cdef uint8_t scratch[VARINT_BYTES]
    cdef uint8_t* after
    cdef Py_ssize_t size = 0
    cdef const char* text
    cdef list pieces = []
    after = put_varint(scratch, <int32_t>len(headers))
    pieces.append(PyBytes_FromStringAndSize(<char*>scratch, after - scratch))
    for key, value in headers:
        text = PyUnicode_AsUTF8AndSize(key, &size)
        after = put_varint(scratch, <int32_t>size)
        pieces.append(PyBytes_FromStringAndSize(<char*>scratch, after - scratch))
        pieces.append(PyBytes_FromStringAndSize(text, size))
        if value is None:
            pieces.append(b"\x01")
        else:
            value = bytes(memoryview(value))
            after = put_varint(scratch, <int32_t>len(value))
            pieces.append(PyBytes_FromStringAndSize(<char*>scratch, after - scratch))
            pieces.append(value)
    return b"".join(pieces)


def build_batch(
    records,
    *,
    int codec=0,
    int64_t base_offset=0,
    int32_t leader_epoch=-1,
    bint log_append_time=False,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int32_t base_sequence=-1,
    bint transactional=False,
):
    """Build one batch of (timestamp, key, value, headers)."""
    builder = BatchBuilder(
        codec=codec,
        log_append_time=log_append_time,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return builder.build(base_offset, leader_epoch)


def control_batch(
    *,
    bint abort,
    int64_t offset,
    int64_t timestamp,
    int64_t producer_id,
    int16_t producer_epoch,
    int32_t coordinator_epoch,
    int32_t leader_epoch=-1,
):
    """The 78-byte transaction marker (KIP-98): key version 0 and type, value version 0 and epoch."""
    cdef uint8_t key[4]
    cdef uint8_t value[6]
    cdef BatchBuilder builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=producer_epoch, transactional=True)
    put_int16(put_int16(key, 0), 0 if abort else 1)
    put_int32(put_int16(value, 0), coordinator_epoch)
    builder.attributes |= ATTRIBUTE_CONTROL
    builder.add(timestamp, <char*>key, sizeof(key), <char*>value, sizeof(value), ())
    return builder.build(offset, leader_epoch)
