"""Fetch without Python: the ordinary request of a consumer, from its frame to its answer.

Owns which requests are ordinary, the budget of an answer (KIP-74) and its form.
Reading is the partition's, what a session remembers the sessions'. Whatever is not
ordinary, and every error, is left to the Python handler: a reader that waits gives
its frame back for that. A request that has been counted in its session before it
turned out unusual is not counted again.
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy, memset

from plog._native.connection cimport Piece, answer_room, file_piece, queue_pieces
from plog._native.fetch_sessions cimport (
    FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION_ID, SESSION_ENDED, SESSION_NEW, SESSION_NEXT, SESSION_NONE,
    SessionOutcome, session_hold, session_let_go, session_must_tell, session_put_last, session_release,
    sessions_begin)
from plog._native.files cimport calls
from plog._native.locks cimport load, load_ordered
from plog._native.part_list cimport part_add, parts_release
from plog._native.partition cimport READ_FAILED, READ_FOUND, READ_NOTHING, Partition, ReadResult, partition_read
from plog._native.request cimport (
    length_size, put_length, put_string, read_length, read_no_tags, read_string, skip_client_id,
    string_size)
from plog._native.segment cimport SegmentFiles, segment_release
from plog._native.served cimport (
    TOPIC_ID_BYTES, served_find, served_find_by_id, served_name, served_release, served_retain)
from plog._native.work_queue cimport work_note_time
from plog._native.wire cimport (
    put_int8, put_int16, put_int32, put_int64, read_int8, read_int32, read_int64)

cdef enum:
    CONSUMER = -1
    READ_COMMITTED = 1
    NO_EPOCH = -1
    LOG_START_SINCE = 5
    SESSIONS_SINCE = 7
    LEADER_EPOCH_SINCE = 9
    RACK_SINCE = 11
    LAST_EPOCH_SINCE = 12
    REPLICA_STATE_SINCE = 15
    NO_REPLICA = -1
    # An int32 states the size of an answer, with all that stands around its records.
    LARGEST_ANSWER_BYTES = 0x7FFFFFFF - 64 * 1024 * 1024
    MOST_UNSORTED_PARTS = 1000
    RECENT_BYTES = 4 * 1024 * 1024
    WARMING_BYTES = 64 * 1024

cdef const uint8_t* NO_TOPIC_ID = b"\0" * 16  # where partitions go by name; any empty name, too


# --- memory ---------------------------------------------------------------------------------------

cdef void fetch_init(FetchCall* call) noexcept nogil:
    memset(call, 0, sizeof(FetchCall))


cdef void unpin(FetchPart* part) noexcept nogil:
    if part.read.segment != NULL:
        segment_release(part.read.segment)
        part.read.segment = NULL


cdef void fetch_unpin(FetchCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        unpin(fetch_part(call, number))


cdef void fetch_clear(FetchCall* call) noexcept nogil:
    cdef int64_t number
    fetch_unpin(call)
    for number in range(call.parts.count):
        served_release(fetch_part(call, number).served)
    session_release(call.session)
    call.session = NULL
    call.tells_changes_only = False
    call.queue = NULL
    call.asked.count = call.forgotten.count = call.parts.count = 0


cdef void fetch_release(FetchCall* call) noexcept nogil:
    fetch_clear(call)
    parts_release(&call.asked)
    parts_release(&call.forgotten)
    parts_release(&call.parts)


# --- reading the request --------------------------------------------------------------------------

cdef const uint8_t* read_wanted(
        int16_t version, const PartitionName* topic, Wanted* wanted, const uint8_t* p,
        const uint8_t* end) noexcept nogil:
    cdef int64_t log_start_offset = 0
    wanted.name = topic[0]
    wanted.leader_epoch = wanted.last_epoch = NO_EPOCH
    p = read_int32(p, end, &wanted.name.index)
    if p != NULL and version >= LEADER_EPOCH_SINCE:
        p = read_int32(p, end, &wanted.leader_epoch)
    if p != NULL:
        p = read_int64(p, end, &wanted.offset)
    if p != NULL and version >= LAST_EPOCH_SINCE:
        p = read_int32(p, end, &wanted.last_epoch)
    if p != NULL and version >= LOG_START_SINCE:
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
        return p if name.topic_size >= 0 else NULL
    name.topic_id = p
    return p + TOPIC_ID_BYTES if end - p >= TOPIC_ID_BYTES else NULL


cdef const uint8_t* read_asked(FetchCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= FETCH_FLEXIBLE_SINCE
    cdef PartitionName topic
    cdef Wanted* wanted
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
            wanted = <Wanted*>part_add(&call.asked, sizeof(Wanted))
            if wanted != NULL:
                p = read_wanted(version, &topic, wanted, p, end)
            if wanted == NULL or p == NULL:
                return NULL
        if flexible:
            p = read_no_tags(p, end)
    return p if topics >= 0 else NULL


cdef const uint8_t* read_forgotten(FetchCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= FETCH_FLEXIBLE_SINCE
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
        if p == NULL or partitions < 0 or not is_ascii(&topic):
            return NULL
        for k in range(partitions):
            name = <PartitionName*>part_add(&call.forgotten, sizeof(PartitionName))
            if name == NULL:
                return NULL
            name[0] = topic
            p = read_int32(p, end, &name.index)
            if p == NULL:
                return NULL
        if flexible:
            p = read_no_tags(p, end)
    return p if topics >= 0 else NULL


cdef bint is_ascii(const PartitionName* name) noexcept nogil:
    """Else it may not be UTF-8, which Python refuses."""
    cdef int32_t at
    for at in range(name.topic_size):
        if name.topic[at] >= 0x80:
            return False
    return True


cdef FetchOutcome read_request(
        ServedTable* table, FetchCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil:
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
    if p != NULL and version >= SESSIONS_SINCE:
        p = read_int32(p, end, &call.session_id)
        if p != NULL:
            p = read_int32(p, end, &call.session_epoch)
    if p != NULL:
        p = read_asked(call, p, end)
    if p != NULL and version >= SESSIONS_SINCE:
        p = read_forgotten(call, p, end)
    if p != NULL and version >= RACK_SINCE:
        p = read_string(p, end, flexible, &rack, &rack_size)
    if p != NULL and flexible:
        p = read_no_tags(p, end)
    if p != end or p == NULL or rack_size < 0 or replica_id != CONSUMER:
        return FETCH_UNUSUAL_FORM
    call.read_committed = isolation_level == READ_COMMITTED
    call.max_bytes = min(min(<int64_t>max_bytes, load(&table.fetch_max_bytes)), <int64_t>LARGEST_ANSWER_BYTES)
    # More than the answer may hold would never come.
    call.min_bytes = min(<int64_t>min_bytes, call.max_bytes)
    return FETCH_ANSWERED


# --- what is to be read ---------------------------------------------------------------------------

cdef Served* find_served(ServedTable* table, const PartitionName* name) noexcept nogil:
    if name.topic_size > 0:
        return served_find(table, name.topic, name.topic_size, name.index)
    return served_find_by_id(table, name.topic_id, name.index)


cdef FetchOutcome take_part(FetchCall* call, Served* served, const Wanted* wanted) noexcept nogil:
    """Read this too. The caller's pin goes along, whatever comes of it."""
    cdef FetchPart* part
    if served == NULL:
        return FETCH_UNUSUAL_PARTITION
    part = <FetchPart*>part_add(&call.parts, sizeof(FetchPart))
    if part == NULL:
        served_release(served)
        return FETCH_UNUSUAL_FORM
    part.served = served
    part.offset = wanted.offset
    part.max_bytes = wanted.max_bytes
    part.leader_epoch = wanted.leader_epoch
    part.epoch_then = load(&served.partition.leader_epoch)
    part.told = True
    if load(&served.disk.slow) > 0:
        call.queue = served.disk
    # A reader of the epoch that writes now cannot have parted from this log.
    if wanted.last_epoch > NO_EPOCH and wanted.last_epoch != part.epoch_then:
        return FETCH_UNUSUAL_PARTITION
    if call.read_committed and served.has_aborted:
        return FETCH_UNUSUAL_PARTITION
    return FETCH_ANSWERED


cdef bint is_named_before(const FetchCall* call, int64_t until) noexcept nogil:
    """To be asked where partitions do not ascend within one topic; of very many, nobody looks."""
    cdef const Served* served = fetch_part(call, until).served
    cdef int64_t number
    if until > MOST_UNSORTED_PARTS:
        return True
    for number in range(until):
        if fetch_part(call, number).served == served:
            return True
    return False


cdef FetchOutcome take_asked(ServedTable* table, FetchCall* call) noexcept nogil:
    """Outside sessions: what is asked for, and nothing else."""
    cdef const Wanted* asked = <const Wanted*>call.asked.items
    cdef const Wanted* wanted
    cdef const uint8_t* first_topic = NULL  # of the frame's, where a topic begins
    cdef const uint8_t* topic
    cdef bint is_later_topic = False
    cdef int32_t before = -1
    cdef int64_t number
    cdef FetchOutcome outcome
    if call.asked.count == 0 or call.forgotten.count > 0:
        return FETCH_UNUSUAL_FORM
    for number in range(call.asked.count):
        wanted = &asked[number]
        outcome = take_part(call, find_served(table, &wanted.name), wanted)
        if outcome != FETCH_ANSWERED:
            return outcome
        topic = wanted.name.topic if wanted.name.topic_size > 0 else wanted.name.topic_id
        if topic != first_topic:
            is_later_topic = first_topic != NULL  # perhaps of one that was named before
            first_topic = topic
            before = -1
        # One that is named twice is answered once.
        if (wanted.name.index <= before or is_later_topic) and is_named_before(call, number):
            return FETCH_UNUSUAL_FORM
        before = max(before, wanted.name.index)
    return FETCH_ANSWERED


cdef FetchOutcome take_session(
        ServedTable* table, SessionTable* sessions, FetchCall* call) noexcept nogil:
    """What the session remembers, once this request is counted in it."""
    cdef const Wanted* asked = <const Wanted*>call.asked.items
    cdef Served* served
    cdef SessionOutcome outcome
    cdef int64_t number
    if call.session_epoch < INITIAL_EPOCH or call.session_epoch == INITIAL_EPOCH and (
            call.session_id != NO_SESSION_ID or call.asked.count == 0):
        return FETCH_UNUSUAL_FORM
    # Nothing of a request that is Python's from the start gets into a session here.
    for number in range(call.asked.count):
        served = find_served(table, &asked[number].name)
        if served == NULL:
            return FETCH_UNUSUAL_PARTITION
        served_release(served)
    outcome = sessions_begin(
        sessions, call.session_id, call.session_epoch, asked, call.asked.count,
        <const PartitionName*>call.forgotten.items, call.forgotten.count, call.head.version >= FETCH_IDS_SINCE,
        calls().monotonic_us() // 1000, &call.session, &call.session_until)
    if outcome == SESSION_NONE:
        return take_asked(table, call)
    if outcome == SESSION_ENDED:
        return FETCH_ANSWERED
    if outcome != SESSION_NEW and outcome != SESSION_NEXT:
        return FETCH_UNUSUAL_FORM
    call.tells_changes_only = outcome == SESSION_NEXT
    return take_remembered(table, call)


cdef FetchOutcome take_remembered(ServedTable* table, FetchCall* call) noexcept nogil:
    cdef SessionPart* remembered
    cdef FetchOutcome outcome = FETCH_ANSWERED
    cdef int64_t version
    if not session_hold(call.session, call.session_until):
        return FETCH_UNUSUAL_FORM
    version = load(&table.version)
    remembered = call.session.line.next
    while remembered != &call.session.line and outcome == FETCH_ANSWERED:
        if remembered.served == NULL or remembered.served_at != version:
            served_release(remembered.served)
            remembered.served = find_served(table, &remembered.wanted.name)
            remembered.served_at = version
        if remembered.served != NULL:
            served_retain(remembered.served)
        outcome = take_part(call, remembered.served, &remembered.wanted)
        if outcome == FETCH_ANSWERED:
            fetch_part(call, call.parts.count - 1).remembered = remembered
        remembered = remembered.next
    session_let_go(call.session)
    return outcome


# --- reading the log ------------------------------------------------------------------------------

cdef FetchOutcome fetch_read(FetchCall* call, bint may_wait) noexcept nogil:
    cdef FetchPart* part
    cdef Partition* partition
    cdef int64_t budget = max(call.max_bytes, <int64_t>0)
    cdef int64_t found_bytes = 0
    cdef int64_t upper
    cdef int64_t epoch
    cdef int64_t number
    fetch_unpin(call)
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        partition = part.served.partition
        part.changes = load(&partition.changes)
        epoch = load(&partition.leader_epoch)
        if part.leader_epoch != NO_EPOCH and part.leader_epoch != epoch:
            return FETCH_UNUSUAL_READ
        # It has another role by now, or is about to.
        if part.epoch_then != epoch or not load(&partition.writable):
            return FETCH_UNUSUAL_READ
        upper = load(&partition.last_stable_offset) if call.read_committed else load(&partition.high_watermark)
        # The first bytes of an answer are never refused for their size, or one large batch would
        # stop its consumer for ever (KIP-74).
        partition_read(
            partition, part.offset, min(<int64_t>max(part.max_bytes, 0), budget), upper,
            found_bytes == 0, may_wait, &part.read)
        if part.read.status == READ_FOUND:
            found_bytes += part.read.size
            budget = max(budget - part.read.size, <int64_t>0)
        elif part.read.status == READ_FAILED and part.read.error == EAGAIN:
            call.queue = part.served.disk
            return FETCH_BESIDE
        elif part.read.status != READ_NOTHING:
            return FETCH_UNUSUAL_READ
    return FETCH_ANSWERED if found_bytes >= call.min_bytes else FETCH_WAITS


cdef FetchOutcome fetch_serve(
        ServedTable* table, SessionTable* sessions, FetchCall* call, const uint8_t* p,
        const uint8_t* end) noexcept nogil:
    cdef FetchOutcome outcome = read_request(table, call, p, end)
    if outcome != FETCH_ANSWERED:
        return outcome
    if call.session_id == NO_SESSION_ID and call.session_epoch == FINAL_EPOCH:
        outcome = take_asked(table, call)
    else:
        outcome = take_session(table, sessions, call)
    if outcome == FETCH_ANSWERED and call.queue != NULL:
        return FETCH_BESIDE
    if outcome == FETCH_ANSWERED and call.parts.count > 0:
        outcome = fetch_read(call, False)
        find_cold(call)
        if call.queue != NULL:
            return FETCH_BESIDE
    if outcome == FETCH_WAITS and call.max_wait_ms <= 0:
        return FETCH_ANSWERED
    return outcome


cdef inline bint is_recent(const ReadResult* read) noexcept nogil:
    """The end of a log that is written to has hardly left the page cache: it is not asked about each time."""
    return (load(&read.segment.next_offset) >= read.log_end_offset
            and load(&read.segment.size_bytes) - read.position < RECENT_BYTES)


cdef void find_cold(FetchCall* call) noexcept nogil:
    """Whether the disk must be asked for what was read."""
    cdef FetchPart* part
    cdef int64_t number
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if part.read.size == 0 or is_recent(&part.read):
            continue
        if not calls().is_resident(part.read.segment.log_fd, part.read.position, part.read.size):
            call.queue = part.served.disk
            return


cdef FetchOutcome fetch_read_slowly(FetchCall* call) noexcept nogil:
    cdef uint8_t[WARMING_BYTES] into
    cdef FetchPart* part
    cdef int64_t begun_us = calls().monotonic_us()
    cdef FetchOutcome outcome = fetch_read(call, True)
    cdef int64_t at
    cdef int64_t number
    cdef int64_t done
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        at = 0
        while at < part.read.size:
            # What cannot be read is found again, and told, by who sends it.
            done = calls().pread(
                part.read.segment.log_fd, into, min(<int64_t>WARMING_BYTES, part.read.size - at), part.read.position + at)
            if done <= 0:
                break
            at += done
    if call.queue != NULL:
        work_note_time(call.queue, calls().monotonic_us() - begun_us)
    return outcome


cdef bint fetch_is_stale(const FetchCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        if load_ordered(&fetch_part(call, number).served.partition.changes) != fetch_part(call, number).changes:
            return True
    return False


# --- what is told ---------------------------------------------------------------------------------

cdef bint fetch_settle(FetchCall* call) noexcept nogil:
    cdef FetchPart* part
    cdef bint has_records
    cdef bint changed
    cdef int64_t number
    if call.session != NULL:
        if not session_hold(call.session, call.session_until):
            return False
        for number in range(call.parts.count):
            part = fetch_part(call, number)
            has_records = part.read.size > 0
            changed = session_must_tell(
                part.remembered, False, has_records, part.read.high_watermark, part.read.log_start_offset)
            part.told = changed or not call.tells_changes_only
            # Whoever got bytes goes to the end of the line, or the first partitions would take the whole
            # budget every time.
            if has_records:
                session_put_last(call.session, part.remembered)
        session_let_go(call.session)
    return True


cdef int64_t next_told(const FetchCall* call, int64_t number) noexcept nogil:
    """The first from `number` on that the answer names; the count of all: none."""
    while number < call.parts.count and not fetch_part(call, number).told:
        number += 1
    return number


cdef int32_t arrange_topics(FetchCall* call) noexcept nogil:
    """Neighbours of one topic are answered under one name. How many topics the answer names."""
    cdef const Served* before = NULL
    cdef FetchPart* part
    cdef int32_t topics = 0
    cdef int64_t number = next_told(call, 0)
    while number < call.parts.count:
        part = fetch_part(call, number)
        part.begins_topic = before == NULL or memcmp(before.topic_id, part.served.topic_id, TOPIC_ID_BYTES) != 0
        topics += part.begins_topic
        before = part.served
        number = next_told(call, number + 1)
    return topics


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


cdef int32_t parts_of_topic(const FetchCall* call, int64_t first) noexcept nogil:
    cdef int64_t after = next_told(call, first + 1)
    cdef int32_t count = 1
    while after < call.parts.count and not fetch_part(call, after).begins_topic:
        count += 1
        after = next_told(call, after + 1)
    return count


cdef int64_t topic_size(const FetchCall* call, int64_t first) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = length_size(parts_of_topic(call, first), flexible)
    if call.head.version >= FETCH_IDS_SINCE:
        return size + TOPIC_ID_BYTES
    return size + string_size(fetch_part(call, first).served.name_size, flexible)


cdef int64_t head_size(const FetchCall* call, int32_t topics) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = 4 + 4 + 4 + flexible  # length, correlation id, throttle time, tagged fields
    if call.head.version >= SESSIONS_SINCE:
        size += 2 + 4  # error, session id
    return size + length_size(topics, flexible)


cdef int64_t answer_size(const FetchCall* call, int32_t topics) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int64_t size = head_size(call, topics) + flexible
    cdef const FetchPart* part
    cdef int64_t number = next_told(call, 0)
    while number < call.parts.count:
        part = fetch_part(call, number)
        if part.begins_topic:
            size += topic_size(call, number) + flexible
        size += part_size(call, part) + part.read.size + flexible
        number = next_told(call, number + 1)
    return size


cdef uint8_t* encode_head(const FetchCall* call, int32_t topics, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    p = put_int32(p, <int32_t>(answer_size(call, topics) - 4))
    p = put_int32(p, call.head.correlation_id)
    if flexible:
        p = put_int8(p, 0)
    p = put_int32(p, 0)  # throttle time
    if call.head.version >= SESSIONS_SINCE:
        p = put_int16(p, 0)  # error
        p = put_int32(p, NO_SESSION_ID if call.session == NULL else call.session.id)
    return put_length(p, topics, flexible)


cdef uint8_t* encode_topic(const FetchCall* call, int64_t first, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef const Served* served = fetch_part(call, first).served
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


cdef bint queue_zeros(Connection* c, int64_t count) noexcept nogil:
    """Empty tagged fields."""
    cdef uint8_t* p = answer_room(c, count)
    if p == NULL:
        return False
    memset(p, 0, count)
    return True


cdef bint queue_records(Connection* c, FetchPart* part) noexcept nogil:
    cdef Piece* piece = file_piece(
        part.read.segment.log_fd, part.read.position, part.read.size, part.read.segment, unpin_segment)
    if piece == NULL:
        return False
    part.read.segment = NULL  # the pin goes along
    queue_pieces(c, piece, piece, part.read.size)
    return True


cdef bint fetch_answer(FetchCall* call, Connection* c) noexcept nogil:
    cdef bint flexible = call.head.version >= FETCH_FLEXIBLE_SINCE
    cdef int32_t topics = arrange_topics(call)
    cdef int64_t number = next_told(call, 0)
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
        if part.read.size > 0 and not queue_records(c, part):
            return False
        after = next_told(call, number + 1)
        # Of the partition, and of its topic with the last of it.
        if flexible and not queue_zeros(
                c, 1 + (after == call.parts.count or fetch_part(call, after).begins_topic)):
            return False
        number = after
    return not flexible or queue_zeros(c, 1)
