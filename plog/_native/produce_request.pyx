"""The form of Produce requests: every version with record batches, with tagged fields of any kind.

Owns what a malformed request is. Says nothing of topics, partitions and batches but what the frame
says of them.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.part_list cimport part_add
from plog._native.produce_call cimport PRODUCE_FLEXIBLE_SINCE, ProducePart, ProduceTopic
from plog._native.request cimport (
    MOST_ELEMENTS, is_utf8, read_bytes, read_client_id, read_length, read_string, skip_tags)
from plog._native.request_stages cimport progress_add
from plog._native.response_fields cimport NO_EPOCH, NO_NODE, NO_TEXT, NO_TIMESTAMP
from plog._native.wire cimport read_int16, read_int32

cdef const char* TOO_MANY = "it has too many partitions, or there is no memory for them"


cdef const uint8_t* fault(ProduceCall* call, const char* text) noexcept nogil:
    if call.fault == NULL:
        call.fault = text
    return NULL


cdef const uint8_t* read_part(
        ProduceCall* call, const uint8_t* p, const uint8_t* end, int64_t* left) noexcept nogil:
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    cdef const uint8_t* records = NULL
    cdef int32_t index = 0
    cdef int32_t size = 0
    cdef ProducePart* part
    p = read_int32(p, end, &index)
    if p != NULL:
        p = read_bytes(p, end, flexible, &records, &size)
    if p == NULL:
        return fault(call, b"a partition is cut short")
    if flexible:
        p = skip_tags(p, end, left)
        if p == NULL:
            return fault(call, b"the tagged fields of a partition are malformed")
    part = <ProducePart*>part_add(&call.parts, sizeof(ProducePart))
    if part == NULL:
        return fault(call, TOO_MANY)
    progress_add(call.progress, &part.stage, call.parts.count == 1)
    part.topic = <int32_t>(call.topics.count - 1)
    part.index = index
    part.records = <uint8_t*>records
    part.size = size
    part.append_time = NO_TIMESTAMP
    part.message_size = NO_TEXT
    part.leader_id = NO_NODE
    part.leader_epoch = NO_EPOCH
    return p


cdef const uint8_t* read_topic(
        ProduceCall* call, const uint8_t* p, const uint8_t* end, int64_t* left) noexcept nogil:
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    cdef ProduceTopic* topic = <ProduceTopic*>part_add(&call.topics, sizeof(ProduceTopic))
    cdef int32_t partitions = 0
    cdef int32_t number
    if topic == NULL:
        return fault(call, TOO_MANY)
    p = read_string(p, end, flexible, &topic.name, &topic.name_size)
    if p == NULL or topic.name_size < 0 or not is_utf8(topic.name, topic.name_size):
        return fault(call, b"the name of a topic is cut short, or is no text")
    p = read_length(p, end, flexible, False, &partitions)
    if p == NULL or partitions < 0:
        return fault(call, b"a topic is cut short")
    left[0] -= partitions
    if left[0] < 0:
        return fault(call, TOO_MANY)
    topic.partitions = partitions
    for number in range(partitions):
        p = read_part(call, p, end, left)
        if p == NULL:
            return NULL
    if flexible:
        p = skip_tags(p, end, left)
        if p == NULL:
            return fault(call, b"the tagged fields of a topic are malformed")
    return p


cdef const uint8_t* read_head_of_body(ProduceCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """What stands before the topics."""
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    cdef const uint8_t* text = NULL
    cdef int32_t size = 0
    p = read_client_id(p, end, flexible, &call.client_id, &call.client_id_size)
    if p == NULL:
        return fault(call, b"it is cut short, its client id is no text, or its tagged fields are malformed")
    call.has_head = True
    p = read_string(p, end, flexible, &text, &size)
    if p == NULL or not is_utf8(text, size):
        return fault(call, b"the transactional id is cut short, or is no text")
    call.writer.connection = call.head.connection
    call.writer.transactional_id = text
    call.writer.transactional_id_size = size
    p = read_int16(p, end, &call.acks)
    if p != NULL:
        p = read_int32(p, end, &call.timeout_ms)
    return p if p != NULL else fault(call, b"it ends before its topics")


cdef bint produce_read_request(ProduceCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    cdef int64_t left = MOST_ELEMENTS
    cdef int32_t topics = 0
    cdef int32_t number
    call.size = end - p
    call.fault = NULL
    call.has_head = False
    p = read_head_of_body(call, p, end)
    if p == NULL:
        return False
    p = read_length(p, end, flexible, False, &topics)
    if p == NULL or topics < 0:
        fault(call, b"it has no topics")
        return False
    left -= topics
    if left < 0:
        fault(call, TOO_MANY)
        return False
    for number in range(topics):
        p = read_topic(call, p, end, &left)
        if p == NULL:
            return False
    if flexible and skip_tags(p, end, &left) == NULL:
        fault(call, b"its tagged fields are malformed")
        return False
    return True
