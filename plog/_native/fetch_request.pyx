"""The form of Fetch requests, read without Python.

Owns which requests are a consumer's ordinary ones. Says nothing of topics and
partitions but what the frame says of them.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from plog._native.fetch_call cimport (
    FETCH_FLEXIBLE_SINCE, FETCH_IDS_SINCE, FETCH_LOG_START_SINCE, FETCH_RACK_SINCE, FETCH_SESSIONS_SINCE)
from plog._native.fetch_sessions cimport FINAL_EPOCH, NO_SESSION_ID, PartitionName, Wanted
from plog._native.part_list cimport PartList, part_add
from plog._native.request cimport is_ascii, read_length, read_no_tags, read_string, skip_client_id
from plog._native.served cimport TOPIC_ID_BYTES
from plog._native.wire cimport read_int8, read_int32, read_int64

cdef enum:
    CONSUMER = -1
    READ_COMMITTED = 1
    NO_EPOCH = -1
    LEADER_EPOCH_SINCE = 9
    LAST_EPOCH_SINCE = 12
    REPLICA_STATE_SINCE = 15

cdef const uint8_t* NO_TOPIC_ID = b"\0" * 16  # where partitions go by name; any empty name, too


cdef const uint8_t* read_wanted(
        int16_t version, Wanted* wanted, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """What stands behind the index of a partition that is asked for."""
    cdef int64_t log_start_offset = 0
    wanted.leader_epoch = wanted.last_epoch = NO_EPOCH
    if version >= LEADER_EPOCH_SINCE:
        p = read_int32(p, end, &wanted.leader_epoch)
    if p != NULL:
        p = read_int64(p, end, &wanted.offset)
    if p != NULL and version >= LAST_EPOCH_SINCE:
        p = read_int32(p, end, &wanted.last_epoch)
    if p != NULL and version >= FETCH_LOG_START_SINCE:
        p = read_int64(p, end, &log_start_offset)
    if p != NULL:
        p = read_int32(p, end, &wanted.max_bytes)
    if p != NULL and version >= FETCH_FLEXIBLE_SINCE:
        p = read_no_tags(p, end)
    wanted.leader_epoch = max(wanted.leader_epoch, <int32_t>NO_EPOCH)
    wanted.last_epoch = max(wanted.last_epoch, <int32_t>NO_EPOCH)
    return p


cdef const uint8_t* read_topic_name(
        int16_t version, PartitionName* name, const uint8_t* p, const uint8_t* end) noexcept nogil:
    name.topic = name.topic_id = NO_TOPIC_ID
    name.topic_size = 0
    name.index = 0
    if version < FETCH_IDS_SINCE:
        p = read_string(p, end, version >= FETCH_FLEXIBLE_SINCE, &name.topic, &name.topic_size)
        # Without a cursor the size is no more than what the frame claims.
        return p if p != NULL and name.topic_size >= 0 and is_ascii(name.topic, name.topic_size) else NULL
    name.topic_id = p
    return p + TOPIC_ID_BYTES if end - p >= TOPIC_ID_BYTES else NULL


cdef const uint8_t* read_topics(
        int16_t version, PartList* parts, bint wanted, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """A list of topics with their partitions, which are asked for (`wanted`), or forgotten and only named."""
    cdef bint flexible = version >= FETCH_FLEXIBLE_SINCE
    cdef size_t item_size = sizeof(Wanted) if wanted else sizeof(PartitionName)
    cdef PartitionName topic
    cdef PartitionName* name
    cdef int32_t topics = 0
    cdef int32_t partitions = 0
    cdef int32_t i
    cdef int32_t k
    p = read_length(p, end, flexible, False, &topics)
    for i in range(topics):
        if p != NULL:
            p = read_topic_name(version, &topic, p, end)
        if p != NULL:
            p = read_length(p, end, flexible, False, &partitions)
        if p == NULL or partitions <= 0:
            return NULL
        for k in range(partitions):
            name = <PartitionName*>part_add(parts, item_size)
            if name == NULL:
                return NULL
            name[0] = topic
            p = read_int32(p, end, &name.index)
            if p != NULL and wanted:
                p = read_wanted(version, <Wanted*>name, p, end)
            if p == NULL:
                return NULL
        if flexible:
            p = read_no_tags(p, end)
    return p if topics >= 0 else NULL


cdef bint fetch_read_request(
        FetchCall* call, int64_t largest_bytes, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= FETCH_FLEXIBLE_SINCE
    cdef const uint8_t* rack = NULL
    cdef int32_t replica_id = CONSUMER
    cdef int32_t min_bytes = 0
    cdef int32_t max_bytes = 0
    cdef int32_t rack_size = 0
    cdef int8_t isolation_level = 0
    call.session_id = NO_SESSION_ID
    call.session_epoch = FINAL_EPOCH
    p = skip_client_id(p, end, flexible)
    if p != NULL and version < REPLICA_STATE_SINCE:
        p = read_int32(p, end, &replica_id)
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
    if p != NULL:
        p = read_topics(version, &call.asked, True, p, end)
    if p != NULL and version >= FETCH_SESSIONS_SINCE:
        p = read_topics(version, &call.forgotten, False, p, end)
    if p != NULL and version >= FETCH_RACK_SINCE:
        p = read_string(p, end, flexible, &rack, &rack_size)
    if p != NULL and flexible:
        p = read_no_tags(p, end)
    if p != end or p == NULL or rack_size < 0 or replica_id != CONSUMER or not is_ascii(rack, rack_size):
        return False
    call.read_committed = isolation_level == READ_COMMITTED
    call.max_bytes = min(<int64_t>max_bytes, largest_bytes)
    # More than the answer may hold would never come.
    call.min_bytes = min(<int64_t>min_bytes, call.max_bytes)
    return True
