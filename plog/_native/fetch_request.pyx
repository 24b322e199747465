"""The form of Fetch requests: every version with record batches, with tagged fields of any kind.

Owns what a malformed request is. Says nothing of topics and partitions but what the frame says of
them.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from plog._native.fetch_call cimport (
    CONSUMER, FETCH_FLEXIBLE_SINCE, FETCH_IDS_SINCE, FETCH_LOG_START_SINCE, FETCH_RACK_SINCE, FETCH_SESSIONS_SINCE)
from plog._native.fetch_sessions cimport FINAL_EPOCH, NO_SESSION_ID
from plog._native.followers cimport UNKNOWN_BROKER_EPOCH
from plog._native.part_list cimport PartList, part_add
from plog._native.partition_names cimport PartitionName, Wanted
from plog._native.request cimport (
    MOST_ELEMENTS, is_utf8, read_client_id, read_length, read_string, read_tag, read_tag_count, skip_tags)
from plog._native.response_fields cimport NO_EPOCH, NO_OFFSET
from plog._native.served cimport TOPIC_ID_BYTES
from plog._native.wire cimport read_int8, read_int32, read_int64

cdef enum:
    READ_COMMITTED = 1
    LEADER_EPOCH_SINCE = 9
    LAST_EPOCH_SINCE = 12
    REPLICA_STATE_SINCE = 15
    DIRECTORY_SINCE = 17
    HIGH_WATERMARK_SINCE = 18
    CLUSTER_TAG = 0
    REPLICA_STATE_TAG = 1
    DIRECTORY_TAG = 0
    HIGH_WATERMARK_TAG = 1

cdef const uint8_t* NO_TOPIC_ID = b"\0" * 16  # where partitions go by name; any empty name, too
cdef const char* TOO_MANY = "it has too many partitions, or there is no memory for them"


cdef const uint8_t* fault(FetchCall* call, const char* text) noexcept nogil:
    if call.fault == NULL:
        call.fault = text
    return NULL


# --- tagged fields --------------------------------------------------------------------------------

# A known field of a section: its contents, which end where the field does. NULL: malformed.
ctypedef const uint8_t* (*FieldReader)(
    FetchCall* call, uint32_t tag, const uint8_t* p, const uint8_t* end, int64_t* left) noexcept nogil


cdef const uint8_t* read_tags(
        FetchCall* call, const uint8_t* p, const uint8_t* end, int64_t* left, FieldReader read) noexcept nogil:
    """Those that `read` does not know are skipped: it returns the end for them."""
    cdef uint32_t count = 0
    cdef uint32_t size = 0
    cdef int64_t tag = -1
    cdef uint32_t number
    p = read_tag_count(p, end, left, &count)
    if p == NULL:
        return NULL
    for number in range(count):
        p = read_tag(p, end, &tag, &size)
        if p == NULL or read(call, <uint32_t>tag, p, p + size, left) != p + size:
            return NULL
        p += size
    return p


cdef const uint8_t* partition_field(
        FetchCall* call, uint32_t tag, const uint8_t* p, const uint8_t* end, int64_t* left) noexcept nogil:
    cdef int16_t version = call.head.version
    if tag == DIRECTORY_TAG and version >= DIRECTORY_SINCE:
        return p + TOPIC_ID_BYTES if end - p >= TOPIC_ID_BYTES else NULL
    if tag == HIGH_WATERMARK_TAG and version >= HIGH_WATERMARK_SINCE:
        return p + 8 if end - p >= 8 else NULL
    return end


cdef const uint8_t* request_field(
        FetchCall* call, uint32_t tag, const uint8_t* p, const uint8_t* end, int64_t* left) noexcept nogil:
    cdef const uint8_t* text = NULL
    cdef int32_t size = 0
    if tag == CLUSTER_TAG:
        p = read_string(p, end, True, &text, &size)
        return p if p != NULL and is_utf8(text, size) else NULL
    if tag != REPLICA_STATE_TAG or call.head.version < REPLICA_STATE_SINCE:
        return end
    p = read_int32(p, end, &call.replica_id)
    if p != NULL:
        p = read_int64(p, end, &call.replica_epoch)
    return skip_tags(p, end, left) if p != NULL else NULL


# --- topics and partitions ------------------------------------------------------------------------

cdef const uint8_t* read_wanted(
        FetchCall* call, Wanted* wanted, const uint8_t* p, const uint8_t* end, int64_t* left) noexcept nogil:
    """What stands behind the index of a partition that is asked for."""
    cdef int16_t version = call.head.version
    wanted.leader_epoch = wanted.last_epoch = NO_EPOCH
    wanted.log_start_offset = NO_OFFSET
    if version >= LEADER_EPOCH_SINCE:
        p = read_int32(p, end, &wanted.leader_epoch)
    if p != NULL:
        p = read_int64(p, end, &wanted.offset)
    if p != NULL and version >= LAST_EPOCH_SINCE:
        p = read_int32(p, end, &wanted.last_epoch)
    if p != NULL and version >= FETCH_LOG_START_SINCE:
        p = read_int64(p, end, &wanted.log_start_offset)
    if p != NULL:
        p = read_int32(p, end, &wanted.max_bytes)
    if p == NULL:
        return fault(call, b"a partition is cut short")
    wanted.leader_epoch = max(wanted.leader_epoch, <int32_t>NO_EPOCH)
    wanted.last_epoch = max(wanted.last_epoch, <int32_t>NO_EPOCH)
    if version < FETCH_FLEXIBLE_SINCE:
        return p
    p = read_tags(call, p, end, left, partition_field)
    return p if p != NULL else fault(call, b"the tagged fields of a partition are malformed")


cdef const uint8_t* read_topic_name(
        FetchCall* call, PartitionName* name, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int16_t version = call.head.version
    name.topic = name.topic_id = NO_TOPIC_ID
    name.topic_size = 0
    name.index = 0
    if version >= FETCH_IDS_SINCE:
        if end - p < TOPIC_ID_BYTES:
            return fault(call, b"a topic is cut short")
        name.topic_id = p
        return p + TOPIC_ID_BYTES
    p = read_string(p, end, version >= FETCH_FLEXIBLE_SINCE, &name.topic, &name.topic_size)
    # Without a cursor the size is no more than what the frame claims.
    if p == NULL or name.topic_size < 0 or not is_utf8(name.topic, name.topic_size):
        return fault(call, b"the name of a topic is cut short, or is no text")
    return p


cdef const uint8_t* read_count(
        FetchCall* call, const uint8_t* p, const uint8_t* end, int64_t* left, int32_t* count) noexcept nogil:
    p = read_length(p, end, call.head.version >= FETCH_FLEXIBLE_SINCE, False, count)
    if p == NULL or count[0] < 0:
        return fault(call, b"a list is cut short, or is null")
    left[0] -= count[0]
    return p if left[0] >= 0 else fault(call, TOO_MANY)


cdef const uint8_t* read_topics(
        FetchCall* call, PartList* parts, bint wanted, const uint8_t* p, const uint8_t* end,
        int64_t* left) noexcept nogil:
    """A list of topics with their partitions, which are asked for (`wanted`), or forgotten and only named."""
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef size_t item_size = sizeof(Wanted) if wanted else sizeof(PartitionName)
    cdef PartitionName topic
    cdef PartitionName* name
    cdef int32_t topics = 0
    cdef int32_t partitions = 0
    cdef int32_t i
    cdef int32_t k
    p = read_count(call, p, end, left, &topics)
    if p == NULL:
        return NULL
    for i in range(topics):
        p = read_topic_name(call, &topic, p, end)
        if p != NULL:
            p = read_count(call, p, end, left, &partitions)
        if p == NULL:
            return NULL
        for k in range(partitions):
            name = <PartitionName*>part_add(parts, item_size)
            if name == NULL:
                return fault(call, TOO_MANY)
            name[0] = topic
            p = read_int32(p, end, &name.index)
            if p == NULL:
                return fault(call, b"a partition is cut short")
            if wanted:
                p = read_wanted(call, <Wanted*>name, p, end, left)
                if p == NULL:
                    return NULL
        if flexible:
            p = skip_tags(p, end, left)
            if p == NULL:
                return fault(call, b"the tagged fields of a topic are malformed")
    return p


# --- the request ----------------------------------------------------------------------------------

cdef const uint8_t* read_numbers(
        FetchCall* call, int64_t largest_bytes, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """What stands before the topics."""
    cdef int16_t version = call.head.version
    cdef int32_t min_bytes = 0
    cdef int32_t max_bytes = 0
    cdef int8_t isolation_level = 0
    if version < REPLICA_STATE_SINCE:
        p = read_int32(p, end, &call.replica_id)
    if p != NULL:
        p = read_int32(p, end, &call.max_wait_ms)
    if p != NULL:
        p = read_int32(p, end, &min_bytes)
    if p != NULL:
        p = read_int32(p, end, &max_bytes)
    if p != NULL:
        p = read_int8(p, end, &isolation_level)
    if p != NULL and version >= FETCH_SESSIONS_SINCE:
        p = read_int32(p, end, &call.session_id)
        if p != NULL:
            p = read_int32(p, end, &call.session_epoch)
    if p == NULL:
        return fault(call, b"it ends before its topics")
    call.read_committed = isolation_level == READ_COMMITTED
    call.max_bytes = min(<int64_t>max_bytes, largest_bytes)
    # More than the answer may hold would never come.
    call.min_bytes = min(<int64_t>min_bytes, call.max_bytes)
    return p


cdef const uint8_t* read_end(
        FetchCall* call, const uint8_t* p, const uint8_t* end, int64_t* left) noexcept nogil:
    """What stands behind the topics."""
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef const uint8_t* rack = NULL
    cdef int32_t rack_size = 0
    if call.head.version >= FETCH_RACK_SINCE:
        p = read_string(p, end, flexible, &rack, &rack_size)
        if p == NULL or rack_size < 0 or not is_utf8(rack, rack_size):
            return fault(call, b"the rack is cut short, or is no text")
    if flexible:
        p = read_tags(call, p, end, left, request_field)
        if p == NULL:
            return fault(call, b"its tagged fields are malformed")
    return p


cdef bint fetch_read_request(
        FetchCall* call, int64_t largest_bytes, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t left = MOST_ELEMENTS
    call.session_id = NO_SESSION_ID
    call.session_epoch = FINAL_EPOCH
    call.replica_id = CONSUMER
    call.replica_epoch = UNKNOWN_BROKER_EPOCH
    call.fault = NULL
    call.has_head = False
    p = read_client_id(p, end, flexible, &call.client_id, &call.client_id_size)
    if p == NULL:
        fault(call, b"it is cut short, its client id is no text, or its tagged fields are malformed")
        return False
    call.has_head = True
    p = read_numbers(call, largest_bytes, p, end)
    if p != NULL:
        p = read_topics(call, &call.asked, True, p, end, &left)
    if p != NULL and call.head.version >= FETCH_SESSIONS_SINCE:
        p = read_topics(call, &call.forgotten, False, p, end, &left)
    if p != NULL:
        p = read_end(call, p, end, &left)
    return p != NULL
