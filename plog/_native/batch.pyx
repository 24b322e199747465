"""Record batches v2: the header, the checksum, deep validation of what clients produce, restamping.

Owns the meaning of the 61 bytes before the records (magic 2, Kafka 0.11, KIP-98)
and the rules a leader applies before it appends. Never touches files, never
assigns an offset on its own, never changes a byte but in the restamping
functions. Messages of its faults are shared with `records` and `columns`.
"""

from typing import NamedTuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, int8_t, uint8_t, uint32_t
from libc.stdlib cimport free

from plog._native.compression cimport (
    CODEC_NONE,
    CODEC_ZSTD,
    COMPRESSION_NO_MEMORY,
    COMPRESSION_OK,
    COMPRESSION_TOO_LARGE,
    COMPRESSION_UNKNOWN_CODEC,
    decompress_bytes,
)
from plog._native.crc32c cimport crc32c_update
from plog._native.records cimport (
    LEAST_RECORD_BYTES,
    RECORD_MISSING,
    RECORD_OK,
    RECORD_SURPLUS,
    RECORD_TIMESTAMP,
    RecordView,
    add_delta,
    read_record,
)
from plog._native.wire cimport be16, be32, be64, put_int16, put_int32, put_int64

from plog.errors import CorruptRecord, ErrorCode

HEADER_BYTES = BATCH_HEADER_BYTES

# Below so many bytes a checksum or a walk takes less time than giving the interpreter lock away and
# waiting for it again.
cdef enum:
    WORTH_RELEASING = 32768
    MOST_RECORD_ERRORS = 100

cdef object _new_tuple = tuple.__new__
cdef int _NONE = ErrorCode.NONE
cdef int _CORRUPT_MESSAGE = ErrorCode.CORRUPT_MESSAGE
cdef int _MESSAGE_TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE
cdef int _INVALID_TIMESTAMP = ErrorCode.INVALID_TIMESTAMP
cdef int _UNSUPPORTED_COMPRESSION_TYPE = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
cdef int _INVALID_RECORD = ErrorCode.INVALID_RECORD


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, with what follows from them."""

    position: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self):
        return self.batch_length + 12

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self):
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self):
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self):
        return self.attributes & 0x07

    @property
    def is_log_append_time(self):
        return self.attributes & 0x08 != 0

    @property
    def is_transactional(self):
        return self.attributes & 0x10 != 0

    @property
    def is_control(self):
        return self.attributes & 0x20 != 0

    @property
    def has_delete_horizon(self):
        return self.attributes & 0x40 != 0


class Validation(NamedTuple):
    """What deep validation of a produced batch found."""

    error: int
    message: str
    record_errors: list
    max_timestamp_offset_delta: int
    uncompressed_bytes: int
    max_timestamp: int


# -- the header ------------------------------------------------------------------------------------

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


cdef inline int64_t size_of(const uint8_t* p) noexcept nogil:
    return <int64_t><int32_t>be32(p + AT_BATCH_LENGTH) + AT_LEADER_EPOCH


cdef uint32_t checksum(const uint8_t* p) noexcept nogil:
    # The CRC starts behind the leader epoch, which every leader stamps anew.
    return crc32c_update(0, p + AT_ATTRIBUTES, <size_t>(size_of(p) - AT_ATTRIBUTES))


cdef int read_header(const uint8_t* p, const uint8_t* end, BatchFields* out) noexcept nogil:
    if end - p < BATCH_HEADER_BYTES:
        return BATCH_CUT
    load_fields(p, out)
    if out.magic != 2:
        return BATCH_BAD_MAGIC
    if out.batch_length < BATCH_HEADER_BYTES - AT_LEADER_EPOCH:
        return BATCH_BAD_LENGTH
    return BATCH_OK


cdef inline bint offsets_make_sense(const BatchFields* batch) noexcept nogil:
    return (batch.base_offset >= 0
            and batch.last_offset_delta >= 0
            and batch.base_offset <= INT64_MAX - 1 - batch.last_offset_delta)


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


cdef int check_batch_unlocked(const uint8_t* p, const uint8_t* end, BatchFields* out):
    cdef int status
    if end - p < WORTH_RELEASING:
        return check_batch(p, end, out)
    with nogil:
        status = check_batch(p, end, out)
    return status


cdef str batch_fault(int status, const uint8_t* p, const uint8_t* end, Py_ssize_t pos):
    cdef BatchFields fields
    if end - p < BATCH_HEADER_BYTES:
        return f"batch at {pos}: {end - p} bytes are there, its header takes {BATCH_HEADER_BYTES}"
    load_fields(p, &fields)
    if status == BATCH_BAD_MAGIC:
        return f"batch at {pos}: magic {fields.magic}, must be 2"
    if status == BATCH_BAD_LENGTH:
        return f"batch at {pos}: batch_length {fields.batch_length} is less than its header"
    if status == BATCH_CUT:
        return f"batch at {pos}: {end - p} bytes are there, it takes {size_of(p)}"
    if status == BATCH_BAD_CRC:
        return f"batch at {pos}: CRC is {checksum(p):08x}, its header says {fields.crc:08x}"
    return (
        f"batch at {pos}: base_offset {fields.base_offset}, last_offset_delta {fields.last_offset_delta},"
        f" records_count {fields.records_count} and {size_of(p)} bytes contradict each other"
    )


cdef str compression_fault(int status, int codec, size_t limit):
    if status == COMPRESSION_NO_MEMORY:
        raise MemoryError
    if status == COMPRESSION_UNKNOWN_CODEC:
        return f"codec {codec} is unknown"
    if status == COMPRESSION_TOO_LARGE:
        return f"records take more than {limit} bytes uncompressed"
    return f"records are not valid data of codec {codec}"


cdef str record_fault(int fault, int64_t index, int64_t at):
    return f"record {index} at byte {at} of the records: {_RECORD_FAULTS[fault]}"


cdef tuple _RECORD_FAULTS = (
    "",
    "its length does not fit",
    "a field does not fit in its length",
    "a header does not fit in its length",
    "bytes are left over in its length",
    "its timestamp overflows",
    "its offset delta does not fit the batch",
    "it is missing",
    "bytes are left over behind the last record",
)


cdef object header_tuple(Py_ssize_t pos, const BatchFields* fields):
    return _new_tuple(BatchHeader, (
        pos,
        fields.base_offset,
        fields.batch_length,
        fields.partition_leader_epoch,
        fields.magic,
        fields.crc,
        fields.attributes,
        fields.last_offset_delta,
        fields.base_timestamp,
        fields.max_timestamp,
        fields.producer_id,
        fields.producer_epoch,
        fields.base_sequence,
        fields.records_count,
    ))


cdef int check_position(Py_ssize_t pos, Py_ssize_t size) except -1:
    if pos < 0 or pos > size:
        raise ValueError(f"position {pos} is outside the buffer of {size} bytes")
    return 0


# -- records --------------------------------------------------------------------------------------

cdef int open_records(const uint8_t* p, const BatchFields* batch, size_t limit, const uint8_t** records,
                      size_t* size, uint8_t** owned) noexcept nogil:
    cdef int codec = batch.attributes & ATTRIBUTE_CODEC
    cdef size_t stored = <size_t>(<int64_t>batch.batch_length + AT_LEADER_EPOCH - BATCH_HEADER_BYTES)
    cdef int status
    owned[0] = NULL
    if codec == CODEC_NONE:
        records[0] = p + BATCH_HEADER_BYTES
        size[0] = stored
        return COMPRESSION_OK
    if codec > CODEC_ZSTD:
        return COMPRESSION_UNKNOWN_CODEC
    status = decompress_bytes(codec, p + BATCH_HEADER_BYTES, stored, limit, owned, size)
    records[0] = owned[0]
    return status


# What can be wrong with a record that reads well.
cdef enum:
    REFUSED_ATTRIBUTES = 1
    REFUSED_OFFSET = 2
    REFUSED_KEY = 3
    REFUSED_TIMESTAMP = 4

ctypedef struct Refusal:
    int32_t index
    int32_t why
    int64_t value

ctypedef struct Walk:
    int opened               # a COMPRESSION_ status
    int fault                # a RECORD_ reason: the walk ended there
    int64_t fault_at
    int32_t count
    int64_t max_timestamp
    int32_t max_timestamp_offset_delta
    size_t size
    int32_t refused
    bint refused_timestamp
    Refusal refusals[MOST_RECORD_ERRORS]


cdef void refuse(Walk* walk, int32_t index, int32_t why, int64_t value) noexcept nogil:
    if walk.refused < MOST_RECORD_ERRORS:
        walk.refusals[walk.refused].index = index
        walk.refusals[walk.refused].why = why
        walk.refusals[walk.refused].value = value
    walk.refused += 1
    if why == REFUSED_TIMESTAMP:
        walk.refused_timestamp = True


cdef void walk_produced(const uint8_t* p, const uint8_t* end, const BatchFields* batch,
                        const Rules* rules, Walk* walk) noexcept nogil:
    # What every record needs stands in locals: a store through `walk` may, for all the compiler
    # knows, change anything.
    cdef const uint8_t* start = p
    cdef const uint8_t* after
    cdef RecordView record
    cdef int fault = RECORD_OK
    cdef int32_t index = 0
    cdef int32_t records_count = batch.records_count
    cdef int64_t base_timestamp = batch.base_timestamp
    cdef int64_t oldest = INT64_MIN if rules.any_timestamp else rules.oldest
    cdef int64_t newest = INT64_MAX if rules.any_timestamp else rules.newest
    cdef int32_t least_key_size = 0 if rules.key_required else -1
    cdef int64_t timestamp
    cdef int64_t max_timestamp = INT64_MIN
    cdef int32_t max_index = 0
    while index < records_count:
        if p == end:
            fault = RECORD_MISSING
            break
        after = read_record(p, end, &record, &fault)
        if after == NULL:
            break
        if not add_delta(base_timestamp, record.timestamp_delta, &timestamp):
            fault = RECORD_TIMESTAMP
            break
        if record.attributes != 0:
            refuse(walk, index, REFUSED_ATTRIBUTES, record.attributes)
        elif record.offset_delta != index:
            refuse(walk, index, REFUSED_OFFSET, record.offset_delta)
        elif record.key_size < least_key_size:
            refuse(walk, index, REFUSED_KEY, 0)
        elif (timestamp < oldest or timestamp > newest) and timestamp != -1:
            # -1 is no timestamp, and always welcome.
            refuse(walk, index, REFUSED_TIMESTAMP, timestamp)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
            max_index = index
        index += 1
        p = after
    if fault == RECORD_OK and p != end:
        fault = RECORD_SURPLUS
    walk.fault = fault
    walk.fault_at = p - start
    walk.count = index
    walk.max_timestamp = max_timestamp
    walk.max_timestamp_offset_delta = max_index


cdef void walk_batch(const uint8_t* p, const BatchFields* batch, const Rules* rules, size_t limit,
                     Walk* walk) noexcept nogil:
    cdef const uint8_t* records = NULL
    cdef uint8_t* owned = NULL
    walk.fault = RECORD_OK
    walk.count = 0
    walk.refused = 0
    walk.refused_timestamp = False
    walk.max_timestamp_offset_delta = 0
    walk.size = 0
    walk.opened = open_records(p, batch, limit, &records, &walk.size, &owned)
    if walk.opened == COMPRESSION_OK:
        walk_produced(records, records + walk.size, batch, rules, walk)
        free(owned)


cdef str refusal_text(const Refusal* refusal, const Rules* rules):
    if refusal.why == REFUSED_ATTRIBUTES:
        return f"attributes are {refusal.value}, must be 0"
    if refusal.why == REFUSED_OFFSET:
        return f"offset delta is {refusal.value}, must be {refusal.index}"
    if refusal.why == REFUSED_KEY:
        return "a record of a compacted topic needs a key"
    return f"timestamp {refusal.value} is not within {rules.oldest} .. {rules.newest}"


# What Kafka's leader refuses of a client whatever the records say.
cdef enum:
    HEADER_FINE = 0
    HEADER_BASE_OFFSET = 1
    HEADER_LAST_OFFSET_DELTA = 2
    HEADER_RECORDS_COUNT = 3
    HEADER_COUNT_AND_DELTA = 4
    HEADER_CONTROL = 5
    HEADER_DELETE_HORIZON = 6
    HEADER_PRODUCER_EPOCH = 7
    HEADER_BASE_SEQUENCE = 8
    HEADER_PRODUCER_ID = 9
    HEADER_TRANSACTIONAL = 10


cdef int header_fault(const BatchFields* batch) noexcept nogil:
    if batch.base_offset != 0:
        return HEADER_BASE_OFFSET
    if batch.last_offset_delta < 0:
        return HEADER_LAST_OFFSET_DELTA
    if batch.records_count < 1:
        return HEADER_RECORDS_COUNT
    if <int64_t>batch.records_count != <int64_t>batch.last_offset_delta + 1:
        return HEADER_COUNT_AND_DELTA
    if batch.attributes & ATTRIBUTE_CONTROL:
        return HEADER_CONTROL
    if batch.attributes & ATTRIBUTE_DELETE_HORIZON:
        return HEADER_DELETE_HORIZON
    # Without a producer id the other producer fields are not looked at: Sarama and KafkaJS leave
    # zeros there.
    if batch.producer_id >= 0:
        if batch.producer_epoch < 0:
            return HEADER_PRODUCER_EPOCH
        if batch.base_sequence < 0:
            return HEADER_BASE_SEQUENCE
    elif batch.producer_id != -1:
        return HEADER_PRODUCER_ID
    elif batch.attributes & ATTRIBUTE_TRANSACTIONAL:
        return HEADER_TRANSACTIONAL
    return HEADER_FINE


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


cdef inline int64_t saturating_sub(int64_t a, int64_t b) noexcept nogil:
    if b > 0 and a < INT64_MIN + b:
        return INT64_MIN
    if b < 0 and a > INT64_MAX + b:
        return INT64_MAX
    return a - b


cdef inline int64_t saturating_add(int64_t a, int64_t b) noexcept nogil:
    if b > 0 and a > INT64_MAX - b:
        return INT64_MAX
    if b < 0 and a < INT64_MIN - b:
        return INT64_MIN
    return a + b


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


cdef Rules rules_at(int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms) noexcept nogil:
    cdef Rules rules
    rules.oldest = saturating_sub(now_ms, before_max_ms)
    rules.newest = saturating_add(now_ms, after_max_ms)
    rules.any_timestamp = False
    rules.key_required = False
    return rules


cdef bint is_acceptable(
        const uint8_t* p, int64_t size, const Rules* rules, size_t limit, int64_t* max_timestamp) noexcept nogil:
    cdef BatchFields batch
    cdef Walk walk
    if (read_header(p, p + size, &batch) != BATCH_OK or size_of(p) != size
            or checksum(p) != batch.crc or header_fault(&batch) != HEADER_FINE
            or batch.attributes & ATTRIBUTE_CODEC > CODEC_ZSTD
            or batch.attributes & ATTRIBUTE_LOG_APPEND_TIME):
        return False
    walk_batch(p, &batch, rules, limit, &walk)
    if walk.opened != COMPRESSION_OK or walk.fault != RECORD_OK or walk.refused:
        return False
    max_timestamp[0] = max(walk.max_timestamp, <int64_t>-1)
    return True


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


# -- the Python view ------------------------------------------------------------------------------
# Four functions bear one name in C and in Python; a module may define it but once, so the Python
# ones are published at the end.

cdef object look(data, Py_ssize_t pos, bint whole):
    cdef Py_buffer view
    cdef BatchFields fields
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        check_position(pos, view.len)
        p = <const uint8_t*>view.buf + pos
        end = <const uint8_t*>view.buf + view.len
        if whole:
            status = check_batch_unlocked(p, end, &fields)
        else:
            status = read_header(p, end, &fields)
        if status != BATCH_OK:
            raise CorruptRecord(batch_fault(status, p, end, pos))
    finally:
        PyBuffer_Release(&view)
    return header_tuple(pos, &fields)


def python_read_header(data, Py_ssize_t pos=0):
    """Header of the batch at `pos`; neither the CRC nor the rest of the batch is looked at."""
    return look(data, pos, False)


def python_check_batch(data, Py_ssize_t pos=0):
    """Header, bounds and CRC of the batch at `pos`."""
    return look(data, pos, True)


def scan(data):
    """Every batch of a record set, each with its CRC checked; a cut tail is CorruptRecord."""
    cdef Py_buffer view
    cdef BatchFields fields
    cdef const uint8_t* start
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int status
    cdef list found = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*>view.buf
        p = start
        end = start + view.len
        while p < end:
            status = check_batch_unlocked(p, end, &fields)
            if status != BATCH_OK:
                raise CorruptRecord(batch_fault(status, p, end, p - start))
            found.append(header_tuple(p - start, &fields))
            p += size_of(p)
    finally:
        PyBuffer_Release(&view)
    return found


def whole(data, int64_t offset):
    """Where the last batch that is there whole ends, and the offset after it or after `offset`."""
    cdef Py_buffer view
    cdef BatchFields fields
    cdef const uint8_t* start
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*>view.buf
        p = start
        end = start + view.len
        while end - p >= BATCH_HEADER_BYTES:
            status = read_header(p, end, &fields)
            if status == BATCH_OK and not offsets_make_sense(&fields):
                status = BATCH_BAD_STRUCTURE
            if status != BATCH_OK:
                raise CorruptRecord(batch_fault(status, p, end, p - start))
            if end - p < size_of(p):
                break
            offset = max(offset, fields.base_offset + fields.last_offset_delta + 1)
            p += size_of(p)
        return p - start, offset
    finally:
        PyBuffer_Release(&view)


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


cdef uint8_t* writable_batch(Py_buffer* view, Py_ssize_t pos) except NULL:
    # The whole batch has to be there: its CRC is computed over what batch_length says.
    cdef BatchFields fields
    cdef uint8_t* p
    cdef uint8_t* end
    cdef int status
    check_position(pos, view.len)
    p = <uint8_t*>view.buf + pos
    end = <uint8_t*>view.buf + view.len
    status = read_header(p, end, &fields)
    if status == BATCH_OK and end - p < size_of(p):
        status = BATCH_CUT
    if status != BATCH_OK:
        raise CorruptRecord(batch_fault(status, p, end, pos))
    return p


def python_restamp_offsets(buffer, int64_t base_offset, int32_t leader_epoch, Py_ssize_t pos=0):
    """Write base_offset and partition_leader_epoch, which the CRC does not cover."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        restamp_offsets(writable_batch(&view, pos), base_offset, leader_epoch)
    finally:
        PyBuffer_Release(&view)


def python_restamp_append_time(buffer, int64_t timestamp_ms, Py_ssize_t pos=0):
    """Set the LogAppendTime bit and max_timestamp, and the CRC they change."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        restamp_append_time(writable_batch(&view, pos), timestamp_ms)
    finally:
        PyBuffer_Release(&view)


def python_restamp_max_timestamp(buffer, int64_t timestamp_ms, Py_ssize_t pos=0):
    """Set max_timestamp, and the CRC it changes."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        restamp_max_timestamp(writable_batch(&view, pos), timestamp_ms)
    finally:
        PyBuffer_Release(&view)


def publish(**functions):
    """Give each function its public name."""
    for name, function in functions.items():
        function.__name__ = function.__qualname__ = name
        globals()[name] = function


publish(
    read_header=python_read_header,
    check_batch=python_check_batch,
    restamp_offsets=python_restamp_offsets,
    restamp_append_time=python_restamp_append_time,
    restamp_max_timestamp=python_restamp_max_timestamp,
)
