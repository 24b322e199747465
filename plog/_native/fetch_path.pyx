"""Fetch without Python: the ordinary request of a consumer outside a session, from its frame to its answer.

Owns which requests are ordinary, the budget of an answer (KIP-74) and its form.
Reading is the partition's. Whatever is not ordinary, and every error, is left to
the Python handler: a reader that waits gives its frame back for that.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from plog._native.connection cimport Piece, answer_room, file_piece, queue_pieces
from plog._native.locks cimport load
from plog._native.partition cimport READ_FOUND, READ_NOTHING, Partition, partition_read
from plog._native.request cimport (
    length_size, put_length, put_string, read_length, read_no_tags, read_string, skip_client_id,
    string_size)
from plog._native.segment cimport SegmentFiles, segment_release
from plog._native.served cimport (
    TOPIC_ID_BYTES, served_find, served_find_by_id, served_name, served_release)
from plog._native.wire cimport (
    put_int8, put_int16, put_int32, put_int64, read_int8, read_int32, read_int64)

cdef enum:
    CONSUMER = -1
    READ_COMMITTED = 1
    NO_EPOCH = -1
    NO_SESSION_ID = 0
    SESSIONLESS = -1
    LOG_START_SINCE = 5
    SESSIONS_SINCE = 7
    LEADER_EPOCH_SINCE = 9
    RACK_SINCE = 11
    REPLICA_STATE_SINCE = 15
    LAST_EPOCH_SINCE = 12
    NO_REPLICA = -1
    MOST_PARTS = 100000
    # An int32 states the size of an answer, with all that stands around its records.
    LARGEST_ANSWER_BYTES = 0x7FFFFFFF - 64 * 1024 * 1024
    MOST_UNSORTED_PARTS = 1000


# --- memory ---------------------------------------------------------------------------------------

cdef void fetch_init(FetchCall* call) noexcept nogil:
    memset(call, 0, sizeof(FetchCall))


cdef void unpin(FetchPart* part) noexcept nogil:
    if part.read.segment != NULL:
        segment_release(part.read.segment)
        part.read.segment = NULL


cdef void fetch_unpin(FetchCall* call) noexcept nogil:
    cdef int32_t number
    for number in range(call.count):
        unpin(&call.parts[number])


cdef void fetch_clear(FetchCall* call) noexcept nogil:
    cdef int32_t number
    for number in range(call.count):
        unpin(&call.parts[number])
        served_release(call.parts[number].served)
    call.count = call.topics = 0


cdef void fetch_release(FetchCall* call) noexcept nogil:
    fetch_clear(call)
    free(call.parts)
    call.parts = NULL
    call.capacity = 0


cdef FetchPart* new_part(FetchCall* call) noexcept nogil:
    cdef FetchPart* grown
    cdef int32_t capacity
    if call.count == call.capacity:
        if call.count == MOST_PARTS:
            return NULL
        capacity = min(max(4, 2 * call.capacity), <int32_t>MOST_PARTS)
        grown = <FetchPart*>realloc(call.parts, capacity * sizeof(FetchPart))
        if grown == NULL:
            return NULL
        call.parts = grown
        call.capacity = capacity
    memset(&call.parts[call.count], 0, sizeof(FetchPart))
    call.count += 1
    return &call.parts[call.count - 1]


# --- reading the request --------------------------------------------------------------------------

cdef const uint8_t* read_part(
        FetchCall* call, FetchPart* part, const uint8_t* p, const uint8_t* end, int32_t* index,
        int32_t* last_epoch) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef int32_t leader_epoch = NO_EPOCH
    cdef int64_t log_start_offset = 0
    p = read_int32(p, end, index)
    if p != NULL and version >= LEADER_EPOCH_SINCE:
        p = read_int32(p, end, &leader_epoch)
    part.leader_epoch = max(leader_epoch, <int32_t>NO_EPOCH)
    if p != NULL:
        p = read_int64(p, end, &part.offset)
    if p != NULL and version >= LAST_EPOCH_SINCE:
        p = read_int32(p, end, last_epoch)
    if p != NULL and version >= LOG_START_SINCE:
        p = read_int64(p, end, &log_start_offset)
    if p != NULL:
        p = read_int32(p, end, &part.max_bytes)
    if p != NULL and version >= FETCH_FLEXIBLE_SINCE:
        p = read_no_tags(p, end)
    return p


cdef bint is_named_before(const FetchCall* call, const Served* served) noexcept nogil:
    """To be asked where partitions do not ascend within one topic; of very many, nobody looks."""
    cdef int32_t number
    if call.count > MOST_UNSORTED_PARTS:
        return True
    for number in range(call.count - 1):
        if call.parts[number].served == served:
            return True
    return False


cdef FetchOutcome read_topic(
        ServedTable* table, FetchCall* call, const uint8_t** at, const uint8_t* end) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= FETCH_FLEXIBLE_SINCE
    cdef bint by_id = version >= FETCH_IDS_SINCE
    cdef const uint8_t* p = at[0]
    cdef const uint8_t* topic = NULL
    cdef int32_t topic_size = 0
    cdef int32_t partitions = 0
    cdef int32_t number
    cdef int32_t index = 0
    cdef bint is_later_topic = call.count > 0  # perhaps of one that was named before
    cdef int32_t before = -1
    cdef int32_t last_epoch
    cdef FetchPart* part
    if by_id:
        topic = p
        p = p + TOPIC_ID_BYTES if end - p >= TOPIC_ID_BYTES else NULL
    else:
        p = read_string(p, end, flexible, &topic, &topic_size)
    if p != NULL:
        p = read_length(p, end, flexible, False, &partitions)
    if p == NULL or topic_size < 0 or partitions <= 0:
        return FETCH_UNUSUAL_FORM
    for number in range(partitions):
        part = new_part(call)
        if part == NULL:
            return FETCH_UNUSUAL_FORM
        last_epoch = NO_EPOCH
        p = read_part(call, part, p, end, &index, &last_epoch)
        if p == NULL:
            return FETCH_UNUSUAL_FORM
        if by_id:
            part.served = served_find_by_id(table, topic, index)
        else:
            part.served = served_find(table, topic, topic_size, index)
        if part.served == NULL or (call.read_committed and part.served.has_aborted):
            return FETCH_UNUSUAL_PARTITION
        # One that is named twice is answered once.
        if (index <= before or is_later_topic) and is_named_before(call, part.served):
            return FETCH_UNUSUAL_FORM
        before = max(before, index)
        # A reader of the epoch that writes now cannot have parted from this log.
        part.epoch_then = load(&part.served.partition.leader_epoch)
        if last_epoch > NO_EPOCH and last_epoch != part.epoch_then:
            return FETCH_UNUSUAL_PARTITION
        part.begins_topic = number == 0
    if flexible:
        p = read_no_tags(p, end)
    at[0] = p
    return FETCH_ANSWERED if p != NULL else FETCH_UNUSUAL_FORM


cdef FetchOutcome read_request(
        ServedTable* table, FetchCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= FETCH_FLEXIBLE_SINCE
    cdef const uint8_t* rack = NULL
    cdef int32_t replica_id = CONSUMER
    cdef int32_t min_bytes = 0
    cdef int32_t max_bytes = 0
    cdef int32_t session_id = NO_SESSION_ID
    cdef int32_t session_epoch = SESSIONLESS
    cdef int32_t topics = 0
    cdef int32_t forgotten = 0
    cdef int32_t rack_size = 0
    cdef int8_t isolation_level = 0
    cdef int32_t number
    cdef FetchOutcome outcome
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
    if p != NULL and version >= SESSIONS_SINCE:
        p = read_int32(p, end, &session_id)
        if p != NULL:
            p = read_int32(p, end, &session_epoch)
    if p != NULL:
        p = read_length(p, end, flexible, False, &topics)
    if (p == NULL or replica_id != CONSUMER or session_id != NO_SESSION_ID
            or session_epoch != SESSIONLESS or topics <= 0):
        return FETCH_UNUSUAL_FORM
    call.read_committed = isolation_level == READ_COMMITTED
    call.max_bytes = min(min(<int64_t>max_bytes, load(&table.fetch_max_bytes)), <int64_t>LARGEST_ANSWER_BYTES)
    # More than the answer may hold would never come.
    call.min_bytes = min(<int64_t>min_bytes, call.max_bytes)
    call.topics = topics
    for number in range(topics):
        outcome = read_topic(table, call, &p, end)
        if outcome != FETCH_ANSWERED:
            return outcome
    if version >= SESSIONS_SINCE:
        p = read_length(p, end, flexible, False, &forgotten)
        if p == NULL or forgotten > 0:
            return FETCH_UNUSUAL_FORM
    if version >= RACK_SINCE:
        p = read_string(p, end, flexible, &rack, &rack_size)
    if p != NULL and flexible:
        p = read_no_tags(p, end)
    if p != end or rack_size < 0:
        return FETCH_UNUSUAL_FORM
    join_topics(call)
    return FETCH_ANSWERED


cdef void join_topics(FetchCall* call) noexcept nogil:
    """Neighbours of one topic are answered under one name."""
    cdef const Served* before = NULL
    cdef FetchPart* part
    cdef int32_t number
    for number in range(call.count):
        part = &call.parts[number]
        if part.begins_topic and before != NULL and memcmp(
                before.topic_id, part.served.topic_id, TOPIC_ID_BYTES) == 0:
            part.begins_topic = False
            call.topics -= 1
        before = part.served


# --- reading the log ------------------------------------------------------------------------------

cdef FetchOutcome fetch_read(FetchCall* call) noexcept nogil:
    cdef FetchPart* part
    cdef Partition* partition
    cdef int64_t budget = max(call.max_bytes, <int64_t>0)
    cdef int64_t found_bytes = 0
    cdef int64_t upper
    cdef int64_t epoch
    cdef int32_t number
    fetch_unpin(call)
    for number in range(call.count):
        part = &call.parts[number]
        partition = part.served.partition
        epoch = load(&partition.leader_epoch)
        if part.leader_epoch != NO_EPOCH and part.leader_epoch != epoch:
            return FETCH_UNUSUAL_READ
        # It has another role by now, or is about to.
        if part.epoch_then != epoch or not partition.writable:
            return FETCH_UNUSUAL_READ
        upper = load(&partition.last_stable_offset) if call.read_committed else load(&partition.high_watermark)
        # The first bytes of an answer are never refused for their size, or one large batch would
        # stop its consumer for ever (KIP-74).
        partition_read(
            partition, part.offset, min(<int64_t>max(part.max_bytes, 0), budget), upper,
            found_bytes == 0, &part.read)
        if part.read.status == READ_FOUND:
            found_bytes += part.read.size
            budget = max(budget - part.read.size, <int64_t>0)
        elif part.read.status != READ_NOTHING:
            return FETCH_UNUSUAL_READ
    return FETCH_ANSWERED if found_bytes >= call.min_bytes else FETCH_WAITS


cdef FetchOutcome fetch_serve(
        ServedTable* table, FetchCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef FetchOutcome outcome = read_request(table, call, p, end)
    if outcome == FETCH_ANSWERED:
        outcome = fetch_read(call)
    if outcome == FETCH_WAITS and call.max_wait_ms <= 0:
        return FETCH_ANSWERED
    return outcome


# --- the answer -----------------------------------------------------------------------------------

cdef int64_t part_size(const FetchCall* call, const FetchPart* part) noexcept nogil:
    """Of what stands before the records; their length included."""
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = 4 + 2 + 8 + 8  # index, error, high watermark, last stable offset
    if call.head.version >= LOG_START_SINCE:
        size += 8
    size += 1 if flexible else 4  # aborted transactions: none, or null
    if call.head.version >= RACK_SINCE:
        size += 4  # preferred read replica
    return size + length_size(<int32_t>part.read.size, flexible)


cdef int32_t parts_of_topic(const FetchCall* call, int32_t first) noexcept nogil:
    cdef int32_t after = first + 1
    while after < call.count and not call.parts[after].begins_topic:
        after += 1
    return after - first


cdef int64_t topic_size(const FetchCall* call, int32_t first) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = length_size(parts_of_topic(call, first), flexible)
    if call.head.version >= FETCH_IDS_SINCE:
        return size + TOPIC_ID_BYTES
    return size + string_size(call.parts[first].served.name_size, flexible)


cdef int64_t head_size(const FetchCall* call) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = 4 + 4 + 4 + flexible  # length, correlation id, throttle time, tagged fields
    if call.head.version >= SESSIONS_SINCE:
        size += 2 + 4  # error, session id
    return size + length_size(call.topics, flexible)


cdef int64_t answer_size(const FetchCall* call) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = head_size(call)
    cdef int32_t number
    for number in range(call.count):
        if call.parts[number].begins_topic:
            size += topic_size(call, number) + flexible
        size += part_size(call, &call.parts[number]) + call.parts[number].read.size + flexible
    return size + flexible


cdef uint8_t* encode_head(const FetchCall* call, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    p = put_int32(p, <int32_t>(answer_size(call) - 4))
    p = put_int32(p, call.head.correlation_id)
    if flexible:
        p = put_int8(p, 0)
    p = put_int32(p, 0)  # throttle time
    if call.head.version >= SESSIONS_SINCE:
        p = put_int16(p, 0)  # error
        p = put_int32(p, NO_SESSION_ID)
    return put_length(p, call.topics, flexible)


cdef uint8_t* encode_topic(const FetchCall* call, int32_t first, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef const Served* served = call.parts[first].served
    if call.head.version >= FETCH_IDS_SINCE:
        memcpy(p, served.topic_id, TOPIC_ID_BYTES)
        p += TOPIC_ID_BYTES
    else:
        p = put_string(p, served_name(served), served.name_size, flexible)
    return put_length(p, parts_of_topic(call, first), flexible)


cdef uint8_t* encode_part(const FetchCall* call, const FetchPart* part, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    p = put_int32(p, part.served.index)
    p = put_int16(p, 0)
    p = put_int64(p, part.read.high_watermark)
    p = put_int64(p, part.read.last_stable_offset)
    if call.head.version >= LOG_START_SINCE:
        p = put_int64(p, part.read.log_start_offset)
    # Null for read_uncommitted, an empty list for none: clients tell the two apart.
    p = put_length(p, 0 if call.read_committed else -1, flexible)
    if call.head.version >= RACK_SINCE:
        p = put_int32(p, NO_REPLICA)
    return put_length(p, <int32_t>part.read.size, flexible)


cdef void unpin_segment(void* pin) noexcept nogil:
    segment_release(<SegmentFiles*>pin)


cdef bint fetch_answer(FetchCall* call, Connection* c) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef FetchPart* part
    cdef Piece* piece
    cdef uint8_t* p
    cdef int64_t room = head_size(call)
    cdef int64_t tail
    cdef bint ends_topic
    cdef int32_t number
    p = answer_room(c, room)
    if p == NULL:
        return False
    encode_head(call, p)
    for number in range(call.count):
        part = &call.parts[number]
        room = part_size(call, part)
        if part.begins_topic:
            room += topic_size(call, number)
        p = answer_room(c, room)
        if p == NULL:
            return False
        if part.begins_topic:
            p = encode_topic(call, number, p)
        encode_part(call, part, p)
        if part.read.size > 0:
            piece = file_piece(
                part.read.segment.log_fd, part.read.position, part.read.size, part.read.segment, unpin_segment)
            if piece == NULL:
                return False
            part.read.segment = NULL  # the pin goes along
            queue_pieces(c, piece, piece, part.read.size)
        if flexible:
            ends_topic = number + 1 == call.count or call.parts[number + 1].begins_topic
            tail = 1 + ends_topic + (number + 1 == call.count)
            p = answer_room(c, tail)
            if p == NULL:
                return False
            memset(p, 0, tail)  # tagged fields: of the partition, its topic, the answer
    return True
