"""The form of Produce responses: offsets, refusals with what Python says of them, and where leaders are.

Owns the bytes. What the response says has been decided before.
"""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from plog._native.connection cimport answer_room
from plog._native.produce_call cimport (
    PRODUCE_FLEXIBLE_SINCE, ProducePart, ProduceTopic, RecordError, produce_part, produce_topic)
from plog._native.request cimport length_size, put_length, put_string, string_size
from plog._native.response_fields cimport LEADER_BYTES, NO_EPOCH, NO_NODE, endpoints_size, put_endpoints, put_leader
from plog._native.wire cimport put_int8, put_int16, put_int32, put_int64

cdef enum:
    LOG_START_SINCE = 5
    RECORD_ERRORS_SINCE = 8
    LEADERS_SINCE = 10
    LEADER_TAG = 0


# --- sizes ----------------------------------------------------------------------------------------

cdef inline bint names_leader(const ProduceCall* call, const ProducePart* part) noexcept nogil:
    return call.head.version >= LEADERS_SINCE and (part.leader_id != NO_NODE or part.leader_epoch != NO_EPOCH)


cdef int64_t errors_size(const ProducePart* part, bint flexible) noexcept nogil:
    cdef int64_t size = length_size(part.record_error_count, flexible)
    cdef int32_t number
    for number in range(part.record_error_count):
        size += 4 + string_size(part.record_errors[number].message_size, flexible) + flexible
    return size


cdef int64_t part_size(const ProduceCall* call, const ProducePart* part) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= PRODUCE_FLEXIBLE_SINCE
    cdef int64_t size = 4 + 2 + 8 + 8 + flexible  # index, error, offset, time, tagged fields
    if version >= LOG_START_SINCE:
        size += 8
    if version >= RECORD_ERRORS_SINCE:
        size += errors_size(part, flexible) + string_size(part.message_size, flexible)
    if names_leader(call, part):
        size += 1 + 1 + LEADER_BYTES  # tag, its size
    return size


cdef inline bint has_endpoints(const ProduceCall* call) noexcept nogil:
    return call.head.version >= LEADERS_SINCE and call.texts.endpoint_count > 0


cdef int64_t answer_size(const ProduceCall* call) noexcept nogil:
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    # Length, correlation id, tagged fields of the header, throttle time, tagged fields.
    cdef int64_t size = 4 + 4 + flexible + 4 + flexible
    cdef const ProduceTopic* topic
    cdef int64_t number
    size += length_size(<int32_t>call.topics.count, flexible)
    for number in range(call.topics.count):
        topic = produce_topic(call, number)
        size += string_size(topic.name_size, flexible) + length_size(topic.partitions, flexible) + flexible
    for number in range(call.parts.count):
        size += part_size(call, produce_part(call, number))
    if has_endpoints(call):
        size += endpoints_size(&call.texts)
    return size


# --- bytes ----------------------------------------------------------------------------------------

cdef uint8_t* encode_errors(const ProducePart* part, uint8_t* p, bint flexible) noexcept nogil:
    cdef const RecordError* error
    cdef int32_t number
    p = put_length(p, part.record_error_count, flexible)
    for number in range(part.record_error_count):
        error = &part.record_errors[number]
        p = put_int32(p, error.index)
        p = put_string(p, error.message, error.message_size, flexible)
        if flexible:
            p = put_int8(p, 0)
    return p


cdef uint8_t* encode_part(const ProduceCall* call, const ProducePart* part, uint8_t* p) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= PRODUCE_FLEXIBLE_SINCE
    p = put_int32(p, part.index)
    p = put_int16(p, part.error)
    p = put_int64(p, part.result.base_offset)
    p = put_int64(p, part.append_time)
    if version >= LOG_START_SINCE:
        p = put_int64(p, part.result.log_start_offset)
    if version >= RECORD_ERRORS_SINCE:
        p = encode_errors(part, p, flexible)
        p = put_string(p, part.message, part.message_size, flexible)
    if not flexible:
        return p
    p = put_int8(p, names_leader(call, part))
    return put_leader(p, LEADER_TAG, part.leader_id, part.leader_epoch) if names_leader(call, part) else p


cdef void encode(const ProduceCall* call, int64_t size, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    cdef const ProduceTopic* topic
    cdef int64_t number
    cdef int64_t part = 0
    cdef int32_t among
    p = put_int32(p, <int32_t>(size - 4))
    p = put_int32(p, call.head.correlation_id)
    if flexible:
        p = put_int8(p, 0)
    p = put_length(p, <int32_t>call.topics.count, flexible)
    for number in range(call.topics.count):
        topic = produce_topic(call, number)
        p = put_string(p, topic.name, topic.name_size, flexible)
        p = put_length(p, topic.partitions, flexible)
        for among in range(topic.partitions):
            p = encode_part(call, produce_part(call, part), p)
            part += 1
        if flexible:
            p = put_int8(p, 0)
    p = put_int32(p, 0)  # throttle time
    if not flexible:
        return
    p = put_int8(p, has_endpoints(call))
    if has_endpoints(call):
        put_endpoints(p, &call.texts)


cdef bint produce_answer(const ProduceCall* call, Connection* c) noexcept nogil:
    cdef int64_t size = answer_size(call)
    # No length prefix states more.
    cdef uint8_t* room = answer_room(c, size) if size <= INT32_MAX else NULL
    if room != NULL:
        encode(call, size, room)
    return room != NULL


cdef bytes produce_answer_bytes(const ProduceCall* call):
    cdef int64_t size = answer_size(call)
    # Of its exact size, so that a sanitizer sees a byte too many.
    cdef uint8_t* room = <uint8_t*>malloc(size)
    if room == NULL:
        raise MemoryError
    encode(call, size, room)
    found = room[:size]
    free(room)
    return found
