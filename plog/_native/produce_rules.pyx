"""What a leader demands of a batch that a client has produced, its header and each of its records.

Owns the rules and the one walk through the records, in C: the fast path asks whether a
batch is acceptable, `validation` puts the same findings into words. Never changes a
byte of the batch, never appends, and makes no Python object.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from plog._native.batch_fields cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_OK,
    BatchFields,
    checksum,
    read_header,
    size_of,
)
from plog._native.codec_status cimport COMPRESSION_OK, COMPRESSION_TOO_LARGE
from plog._native.compression cimport CODEC_ZSTD
from plog._native.locks cimport (
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock)
from plog._native.record_view cimport (
    RECORD_MISSING,
    RECORD_OK,
    RECORD_SURPLUS,
    RECORD_TIMESTAMP,
    RecordView,
    add_delta,
    open_records,
    read_record,
)

# Held by who expands further, so that bombs take the memory of one, however many threads there are.
cdef pthread_mutex_t one_at_a_time
pthread_mutex_init(&one_at_a_time, NULL)


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


cdef Rules rules_at(int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms) noexcept nogil:
    cdef Rules rules
    rules.oldest = saturating_sub(now_ms, before_max_ms)
    rules.newest = saturating_add(now_ms, after_max_ms)
    rules.any_timestamp = False
    rules.key_required = False
    return rules


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


cdef void refuse(Walk* walk, int32_t index, int32_t why, int64_t value) noexcept nogil:
    if walk.refused < MOST_RECORD_ERRORS:
        walk.refusals[walk.refused].index = index
        walk.refusals[walk.refused].why = why
        walk.refusals[walk.refused].value = value
    walk.refused += 1
    if why == REFUSED_TIMESTAMP:
        walk.refused_timestamp = True


cdef bint open_batch(
        const uint8_t* p, const BatchFields* batch, size_t limit, const uint8_t** start, uint8_t** owned,
        Walk* walk) noexcept nogil:
    """Expand its records, if it must be; `walk` says how that went. True: alone, and the lock is held."""
    cdef bint is_alone = False
    walk.opened = open_records(p, batch, min(limit, <size_t>EXPANDED_TOGETHER_BYTES), start, &walk.size, owned)
    if walk.opened == COMPRESSION_TOO_LARGE and limit > <size_t>EXPANDED_TOGETHER_BYTES:
        is_alone = True
        pthread_mutex_lock(&one_at_a_time)
        walk.opened = open_records(p, batch, limit, start, &walk.size, owned)
    if walk.opened != COMPRESSION_OK and is_alone:
        is_alone = False
        pthread_mutex_unlock(&one_at_a_time)
    return is_alone


cdef void walk_batch(const uint8_t* p, const BatchFields* batch, const Rules* rules, size_t limit,
                     Walk* walk) noexcept nogil:
    # What every record needs stands in locals: a store through `walk` may, for all the compiler
    # knows, change anything. With the loop in a function of its own, small records took 5 % longer.
    cdef uint8_t* owned = NULL
    cdef const uint8_t* start = NULL
    cdef const uint8_t* end
    cdef const uint8_t* after
    cdef RecordView record
    cdef int fault = RECORD_OK
    cdef int32_t index = 0, max_index = 0
    cdef int32_t records_count = batch.records_count
    cdef int64_t base_timestamp = batch.base_timestamp
    cdef int64_t oldest = INT64_MIN if rules.any_timestamp else rules.oldest
    cdef int64_t newest = INT64_MAX if rules.any_timestamp else rules.newest
    cdef int32_t least_key_size = 0 if rules.key_required else -1
    cdef int64_t timestamp
    cdef int64_t max_timestamp = INT64_MIN
    cdef bint is_alone
    walk.size = 0
    walk.refused = walk.refused_timestamp = 0
    is_alone = open_batch(p, batch, limit, &start, &owned, walk)
    if walk.opened != COMPRESSION_OK:
        return
    p = start
    end = start + walk.size
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
    free(owned)
    if is_alone:
        pthread_mutex_unlock(&one_at_a_time)


cdef bint is_acceptable(
        const uint8_t* p, int64_t size, const Rules* rules, size_t limit, Accepted* out) noexcept nogil:
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
    out.max_timestamp = max(walk.max_timestamp, <int64_t>-1)
    out.size = walk.size
    return True
