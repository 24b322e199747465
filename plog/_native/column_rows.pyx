"""Records as rows: the walk through a batch's records that puts each into the columns wanted.

Owns which field of a record is which column, and when rows are full: a limit is
reached, or Arrow's 32-bit offsets end. Knows nothing of batches that are skipped,
and never reads past the records it is given.
"""

from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t

from plog._native.arrow_buffers cimport (
    drop,
    drop_binary,
    hand_over,
    hand_over_binary,
    hand_over_bits,
    push32,
    push64,
    push_bytes,
    push_bytes_reserving,
    push_text,
    reserve,
    set_null,
    start_offsets,
)
from plog._native.batch_fields cimport ATTRIBUTE_LOG_APPEND_TIME, BatchFields, last_offset
from plog._native.record_view cimport (
    LEAST_RECORD_BYTES,
    RECORD_MISSING,
    RECORD_OFFSET,
    RECORD_OK,
    RECORD_SURPLUS,
    RECORD_TIMESTAMP,
    HeaderView,
    RecordView,
    add_delta,
    read_header_view,
    read_record,
)


cdef int rows_start(Rows* rows, int64_t one_value_bytes) except -1:
    rows.fixed_bytes = (
        one_value_bytes
        + 4 * (rows.with_key + rows.with_value + rows.with_timestamp_type + rows.with_headers)
        + 8 * (rows.with_offset + rows.with_timestamp)
    )
    start_offsets(&rows.key.offsets)
    start_offsets(&rows.value.offsets)
    start_offsets(&rows.header_key.offsets)
    start_offsets(&rows.header_value.offsets)
    start_offsets(&rows.headers)
    return 0


cdef void rows_drop(Rows* rows) noexcept nogil:
    drop_binary(&rows.key)
    drop_binary(&rows.value)
    drop_binary(&rows.header_key)
    drop_binary(&rows.header_value)
    drop(&rows.offset)
    drop(&rows.timestamp)
    drop(&rows.timestamp_type)
    drop(&rows.headers)
    drop(&rows.headers_validity)
    rows.count = 0
    rows.bytes_used = 0
    rows.headers_used = 0


cdef inline int64_t microseconds(int64_t timestamp_ms) noexcept nogil:
    # A time that Arrow cannot tell becomes the nearest one that it can.
    if timestamp_ms > INT64_MAX // 1000:
        return INT64_MAX
    if timestamp_ms < -(INT64_MAX // 1000):
        return INT64_MIN
    return timestamp_ms * 1000


cdef int push_headers(Rows* rows, const RecordView* record, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* p = record.headers
    cdef HeaderView header
    cdef int64_t before = rows.header_key.data.size + rows.header_value.data.size
    cdef int32_t i
    if record.headers_count == 0:
        # Spark's own Kafka source gives null here, and no empty array.
        if set_null(&rows.headers_validity, rows.count) < 0:
            return -1
    for i in range(record.headers_count):
        p = read_header_view(p, end, &header)
        if p == NULL:
            return -2
        if push_text(&rows.header_key, rows.headers_used, header.key, header.key_size) < 0:
            return -1
        if push_bytes_reserving(&rows.header_value, rows.headers_used, header.value, header.value_size) < 0:
            return -1
        rows.headers_used += 1
    push32(&rows.headers, <int32_t>rows.headers_used)
    rows.bytes_used += (
        rows.header_key.data.size + rows.header_value.data.size - before + 8 * <int64_t>record.headers_count)
    return 0


cdef bint has_room(const Rows* rows, const RecordView* record, const uint8_t* end) noexcept nogil:
    # Arrow's 32-bit offsets; a header key may grow threefold when it is not UTF-8.
    cdef int64_t headers
    if record.key_size > INT32_MAX - rows.key.data.size:
        return False
    if record.value_size > INT32_MAX - rows.value.data.size:
        return False
    if rows.with_headers and record.headers_count:
        headers = end - record.headers
        if 3 * headers > INT32_MAX - rows.header_key.data.size:
            return False
        if headers > INT32_MAX - rows.header_value.data.size:
            return False
        if record.headers_count > INT32_MAX - rows.headers_used:
            return False
    return True


cdef int reserve_rows(Rows* rows, int64_t count, int64_t size) noexcept nogil:
    # `size` bytes of records hold no more than that of values. Keys are small, or there are none.
    if rows.with_key and reserve(&rows.key.offsets, 4 * count) < 0:
        return -1
    if rows.with_value:
        if reserve(&rows.value.offsets, 4 * count) < 0 or reserve(&rows.value.data, size) < 0:
            return -1
    if rows.with_offset and reserve(&rows.offset, 8 * count) < 0:
        return -1
    if rows.with_timestamp and reserve(&rows.timestamp, 8 * count) < 0:
        return -1
    if rows.with_timestamp_type and reserve(&rows.timestamp_type, 4 * count) < 0:
        return -1
    if rows.with_headers and reserve(&rows.headers, 4 * count) < 0:
        return -1
    return 0


cdef inline int push_contents(Rows* rows, RecordView* record, const uint8_t* after) noexcept nogil:
    """Key, value and headers. -1: no memory; another negative number: the headers are malformed."""
    if rows.with_key:
        if (record.key_size > rows.key.data.capacity - rows.key.data.size
                and reserve(&rows.key.data, record.key_size) < 0):
            return -1
        if push_bytes(&rows.key, rows.count, record.key, record.key_size) < 0:
            return -1
        rows.bytes_used += max(record.key_size, 0)
    if rows.with_value:
        if push_bytes(&rows.value, rows.count, record.value, record.value_size) < 0:
            return -1
        rows.bytes_used += max(record.value_size, 0)
    return push_headers(rows, record, after) if rows.with_headers else 0


cdef int rows_fill(Rows* rows, const uint8_t* start, const uint8_t* end, const BatchFields* batch,
                   Fill* fill) noexcept nogil:
    cdef const uint8_t* p = start + fill.at
    cdef const uint8_t* after
    cdef RecordView record
    cdef bint append_time = (batch.attributes & ATTRIBUTE_LOG_APPEND_TIME) != 0
    cdef int64_t timestamp
    cdef int64_t offset
    cdef int pushed
    cdef int64_t count = min(<int64_t>(batch.records_count - fill.index), (end - p) // LEAST_RECORD_BYTES + 1)
    record.headers = NULL    # the reader leaves it so where there are none
    if reserve_rows(rows, min(count, fill.max_rows - rows.count), end - p) < 0:
        return FILL_NO_MEMORY
    while fill.index < batch.records_count:
        fill.at = p - start
        if p == end:
            fill.fault = RECORD_MISSING
            return FILL_FAULT
        after = read_record(p, end, &record, &fill.fault)
        if after == NULL:
            return FILL_FAULT
        if not add_delta(batch.base_timestamp, record.timestamp_delta, &timestamp):
            fill.fault = RECORD_TIMESTAMP
            return FILL_FAULT
        if record.offset_delta <= fill.last_delta or record.offset_delta > batch.last_offset_delta:
            fill.fault = RECORD_OFFSET
            return FILL_FAULT
        offset = batch.base_offset + record.offset_delta
        if offset >= fill.end_offset:
            fill.next_offset = fill.end_offset
            return FILL_DONE
        if offset >= fill.start_offset:
            if rows.count >= fill.max_rows or rows.bytes_used >= fill.max_bytes or not has_room(rows, &record, after):
                fill.next_offset = offset
                return FILL_FULL
            if rows.with_offset:
                push64(&rows.offset, offset)
            if rows.with_timestamp:
                push64(&rows.timestamp, microseconds(batch.max_timestamp if append_time else timestamp))
            if rows.with_timestamp_type:
                push32(&rows.timestamp_type, append_time)
            pushed = push_contents(rows, &record, after)
            if pushed < 0:
                fill.fault = RECORD_OK
                return FILL_NO_MEMORY if pushed == -1 else FILL_FAULT
            rows.bytes_used += rows.fixed_bytes
            rows.count += 1
        fill.last_delta = record.offset_delta
        fill.index += 1
        p = after
    if p != end:
        fill.fault = RECORD_SURPLUS
        fill.at = p - start
        return FILL_FAULT
    fill.next_offset = min(last_offset(batch) + 1, fill.end_offset)
    return FILL_DONE


cdef int rows_take(Rows* rows, dict taken) except -1:
    if rows.with_key:
        taken["key"] = hand_over_binary(&rows.key, rows.count)
    if rows.with_value:
        taken["value"] = hand_over_binary(&rows.value, rows.count)
    if rows.with_offset:
        taken["offset"] = [None, hand_over(&rows.offset)]
    if rows.with_timestamp:
        taken["timestamp"] = [None, hand_over(&rows.timestamp)]
    if rows.with_timestamp_type:
        taken["timestampType"] = [None, hand_over(&rows.timestamp_type)]
    if rows.with_headers:
        taken["headers"] = [hand_over_bits(&rows.headers_validity, rows.count), hand_over(&rows.headers)]
        start_offsets(&rows.headers)
        taken["headers.key"] = hand_over_binary(&rows.header_key, rows.headers_used)
        taken["headers.value"] = hand_over_binary(&rows.header_value, rows.headers_used)
    rows.count = 0
    rows.bytes_used = 0
    rows.headers_used = 0
    return 0
