"""Produce: which batches may be appended as they are, the append, and the wait for their safety.

Owns what an ordinary partition of a Produce is. Python decides about every other one, and about
those whose append is not ordinary; the rest of the request goes on without it. The rules of a batch
are the validation's, those of a log the partition's. The only refusal here is that of records that are lost,
or not safe in time, while acks=all waits.
"""

from libc.errno cimport ENOSPC
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strlen

from plog._native.batch_fields cimport (
    AT_ATTRIBUTES, AT_BASE_OFFSET, AT_MAGIC, ATTRIBUTE_CODEC, ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER_BYTES,
    restamp_max_timestamp)
from plog._native.callout_reasons cimport (
    REASON_APPEND, REASON_BATCH, REASON_NONE, REASON_PARTITION, REASON_REQUEST, Reason)
from plog._native.files cimport calls
from plog._native.locks cimport load, load_ordered
from plog._native.log_append cimport APPEND_DONE, APPEND_DUPLICATE, APPEND_WRITE_FAILED, partition_append
from plog._native.log_flush cimport commit_ask
from plog._native.part_list cimport parts_release
from plog._native.partition cimport (
    ACK_NOT_LEADER, ACK_OFFLINE, ACK_SAFE, ACK_WAITS, AckStatus, Partition, partition_ack_status)
from plog._native.produce_call cimport ACKS_ALL, ACKS_LEADER, MOST_PYTHONS, ProduceTopic, produce_part, produce_topic
from plog._native.produce_request cimport produce_read_request
from plog._native.produce_rules cimport Accepted, Rules, is_acceptable, rules_at
from plog._native.request_stages cimport (
    APPENDED, CHECKED, EXPIRED, FOUND_GOOD, FOUND_UNUSUAL, GATHERED, IS_LOST, IS_SAFE, NOT_WRITTEN,
    ON_DISK, WROTE, Event, part_advance)
from plog._native.response_fields cimport NO_OFFSET, NO_TEXT, NO_TIMESTAMP, texts_release
from plog._native.served cimport Served, served_find, served_name, served_release, served_retain
from plog._native.topic_traffic cimport traffic_received
from plog._native.wire cimport be16, put_int64
from plog._native.work_queue cimport work_note_time

cdef enum:
    CODEC_ZSTD = 4
    ZSTD_SINCE = 7
    OLDEST_MAGIC = 2
    # Larger requests are expanded beside the reactor: several at once, and no other connection waits for them.
    LARGEST_COMPRESSED_BYTES = 64 * 1024
    # Of all batches of a smaller one.
    LARGEST_EXPANDED_BYTES = 1024 * 1024

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

cdef void produce_clear(ProduceCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        served_release(produce_part(call, number).served)
    for number in range(call.topics.count):
        served_release(produce_topic(call, number).named_by)
    free(call.names)
    texts_release(&call.texts)
    call.names = NULL
    call.names_bytes = 0
    call.python_count = 0
    call.parts.count = call.topics.count = 0
    call.queue = NULL


cdef void produce_release(ProduceCall* call) noexcept nogil:
    produce_clear(call)
    parts_release(&call.parts)
    parts_release(&call.topics)


cdef bint keep_names(ProduceCall* call) noexcept nogil:
    """Those of topics that are not served, for the response, after the frame has gone. False: no memory."""
    cdef ProduceTopic* topic
    cdef uint8_t* at
    cdef int64_t number
    for number in range(call.topics.count):
        topic = produce_topic(call, number)
        if topic.named_by == NULL:
            call.names_bytes += topic.name_size
    if call.names_bytes == 0:
        return True
    call.names = at = <uint8_t*>malloc(call.names_bytes)
    if at == NULL:
        return False
    for number in range(call.topics.count):
        topic = produce_topic(call, number)
        if topic.named_by == NULL:
            memcpy(at, topic.name, topic.name_size)
            topic.name = at
            at += topic.name_size
    return True


cdef int64_t produce_bytes(const ProduceCall* call) noexcept nogil:
    return (call.parts.capacity * sizeof(ProducePart) + call.topics.capacity * sizeof(ProduceTopic)
            + call.names_bytes + call.texts.bytes)


cdef void produce_move(ProduceCall* call, int64_t by) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        produce_part(call, number).records += by
    call.writer.transactional_id += by
    call.client_id += by


# --- checking -------------------------------------------------------------------------------------

cdef inline ProduceOutcome leave_to(WorkQueue* queue, ProduceCall* call) noexcept nogil:
    call.queue = queue
    return PRODUCE_BESIDE


cdef bint follows_pythons(const ProduceCall* call, const ProducePart* part) noexcept nogil:
    cdef int32_t number
    for number in range(min(call.python_count, <int32_t>MOST_PYTHONS)):
        if call.pythons[number] == part.served.partition:
            return True
    return call.python_count > MOST_PYTHONS


cdef void leave_to_python(ProduceCall* call, ProducePart* part, Event event, Reason why) noexcept nogil:
    part_advance(call.progress, &part.stage, event)
    if part.served != NULL and not follows_pythons(call, part):
        if call.python_count < MOST_PYTHONS:
            call.pythons[call.python_count] = part.served.partition
        call.python_count += 1
    if call.reason == REASON_NONE:
        call.reason = why


cdef inline bint is_transactional(const ProducePart* part) noexcept nogil:
    """By what the batch says; nothing of it has been checked. Older formats have a time in that place."""
    return (part.size > AT_ATTRIBUTES + 1 and part.records[AT_MAGIC] >= OLDEST_MAGIC
            and be16(part.records + AT_ATTRIBUTES) & ATTRIBUTE_TRANSACTIONAL != 0)


cdef bint find_partitions(ServedTable* table, ProduceCall* call, bint* is_for_python) noexcept nogil:
    """Look all of them up. Transactions need a transactional id, and acks a value that there is, or Python refuses all.

    False: no memory.
    """
    cdef ProduceTopic* topic
    cdef ProducePart* part
    cdef int64_t number
    is_for_python[0] = call.acks < ACKS_ALL or call.acks > ACKS_LEADER
    for number in range(call.parts.count):
        part = produce_part(call, number)
        topic = produce_topic(call, part.topic)
        part.served = served_find(table, topic.name, topic.name_size, part.index)
        if part.served != NULL and topic.named_by == NULL:
            served_retain(part.served)
            topic.named_by = part.served
            topic.name = served_name(part.served)
        if call.writer.transactional_id_size == NO_TEXT and is_transactional(part):
            is_for_python[0] = True
    return keep_names(call)


cdef ProduceOutcome check_batch(
        ServedTable* table, ProduceCall* call, ProducePart* part, int64_t now_ms, bint in_reactor) noexcept nogil:
    cdef const Served* served = part.served
    cdef Rules rules
    cdef Accepted found
    cdef int64_t limit = served.decompressed_limit
    cdef bint fits
    cdef int codec
    if (part.size < BATCH_HEADER_BYTES or part.size > served.max_message_bytes
            or part.size > load(&served.partition.segment_bytes)):
        leave_to_python(call, part, FOUND_UNUSUAL, REASON_BATCH)
        return PRODUCE_CHECKED
    codec = be16(part.records + AT_ATTRIBUTES) & ATTRIBUTE_CODEC
    if codec == CODEC_ZSTD and call.head.version < ZSTD_SINCE:
        leave_to_python(call, part, FOUND_UNUSUAL, REASON_BATCH)
        return PRODUCE_CHECKED
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
        leave_to_python(call, part, FOUND_UNUSUAL, REASON_BATCH)
        return PRODUCE_CHECKED
    if codec != 0:
        call.expanded_bytes += found.size
    # Some clients leave a stale maximum in the header; indexes and retention rely on it.
    restamp_max_timestamp(part.records, found.max_timestamp)
    part_advance(call.progress, &part.stage, FOUND_GOOD)
    return PRODUCE_CHECKED


cdef ProduceOutcome check_part(
        ServedTable* table, ProduceCall* call, ProducePart* part, int64_t now_ms, bint in_reactor) noexcept nogil:
    if part.served == NULL or part.served.produce_is_pythons or (
            call.acks == ACKS_ALL and not load(&part.served.partition.enough_in_sync)):
        leave_to_python(call, part, FOUND_UNUSUAL, REASON_PARTITION)
        return PRODUCE_CHECKED
    if in_reactor and load(&part.served.disk.slow) > 0:
        return leave_to(part.served.disk, call)
    return check_batch(table, call, part, now_ms, in_reactor)


cdef ProduceOutcome produce_check(
        ServedTable* table, ProduceCall* call, const uint8_t* p, const uint8_t* end, int64_t now_ms,
        bint in_reactor) noexcept nogil:
    cdef ProduceOutcome outcome
    cdef bint is_for_python = False
    cdef int64_t number
    call.expanded_bytes = 0
    call.reason = REASON_NONE
    if not produce_read_request(call, p, end):
        return PRODUCE_MALFORMED
    if not find_partitions(table, call, &is_for_python):
        call.fault = b"there is no memory for its topics"
        return PRODUCE_MALFORMED
    for number in range(call.parts.count):
        if is_for_python:
            leave_to_python(call, produce_part(call, number), FOUND_UNUSUAL, REASON_REQUEST)
            continue
        outcome = check_part(table, call, produce_part(call, number), now_ms, in_reactor)
        if outcome != PRODUCE_CHECKED:
            return outcome
    if call.parts.count == 0:
        part_advance(call.progress, &call.progress.whole, FOUND_GOOD)
    return PRODUCE_CHECKED


cdef WorkQueue* produce_slow_disk(const ProduceCall* call) noexcept nogil:
    cdef const ProducePart* part
    cdef int64_t number
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage == CHECKED and load(&part.served.disk.slow) > 0:
            return part.served.disk
    return NULL


# --- appending ------------------------------------------------------------------------------------

cdef void after_append(ProducePart* part) noexcept nogil:
    cdef Partition* partition = part.served.partition
    part.changes = load(&partition.changes)
    if load(&partition.log_end_offset) - load(&partition.durable_end) >= part.served.flush_messages:
        commit_ask(part.served.commits, partition)


cdef void conclude_groups(ProduceCall* call) noexcept nogil:
    cdef ProducePart* part
    cdef int64_t number
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage != GATHERED or part.group == NULL:
            continue
        if part.result.last_offset < part.group.end_offset:
            part_advance(call.progress, &part.stage, WROTE)
            after_append(part)
            continue
        # The offset is stamped already; a client's batch has none.
        put_int64(part.records + AT_BASE_OFFSET, 0)
        part.result.status = APPEND_WRITE_FAILED
        leave_to_python(call, part, NOT_WRITTEN, REASON_APPEND)


cdef void append_alone(ProduceCall* call, ProducePart* part, int64_t now_ms) noexcept nogil:
    cdef Partition* partition = part.served.partition
    cdef int64_t begun_us = calls().monotonic_us()
    partition_append(partition, part.records, part.size, now_ms, NULL, &call.writer, &part.result)
    # Want of room is found before anything is written, and says nothing of the disk.
    if part.result.status == APPEND_DONE or (
            part.result.status == APPEND_WRITE_FAILED and part.result.error != ENOSPC):
        work_note_time(part.served.disk, calls().monotonic_us() - begun_us)
    if part.result.status != APPEND_DONE and part.result.status != APPEND_DUPLICATE:
        put_int64(part.records + AT_BASE_OFFSET, 0)
        leave_to_python(call, part, NOT_WRITTEN, REASON_APPEND)
        return
    if part.result.status == APPEND_DONE:  # those of groups are counted together
        traffic_received(part.served.traffic, part.result.last_offset - part.result.base_offset + 1, part.size)
    part_advance(call.progress, &part.stage, WROTE)
    after_append(part)


cdef void produce_conclude(ProduceCall* call, int64_t now_ms, bint may_append, bint in_reactor) noexcept nogil:
    cdef ProducePart* part
    cdef int64_t number
    conclude_groups(call)
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage != GATHERED and part.stage != ON_DISK and part.stage != CHECKED:
            continue
        # A disk that has just become slow keeps the reactor for one write, and not for all that the request has of it.
        if not may_append or in_reactor and load(&part.served.disk.slow) > 0 or follows_pythons(call, part):
            leave_to_python(call, part, NOT_WRITTEN, REASON_APPEND)
        else:
            append_alone(call, part, now_ms)
    produce_begin_wait(call)


cdef void produce_was_written(
        ServedTable* table, ProduceCall* call, ProducePart* part, const AppendResult* result) noexcept nogil:
    cdef const ProduceTopic* topic = produce_topic(call, part.topic)
    part.result = result[0]
    part_advance(call.progress, &part.stage, WROTE)
    # It may be served by now, or by another log.
    if part.served == NULL or part.served.partition.log_id != result.place.log_id:
        served_release(part.served)
        part.served = served_find(table, topic.name, topic.name_size, part.index)
    if part.served != NULL:
        part.changes = load(&part.served.partition.changes)


# --- acks=all -------------------------------------------------------------------------------------

cdef void refuse(ProduceCall* call, ProducePart* part, Event event, int16_t error, const char* message) noexcept nogil:
    part_advance(call.progress, &part.stage, event)
    part.error = error
    part.message = <const uint8_t*>message
    part.message_size = <int32_t>strlen(message)
    part.result.base_offset = part.result.log_start_offset = NO_OFFSET
    part.append_time = NO_TIMESTAMP


cdef void settle_part(ProduceCall* call, ProducePart* part) noexcept nogil:
    cdef AckStatus status = ACK_SAFE
    if call.acks == ACKS_ALL and part.served == NULL:
        status = ACK_NOT_LEADER
    elif call.acks == ACKS_ALL:
        status = partition_ack_status(
            part.served.partition, &part.result.place, part.result.last_offset, part.served.flush_before_ack)
    if status == ACK_SAFE:
        part_advance(call.progress, &part.stage, IS_SAFE)
    elif status == ACK_NOT_LEADER:
        refuse(call, part, IS_LOST, ERROR_NOT_LEADER, NOT_LEADER)
    elif status == ACK_OFFLINE:
        refuse(call, part, IS_LOST, ERROR_STORAGE, OFFLINE)
    elif status != ACK_WAITS:
        refuse(call, part, IS_LOST, ERROR_TOO_FEW_IN_SYNC, TOO_FEW_IN_SYNC)


cdef void produce_settle(ProduceCall* call) noexcept nogil:
    cdef ProducePart* part
    cdef int64_t number
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage == APPENDED:
            settle_part(call, part)


cdef void produce_begin_wait(ProduceCall* call) noexcept nogil:
    cdef const ProducePart* part
    cdef int64_t number
    produce_settle(call)
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage == APPENDED and part.served.flush_before_ack:
            commit_ask(part.served.commits, part.served.partition)


cdef bint produce_is_stale(const ProduceCall* call) noexcept nogil:
    cdef const ProducePart* part
    cdef int64_t number
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage == APPENDED and load_ordered(&part.served.partition.changes) != part.changes:
            return True
    return False


cdef void produce_expire(ProduceCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        if produce_part(call, number).stage == APPENDED:
            refuse(call, produce_part(call, number), EXPIRED, ERROR_TIMED_OUT, TIMED_OUT)
