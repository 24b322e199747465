"""What a reactor's thread does with a Fetch, step by step: read, wait for bytes, respond.

Decides which thread does the next step. `fetch_path` knows what a Fetch means, `request_line` when its turn
has come.
"""

from libc.stdint cimport int64_t, uint8_t

from plog._native.connections cimport count_up
from plog._native.error_counts cimport SeenErrors, errors_begin, errors_end, errors_note
from plog._native.fetch_answer cimport fetch_answer
from plog._native.fetch_call cimport (
    FETCH_BESIDE, FETCH_MALFORMED, FETCH_NO_MEMORY, FETCH_READ, FetchCall, FetchOutcome, FetchPart,
    fetch_is_followers, fetch_part)
from plog._native.fetch_path cimport (
    fetch_is_enough, fetch_read, fetch_read_slowly, fetch_release, fetch_serve, fetch_settle, fetch_unpin)
from plog._native.files cimport calls
from plog._native.histogram cimport times_note
from plog._native.lanes cimport lane_ask, lane_post
from plog._native.notes cimport add_note, note_new
from plog._native.partition cimport Partition, partition_mark_reported, partition_retain
from plog._native.reactor_types cimport DONE, EVENT_MAY_JOIN, NO_MEMORY, PREFIX_BYTES, Connection, Note
from plog._native.request cimport read_head
from plog._native.request_line cimport line_follow, parts_advance, request_advance
from plog._native.request_stages cimport (
    CHANGED, EXPIRED, FOUND_COLD, FOUND_MALFORMED, SHORT, TOO_LITTLE, UNUSUAL, WAS_READ, parts_in)
from plog._native.requests cimport request_count_memory, request_cut, request_forget_parts, request_leave_buffer
from plog._native.work_queue cimport Task


cdef bint cut(Request* request) noexcept nogil:
    """Keep its bytes: a callout has the client id. False: no memory."""
    cdef const uint8_t* before = request.bytes
    if not request_cut(request):
        return False
    request.fetch.client_id += request.bytes - before
    return True


cdef void fetch_conclude(Request* request) noexcept nogil:
    if request.fetch.parts.count == 0:
        parts_advance(request, WAS_READ)
    elif (parts_in(&request.progress, UNUSUAL) == 0 and not fetch_is_enough(&request.fetch)
            and calls().monotonic_us() < request.deadline_us):
        parts_advance(request, TOO_LITTLE)


cdef Done fetch_look_at(Loop* loop, Request* request) noexcept nogil:
    cdef Connection* c = request.connection
    cdef FetchCall* call = &request.fetch
    cdef const uint8_t* p
    cdef FetchOutcome outcome
    request.bytes = c.buffer + c.start + PREFIX_BYTES
    call.is_between_brokers = c.is_between_brokers
    p = read_head(request.bytes, request.bytes + request.size, &call.head)
    outcome = fetch_serve(loop.shared.served, loop.shared.sessions, call, p, request.bytes + request.size)
    tell_joiners(loop, c, call)
    if outcome == FETCH_NO_MEMORY:
        return NO_MEMORY
    if outcome == FETCH_MALFORMED:
        request_leave_buffer(request)
        request_forget_parts(request)
        fetch_release(call)
        request_advance(&c.line, request, FOUND_MALFORMED)
        return DONE
    if outcome == FETCH_READ and parts_in(&request.progress, UNUSUAL) == 0 and fetch_is_enough(call):
        fetch_conclude(request)
        line_follow(&c.line, request)
        return DONE
    if not cut(request):
        return NO_MEMORY
    request.deadline_us = calls().monotonic_us() + 1000 * <int64_t>max(call.max_wait_ms, 0)
    if outcome == FETCH_BESIDE:
        request_advance(&c.line, request, FOUND_COLD)
        lane_ask(request, call.queue, work_on)
        return DONE
    fetch_conclude(request)
    request_count_memory(request)
    return fetch_came_back(request)


cdef void tell_joiners(Loop* loop, Connection* c, FetchCall* call) noexcept nogil:
    """Note for Python which partitions the follower may join: once for each, until Python has taken that."""
    cdef FetchPart* part
    cdef Partition* partition
    cdef Note* note
    cdef int64_t number
    for number in range(call.parts.count if fetch_is_followers(call) else 0):
        part = fetch_part(call, number)
        if not part.may_join:
            continue
        part.may_join = False
        partition = part.served.partition
        if not partition_mark_reported(partition, call.replica_id, True):
            continue
        note = note_new(EVENT_MAY_JOIN, c, 0)
        if note == NULL:
            partition_mark_reported(partition, call.replica_id, False)  # its next fetch will do
            continue
        partition_retain(partition)
        note.partition = partition
        note.broker_id = call.replica_id
        add_note(loop, note)


cdef void work_on(Task* task) noexcept nogil:
    """In another thread, whose the request is."""
    cdef Request* request = <Request*>task
    fetch_read_slowly(&request.fetch)
    fetch_conclude(request)
    lane_post(request)


cdef Done fetch_came_back(Request* request) noexcept nogil:
    line_follow(&request.connection.line, request)
    if request.stage == SHORT:
        fetch_unpin(&request.fetch)  # segments may be deleted while it waits
        request_count_memory(request)
    return DONE


cdef void fetch_look_again(Request* request, bint expired) noexcept nogil:
    parts_advance(request, EXPIRED if expired else CHANGED)
    # What wakes it has just been written.
    fetch_read(&request.fetch, True)
    fetch_conclude(request)
    fetch_came_back(request)


cdef void count_errors(Loop* loop, const FetchCall* call) noexcept nogil:
    cdef SeenErrors seen
    cdef int64_t number
    errors_begin(&seen)
    errors_note(&loop.fetch_errors, &seen, call.error)
    if call.error == 0:
        for number in range(call.parts.count):
            if fetch_part(call, number).is_named:
                errors_note(&loop.fetch_errors, &seen, fetch_part(call, number).error)
    errors_end(&loop.fetch_errors, &seen)


cdef Done fetch_respond(Loop* loop, Request* request) noexcept nogil:
    cdef FetchCall* call = &request.fetch
    fetch_settle(call)
    request_leave_buffer(request)
    if not fetch_answer(call, request.connection):
        return NO_MEMORY
    times_note(&loop.fetch_asked_times if request.was_asked else &loop.fetch_times,
               calls().monotonic_us() - call.head.received_us)
    count_up(&loop.responses, 1)
    count_errors(loop, call)
    return DONE
