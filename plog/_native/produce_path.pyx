"""Produce without Python: the ordinary request of today's clients, from its frame to its answer.

Owns which requests are ordinary, and the form of their answers; the rules behind
are the validation's and the partition's. Whatever is not ordinary, and whatever
would be refused, is left to the Python handler, before anything is appended
where that can be: an answer that says no is always Python's, but for records
that are lost while acks=all waits.
"""

from libc.errno cimport ENOSPC
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memset, strlen

from plog._native.batch_fields cimport (
    AT_ATTRIBUTES, AT_BASE_OFFSET, ATTRIBUTE_CODEC, ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER_BYTES,
    restamp_max_timestamp)
from plog._native.log_flush cimport commit_ask
from plog._native.files cimport calls
from plog._native.locks cimport load, load_ordered
from plog._native.log_append cimport APPEND_DONE, APPEND_DUPLICATE, APPEND_WRITE_FAILED, partition_append
from plog._native.part_list cimport part_add, parts_release
from plog._native.partition cimport (
    ACK_NOT_LEADER, ACK_OFFLINE, ACK_SAFE, ACK_WAITS, AckStatus, Partition, partition_ack_status)
from plog._native.produce_rules cimport Accepted, Rules, is_acceptable, rules_at
from plog._native.request cimport (
    is_ascii, length_size, put_length, put_string, read_bytes, read_length, read_no_tags, read_string,
    skip_client_id, string_size)
from plog._native.request_stages cimport (
    APPENDED, CHECKED, EXPIRED, FOUND_GOOD, GATHERED, IS_LOST, IS_SAFE, NOT_WRITTEN, ON_DISK, WROTE, Event, part_advance,
    progress_add)
from plog._native.served cimport served_find, served_name, served_release
from plog._native.topic_traffic cimport traffic_received
from plog._native.work_queue cimport WorkQueue, work_note_time
from plog._native.wire cimport (
    be16, put_int8, put_int16, put_int32, put_int64, read_int16, read_int32)

cdef enum:
    CODEC_ZSTD = 4
    ZSTD_SINCE = 7
    LOG_START_SINCE = 5
    RECORD_ERRORS_SINCE = 8
    # Larger requests are expanded beside the reactor: several at once, and no other connection waits for them.
    LARGEST_COMPRESSED_BYTES = 64 * 1024
    # Of all batches of a smaller one.
    LARGEST_EXPANDED_BYTES = 1024 * 1024
    NO_OFFSET = -1
    NO_TIMESTAMP = -1

# Kafka's error codes that an acks=all request may still meet once it has been appended.
cdef enum:
    ERROR_NOT_LEADER = 6
    ERROR_TIMED_OUT = 7
    ERROR_TOO_FEW_IN_SYNC = 20
    ERROR_STORAGE = 56

cdef const char* NOT_LEADER = "this broker no longer leads the partition"
cdef const char* OFFLINE = "the partition is offline: its log directory has failed"
cdef const char* TOO_FEW_IN_SYNC = "the records are committed, but fewer replicas than min.insync.replicas are in sync"
cdef const char* TIMED_OUT = "the records are not safe on every in-sync replica yet"


# --- memory ---------------------------------------------------------------------------------------

cdef void produce_init(ProduceCall* call) noexcept nogil:
    memset(call, 0, sizeof(ProduceCall))


cdef void produce_clear(ProduceCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        served_release(produce_part(call, number).served)
    call.parts.count = call.appended = call.topics = 0
    call.queue = NULL


cdef void produce_release(ProduceCall* call) noexcept nogil:
    produce_clear(call)
    parts_release(&call.parts)


# --- reading and checking -------------------------------------------------------------------------

cdef ProduceOutcome check_batch(
        ServedTable* table, ProduceCall* call, const ProducePart* part, int64_t now_ms, bint in_reactor) noexcept nogil:
    cdef const Served* served = part.served
    cdef Rules rules
    cdef Accepted found
    cdef int64_t limit = served.decompressed_limit
    cdef bint fits
    cdef int16_t attributes
    cdef int codec
    if part.size < BATCH_HEADER_BYTES or part.size > served.max_message_bytes:
        return PRODUCE_UNUSUAL_BATCH
    if part.size > load(&served.partition.segment_bytes):
        return PRODUCE_UNUSUAL_BATCH
    attributes = <int16_t>be16(part.records + AT_ATTRIBUTES)
    codec = attributes & ATTRIBUTE_CODEC
    # What begins a transaction is unusual to the log; it alone knows what goes on with one.
    if attributes & ATTRIBUTE_TRANSACTIONAL and not call.has_transactional_id:
        return PRODUCE_UNUSUAL_BATCH
    if codec == CODEC_ZSTD and call.head.version < ZSTD_SINCE:
        return PRODUCE_UNUSUAL_BATCH
    if codec != 0 and in_reactor:
        if call.size > LARGEST_COMPRESSED_BYTES:
            return leave_to(table.compute, call)
        limit = min(limit, LARGEST_EXPANDED_BYTES - call.expanded_bytes)
    rules = rules_at(now_ms, served.before_max_ms, served.after_max_ms)
    rules.key_required = served.key_required
    fits = is_acceptable(part.records, part.size, &rules, limit, &found)
    if not fits and limit < served.decompressed_limit:
        return leave_to(table.compute, call)  # it may only expand to more
    if not fits:
        return PRODUCE_UNUSUAL_BATCH
    if codec != 0:
        call.expanded_bytes += found.size
    # Some clients leave a stale maximum in the header; indexes and retention rely on it.
    restamp_max_timestamp(part.records, found.max_timestamp)
    return PRODUCE_ANSWERED


cdef inline ProduceOutcome leave_to(WorkQueue* queue, ProduceCall* call) noexcept nogil:
    call.queue = queue
    return PRODUCE_BESIDE


cdef ProduceOutcome read_part(
        ServedTable* table, ProduceCall* call, const uint8_t** at, const uint8_t* end,
        const uint8_t* name, int32_t name_size, bint begins_topic, int64_t now_ms, bint in_reactor) noexcept nogil:
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    cdef const uint8_t* p = at[0]
    cdef const uint8_t* records = NULL
    cdef int32_t index = 0
    cdef int32_t size = 0
    cdef ProducePart* part
    cdef ProduceOutcome outcome
    p = read_int32(p, end, &index)
    if p != NULL:
        p = read_bytes(p, end, flexible, &records, &size)
    if p != NULL and flexible:
        p = read_no_tags(p, end)
    if p == NULL:
        return PRODUCE_UNUSUAL_FORM
    at[0] = p
    part = <ProducePart*>part_add(&call.parts, sizeof(ProducePart))
    if part == NULL:
        return PRODUCE_UNUSUAL_FORM
    progress_add(call.progress, &part.stage, call.parts.count == 1)
    part.begins_topic = begins_topic
    part.records = <uint8_t*>records
    part.size = size
    part.served = served_find(table, name, name_size, index)
    if part.served == NULL or (
            call.acks == ACKS_ALL and not load(&part.served.partition.enough_in_sync)):
        return PRODUCE_UNUSUAL_PARTITION
    if in_reactor and load(&part.served.disk.slow) > 0:
        return leave_to(part.served.disk, call)
    outcome = check_batch(table, call, part, now_ms, in_reactor)
    if outcome == PRODUCE_ANSWERED:
        part_advance(call.progress, &part.stage, FOUND_GOOD)
    return outcome


cdef ProduceOutcome produce_check(
        ServedTable* table, ProduceCall* call, const uint8_t* p, const uint8_t* end, int64_t now_ms,
        bint in_reactor) noexcept nogil:
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    cdef const uint8_t* text = NULL
    cdef int32_t size = 0
    cdef int32_t topics = 0
    cdef int32_t partitions = 0
    cdef int32_t topic
    cdef int64_t number
    cdef ProduceOutcome outcome
    call.size = end - p
    call.expanded_bytes = 0
    p = skip_client_id(p, end, flexible)
    if p != NULL:
        p = read_string(p, end, flexible, &text, &size)
    if p == NULL or size == 0 or not is_ascii(text, size):
        return PRODUCE_UNUSUAL_FORM
    call.has_transactional_id = size >= 0
    call.writer.connection = call.head.connection
    call.writer.transactional_id = text
    call.writer.transactional_id_size = max(size, 0)
    p = read_int16(p, end, &call.acks)
    if p != NULL:
        p = read_int32(p, end, &call.timeout_ms)
    if p != NULL:
        p = read_length(p, end, flexible, False, &topics)
    if p == NULL or call.acks < ACKS_ALL or call.acks > ACKS_LEADER or topics < 0:
        return PRODUCE_UNUSUAL_FORM
    call.topics = topics
    for topic in range(topics):
        p = read_string(p, end, flexible, &text, &size)
        if p != NULL:
            p = read_length(p, end, flexible, False, &partitions)
        # A topic without partitions has its place in the answer, and no part here.
        if p == NULL or size <= 0 or partitions <= 0:
            return PRODUCE_UNUSUAL_FORM
        for number in range(partitions):
            outcome = read_part(table, call, &p, end, text, size, number == 0, now_ms, in_reactor)
            if outcome != PRODUCE_ANSWERED:
                return outcome
        if flexible:
            p = read_no_tags(p, end)
            if p == NULL:
                return PRODUCE_UNUSUAL_FORM
    if flexible:
        p = read_no_tags(p, end)
    if p != end:
        return PRODUCE_UNUSUAL_FORM
    if call.parts.count == 0:
        part_advance(call.progress, &call.progress.whole, FOUND_GOOD)
    return PRODUCE_ANSWERED


cdef WorkQueue* produce_slow_disk(const ProduceCall* call) noexcept nogil:
    cdef WorkQueue* disk
    cdef int64_t number
    for number in range(call.parts.count):
        disk = produce_part(call, number).served.disk
        if load(&disk.slow) > 0:
            return disk
    return NULL


# --- appending ------------------------------------------------------------------------------------

cdef bint groups_are_written(ProduceCall* call) noexcept nogil:
    cdef ProducePart* part
    cdef bint all_are = True
    cdef int64_t number
    for number in range(call.appended):
        part = produce_part(call, number)
        if part.result.last_offset >= part.group.end_offset:
            # The offset is stamped already; a client's batch has none.
            put_int64(part.records + AT_BASE_OFFSET, 0)
            part.result.status = APPEND_WRITE_FAILED
            all_are = False
        after_append(call, part)
    return all_are


cdef void after_append(ProduceCall* call, ProducePart* part) noexcept nogil:
    cdef Partition* partition = part.served.partition
    part_advance(call.progress, &part.stage, NOT_WRITTEN if part.result.status == APPEND_WRITE_FAILED else WROTE)
    part.changes = load(&partition.changes)
    if load(&partition.log_end_offset) - load(&partition.durable_end) >= part.served.flush_messages:
        commit_ask(part.served.commits, partition)


cdef bint append_alone(ProduceCall* call, ProducePart* part, int64_t now_ms) noexcept nogil:
    cdef Partition* partition = part.served.partition
    cdef int64_t begun_us = calls().monotonic_us()
    partition_append(partition, part.records, part.size, now_ms, NULL, &call.writer, &part.result)
    # Want of room is found before anything is written, and says nothing of the disk.
    if part.result.status == APPEND_DONE or (
            part.result.status == APPEND_WRITE_FAILED and part.result.error != ENOSPC):
        work_note_time(part.served.disk, calls().monotonic_us() - begun_us)
    if part.result.status != APPEND_DONE and part.result.status != APPEND_DUPLICATE:
        put_int64(part.records + AT_BASE_OFFSET, 0)
        part_advance(call.progress, &part.stage, NOT_WRITTEN)
        return False
    if part.result.status == APPEND_DONE:  # those of groups are counted together
        traffic_received(part.served.traffic, part.result.last_offset - part.result.base_offset + 1, part.size)
    after_append(call, part)
    return True


cdef ProduceOutcome leave_rest(ProduceCall* call) noexcept nogil:
    """Python appends the other partitions, or refuses them."""
    cdef ProducePart* part
    cdef int64_t number
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage == CHECKED or part.stage == GATHERED or part.stage == ON_DISK:
            part_advance(call.progress, &part.stage, NOT_WRITTEN)
    return PRODUCE_UNUSUAL_APPEND


cdef ProduceOutcome produce_conclude(
        ProduceCall* call, int64_t now_ms, bint may_append, bint in_reactor) noexcept nogil:
    cdef ProducePart* part
    cdef int64_t number
    if not groups_are_written(call):
        return leave_rest(call)
    while call.appended < call.parts.count:
        part = produce_part(call, call.appended)
        # A disk that has just become slow keeps the reactor for one write, and not for all that the request has of it.
        if not may_append or in_reactor and load(&part.served.disk.slow) > 0 or not append_alone(call, part, now_ms):
            return leave_rest(call)
        call.appended += 1
    if produce_is_settled(call):
        return PRODUCE_ANSWERED
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.served.flush_before_ack and part.stage == APPENDED:
            commit_ask(part.served.commits, part.served.partition)
    return PRODUCE_WAITS


# --- acks=all -------------------------------------------------------------------------------------

cdef void refuse(ProduceCall* call, ProducePart* part, Event event, int16_t error, const char* message) noexcept nogil:
    part_advance(call.progress, &part.stage, event)
    part.error = error
    part.message = message


cdef bint produce_is_settled(ProduceCall* call) noexcept nogil:
    cdef ProducePart* part
    cdef AckStatus status
    cdef bint all_settled = True
    cdef int64_t number
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage != APPENDED:
            continue
        status = ACK_SAFE
        if call.acks == ACKS_ALL:
            status = partition_ack_status(
                part.served.partition, &part.result.place, part.result.last_offset, part.served.flush_before_ack)
        if status == ACK_WAITS:
            all_settled = False
        elif status == ACK_SAFE:
            part_advance(call.progress, &part.stage, IS_SAFE)
        elif status == ACK_NOT_LEADER:
            refuse(call, part, IS_LOST, ERROR_NOT_LEADER, NOT_LEADER)
        elif status == ACK_OFFLINE:
            refuse(call, part, IS_LOST, ERROR_STORAGE, OFFLINE)
        else:
            refuse(call, part, IS_LOST, ERROR_TOO_FEW_IN_SYNC, TOO_FEW_IN_SYNC)
    return all_settled


cdef bint produce_is_stale(const ProduceCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        if load_ordered(&produce_part(call, number).served.partition.changes) != produce_part(call, number).changes:
            return True
    return False


cdef void produce_expire(ProduceCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        if produce_part(call, number).stage == APPENDED:
            refuse(call, produce_part(call, number), EXPIRED, ERROR_TIMED_OUT, TIMED_OUT)


# --- the answer -----------------------------------------------------------------------------------

cdef inline int32_t message_size(const ProducePart* part) noexcept nogil:
    return -1 if part.message == NULL else <int32_t>strlen(part.message)


cdef int32_t parts_of_topic(const ProduceCall* call, int64_t first) noexcept nogil:
    cdef int64_t after = first + 1
    while after < call.parts.count and not produce_part(call, after).begins_topic:
        after += 1
    return <int32_t>(after - first)


cdef int64_t produce_answer_size(const ProduceCall* call) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= PRODUCE_FLEXIBLE_SINCE
    cdef int64_t size = 4 + 4 + 4  # length, correlation id, throttle time
    cdef int64_t each = 4 + 2 + 8 + 8
    cdef const ProducePart* part
    cdef int64_t number
    if version >= LOG_START_SINCE:
        each += 8
    if flexible:
        size += 2  # tagged fields of the header and of the answer
        each += 1
    size += length_size(call.topics, flexible)
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.begins_topic:
            size += string_size(part.served.name_size, flexible)
            size += length_size(parts_of_topic(call, number), flexible)
            if flexible:
                size += 1
        size += each
        if version >= RECORD_ERRORS_SINCE:
            size += length_size(0, flexible) + string_size(message_size(part), flexible)
    return size


cdef uint8_t* encode_part(const ProduceCall* call, const ProducePart* part, uint8_t* p) noexcept nogil:
    cdef int16_t version = call.head.version
    cdef bint flexible = version >= PRODUCE_FLEXIBLE_SINCE
    cdef bint failed = part.error != 0
    p = put_int32(p, part.served.index)
    p = put_int16(p, part.error)
    p = put_int64(p, NO_OFFSET if failed else part.result.base_offset)
    p = put_int64(p, NO_TIMESTAMP)  # topics with LogAppendTime are Python's
    if version >= LOG_START_SINCE:
        p = put_int64(p, NO_OFFSET if failed else part.result.log_start_offset)
    if version >= RECORD_ERRORS_SINCE:
        p = put_length(p, 0, flexible)
        p = put_string(p, <const uint8_t*>part.message, message_size(part), flexible)
    return put_int8(p, 0) if flexible else p


cdef void produce_encode_answer(const ProduceCall* call, uint8_t* p) noexcept nogil:
    cdef bint flexible = call.head.version >= PRODUCE_FLEXIBLE_SINCE
    cdef const ProducePart* part
    cdef int64_t number
    p = put_int32(p, <int32_t>(produce_answer_size(call) - 4))
    p = put_int32(p, call.head.correlation_id)
    if flexible:
        p = put_int8(p, 0)
    p = put_length(p, call.topics, flexible)
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.begins_topic:
            if number > 0 and flexible:
                p = put_int8(p, 0)  # tagged fields of the topic before
            p = put_string(p, served_name(part.served), part.served.name_size, flexible)
            p = put_length(p, parts_of_topic(call, number), flexible)
        p = encode_part(call, part, p)
    if flexible and call.parts.count > 0:
        p = put_int8(p, 0)
    p = put_int32(p, 0)  # throttle time
    if flexible:
        put_int8(p, 0)
