"""The form of Fetch responses: heads in memory, records by reference to their files.

Owns how parts are grouped under topics, and the bytes around the records. What
the answer tells has been decided before.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy

from plog._native.aborted_list cimport Aborted, AbortedWalk, aborted_next
from plog._native.connection cimport answer_room, file_piece, queue_pieces
from plog._native.fetch_call cimport (
    FETCH_FLEXIBLE_SINCE, FETCH_IDS_SINCE, FETCH_LOG_START_SINCE, FETCH_RACK_SINCE, FETCH_SESSIONS_SINCE,
    FetchCall, FetchPart, fetch_is_followers, fetch_part)
from plog._native.fetch_sessions cimport NO_SESSION_ID
from plog._native.log_read cimport read_next_offset
from plog._native.partition_names cimport is_same_name
from plog._native.reactor_types cimport Connection, Piece
from plog._native.request cimport length_size, put_length, put_string, string_size
from plog._native.response_fields cimport LEADER_BYTES, NO_EPOCH, NO_NODE, endpoints_size, put_endpoints, put_leader
from plog._native.segment_files cimport SegmentFiles, segment_release
from plog._native.served cimport TOPIC_ID_BYTES
from plog._native.topic_traffic cimport traffic_sent
from plog._native.wire cimport put_int8, put_int16, put_int32, put_int64

cdef enum:
    NO_REPLICA = -1
    ABORTED_BYTES = 8 + 8  # producer id, first offset
    LEADERS_SINCE = 16
    DIVERGING_TAG = 0
    LEADER_TAG = 1
    DIVERGING_BYTES = 4 + 8 + 1  # epoch, end offset, tagged fields


# --- what stands in it ----------------------------------------------------------------------------

cdef int64_t next_named(const FetchCall* call, int64_t number) noexcept nogil:
    """The first from `number` on that the answer names; the count of all: none."""
    if call.error != 0:
        return call.parts.count
    while number < call.parts.count and not fetch_part(call, number).is_named:
        number += 1
    return number


cdef inline bint are_of_one_topic(const FetchCall* call, const FetchPart* one, const FetchPart* other) noexcept nogil:
    if call.head.version >= FETCH_IDS_SINCE:
        return memcmp(one.name.topic_id, other.name.topic_id, TOPIC_ID_BYTES) == 0
    return is_same_name(&one.name, &other.name)


cdef int32_t arrange_topics(FetchCall* call) noexcept nogil:
    """Neighbours of one topic are answered under one name. How many topics the answer names."""
    cdef const FetchPart* before = NULL
    cdef FetchPart* part
    cdef int32_t topics = 0
    cdef int64_t number = next_named(call, 0)
    while number < call.parts.count:
        part = fetch_part(call, number)
        part.begins_topic = before == NULL or not are_of_one_topic(call, before, part)
        topics += part.begins_topic
        before = part
        number = next_named(call, number + 1)
    return topics


# --- its bytes -------------------------------------------------------------------------------------

cdef inline int32_t aborted_length(const FetchCall* call, const FetchPart* part) noexcept nogil:
    # Null for read_uncommitted, an empty list for none: clients tell the two apart.
    return <int32_t>part.aborted_count if part.lists_aborted else -1


cdef inline int32_t records_length(const FetchPart* part) noexcept nogil:
    return -1 if part.records_are_null else <int32_t>part.read.size


cdef inline bint names_leader(const FetchCall* call, const FetchPart* part) noexcept nogil:
    return call.head.version >= FETCH_FLEXIBLE_SINCE and (part.leader_id != NO_NODE or part.hint_epoch != NO_EPOCH)


cdef inline bint diverges(const FetchCall* call, const FetchPart* part) noexcept nogil:
    return call.head.version >= FETCH_FLEXIBLE_SINCE and part.diverging_epoch != NO_EPOCH


cdef int64_t tags_size(const FetchCall* call, const FetchPart* part) noexcept nogil:
    """Of a partition's tagged fields, in the flexible form."""
    return 1 + diverges(call, part) * (2 + DIVERGING_BYTES) + names_leader(call, part) * (2 + LEADER_BYTES)


cdef int64_t part_size(const FetchCall* call, const FetchPart* part) noexcept nogil:
    """Of what stands before the records; their length included."""
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = 4 + 2 + 8 + 8  # index, error, high watermark, last stable offset
    if call.head.version >= FETCH_LOG_START_SINCE:
        size += 8
    size += length_size(aborted_length(call, part), flexible) + part.aborted_count * (ABORTED_BYTES + flexible)
    if call.head.version >= FETCH_RACK_SINCE:
        size += 4  # preferred read replica
    return size + length_size(records_length(part), flexible)


cdef int32_t parts_of_topic(const FetchCall* call, int64_t first) noexcept nogil:
    cdef int64_t after = next_named(call, first + 1)
    cdef int32_t count = 1
    while after < call.parts.count and not fetch_part(call, after).begins_topic:
        count += 1
        after = next_named(call, after + 1)
    return count


cdef int64_t topic_size(const FetchCall* call, int64_t first) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = length_size(parts_of_topic(call, first), flexible)
    if call.head.version >= FETCH_IDS_SINCE:
        return size + TOPIC_ID_BYTES
    return size + string_size(fetch_part(call, first).name.topic_size, flexible)


cdef int64_t head_size(const FetchCall* call, int32_t topics) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = 4 + 4 + 4 + flexible  # length, correlation id, throttle time, tagged fields
    if call.head.version >= FETCH_SESSIONS_SINCE:
        size += 2 + 4  # error, session id
    return size + length_size(topics, flexible)


cdef inline bint has_endpoints(const FetchCall* call) noexcept nogil:
    return call.head.version >= LEADERS_SINCE and call.texts.endpoint_count > 0 and call.error == 0


cdef int64_t end_size(const FetchCall* call) noexcept nogil:
    """Of what stands behind the topics."""
    if call.head.version < FETCH_FLEXIBLE_SINCE:
        return 0
    return 1 + (endpoints_size(&call.texts) if has_endpoints(call) else 0)


cdef int64_t answer_size(const FetchCall* call, int32_t topics) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = head_size(call, topics) + end_size(call)
    cdef const FetchPart* part
    cdef int64_t number = next_named(call, 0)
    while number < call.parts.count:
        part = fetch_part(call, number)
        if part.begins_topic:
            size += topic_size(call, number) + flexible
        size += part_size(call, part) + part.read.size
        if flexible:
            size += tags_size(call, part)
        number = next_named(call, number + 1)
    return size


cdef uint8_t* encode_head(const FetchCall* call, int32_t topics, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    p = put_int32(p, <int32_t>(answer_size(call, topics) - 4))
    p = put_int32(p, call.head.correlation_id)
    if flexible:
        p = put_int8(p, 0)
    p = put_int32(p, 0)  # throttle time
    if call.head.version >= FETCH_SESSIONS_SINCE:
        p = put_int16(p, call.error)
        p = put_int32(p, NO_SESSION_ID if call.session == NULL or call.error != 0 else call.session.id)
    return put_length(p, topics, flexible)


cdef uint8_t* encode_topic(const FetchCall* call, int64_t first, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef const FetchPart* part = fetch_part(call, first)
    if call.head.version >= FETCH_IDS_SINCE:
        memcpy(p, part.name.topic_id, TOPIC_ID_BYTES)
        p += TOPIC_ID_BYTES
    else:
        p = put_string(p, part.name.topic, part.name.topic_size, flexible)
    return put_length(p, parts_of_topic(call, first), flexible)


cdef uint8_t* encode_aborted(const FetchCall* call, const FetchPart* part, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef AbortedWalk walk = part.aborted
    cdef const Aborted* entry
    cdef int64_t number
    p = put_length(p, aborted_length(call, part), flexible)
    if part.aborted_count == 0:
        return p
    if part.aborted_found != NULL:
        for number in range(part.aborted_count):
            p = put_int64(p, part.aborted_found[number].producer_id)
            p = put_int64(p, part.aborted_found[number].first_offset)
            if flexible:
                p = put_int8(p, 0)
        return p
    entry = aborted_next(&walk)
    while entry != NULL:
        p = put_int64(p, entry.producer_id)
        p = put_int64(p, entry.first_offset)
        if flexible:
            p = put_int8(p, 0)
        entry = aborted_next(&walk)
    return p


cdef uint8_t* encode_part(const FetchCall* call, const FetchPart* part, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    p = put_int32(p, part.name.index)
    p = put_int16(p, part.error)
    p = put_int64(p, part.read.high_watermark)
    p = put_int64(p, part.read.last_stable_offset)
    if call.head.version >= FETCH_LOG_START_SINCE:
        p = put_int64(p, part.read.log_start_offset)
    p = encode_aborted(call, part, p)
    if call.head.version >= FETCH_RACK_SINCE:
        p = put_int32(p, NO_REPLICA)
    return put_length(p, records_length(part), flexible)


cdef void unpin_segment(void* pin) noexcept nogil:
    segment_release(<SegmentFiles*>pin)


cdef bint queue_tags(Connection* c, const FetchCall* call, const FetchPart* part, bint ends_topic) noexcept nogil:
    """The tagged fields of a partition, and of its topic with the last of it. False: no memory."""
    cdef uint8_t* p = answer_room(c, tags_size(call, part) + ends_topic)
    if p == NULL:
        return False
    p = put_int8(p, diverges(call, part) + names_leader(call, part))
    if diverges(call, part):
        p = put_int8(p, DIVERGING_TAG)
        p = put_int8(p, DIVERGING_BYTES)
        p = put_int32(p, part.diverging_epoch)
        p = put_int64(p, part.diverging_end)
        p = put_int8(p, 0)
    if names_leader(call, part):
        p = put_leader(p, LEADER_TAG, part.leader_id, part.hint_epoch)
    if ends_topic:
        put_int8(p, 0)
    return True


cdef bint queue_end(Connection* c, const FetchCall* call) noexcept nogil:
    cdef uint8_t* p = answer_room(c, end_size(call))
    if p == NULL:
        return False
    p = put_int8(p, has_endpoints(call))
    if has_endpoints(call):
        put_endpoints(p, &call.texts)
    return True


cdef void count_sent(const FetchPart* part) noexcept nogil:
    cdef int64_t next_offset = read_next_offset(&part.read)
    if part.served == NULL:
        return
    # The first batch may begin before the offset; its reader skips those records.
    traffic_sent(part.served.traffic, max(next_offset - part.offset, <int64_t>0), part.read.size)


cdef bint queue_records(Connection* c, const FetchCall* call, FetchPart* part) noexcept nogil:
    cdef Piece* piece = file_piece(
        part.read.segment.log_fd, part.read.position, part.read.size, part.read.segment, unpin_segment)
    if piece == NULL:
        return False
    if not fetch_is_followers(call):  # the topic's traffic is that of clients
        count_sent(part)
    part.read.segment = NULL  # the pin goes along
    queue_pieces(c, piece, piece, part.read.size)
    return True


cdef bint fetch_answer(FetchCall* call, Connection* c) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int32_t topics = arrange_topics(call)
    cdef int64_t number = next_named(call, 0)
    cdef int64_t after
    cdef int64_t room
    cdef FetchPart* part
    cdef uint8_t* p = answer_room(c, head_size(call, topics))
    if p == NULL:
        return False
    encode_head(call, topics, p)
    while number < call.parts.count:
        part = fetch_part(call, number)
        room = part_size(call, part)
        if part.begins_topic:
            room += topic_size(call, number)
        p = answer_room(c, room)
        if p == NULL:
            return False
        if part.begins_topic:
            p = encode_topic(call, number, p)
        encode_part(call, part, p)
        if part.read.size > 0 and not queue_records(c, call, part):
            return False
        after = next_named(call, number + 1)
        if flexible and not queue_tags(
                c, call, part, after == call.parts.count or fetch_part(call, after).begins_topic):
            return False
        number = after
    return not flexible or queue_end(c, call)
