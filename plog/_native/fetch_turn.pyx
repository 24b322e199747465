"""What a reactor's thread does with a Fetch, step by step: read, wait for bytes, respond.

Decides which thread does the next step. `fetch_path` knows what a Fetch means, `request_line` when its turn
has come.
"""

from libc.stdint cimport int64_t, uint8_t

from plog._native.callout_reasons cimport REASON_PARTITION, REASON_READ, REASON_REQUEST, Reason
from plog._native.fetch_answer cimport fetch_answer
from plog._native.fetch_call cimport (
    FETCH_ANSWERED, FETCH_BESIDE, FETCH_UNUSUAL_FORM, FETCH_UNUSUAL_PARTITION, FETCH_WAITS, FetchOutcome)
from plog._native.fetch_path cimport fetch_read, fetch_read_slowly, fetch_serve, fetch_settle, fetch_unpin
from plog._native.files cimport calls
from plog._native.histogram cimport times_note
from plog._native.lanes cimport lane_ask, lane_post
from plog._native.locks cimport store
from plog._native.reactor_types cimport (
    DONE, NO_MEMORY, PREFIX_BYTES, Connection)
from plog._native.request cimport RequestHead, read_head
from plog._native.request_line cimport line_follow, parts_advance, request_advance
from plog._native.request_stages cimport CHANGED, EXPIRED, FOUND_COLD, FOUND_UNUSUAL, SHORT, TOO_LITTLE, WAS_READ
from plog._native.requests cimport request_count_memory, request_cut, request_leave_buffer
from plog._native.work_queue cimport Task

cdef enum:
    # A Fetch that waits keeps its bytes.
    LARGEST_WAITING_BYTES = 64 * 1024


cdef Reason reason_of(FetchOutcome outcome) noexcept nogil:
    if outcome == FETCH_UNUSUAL_FORM:
        return REASON_REQUEST
    if outcome == FETCH_UNUSUAL_PARTITION:
        return REASON_PARTITION
    return REASON_READ


cdef void note_outcome(Request* request, FetchOutcome outcome, bint may_wait) noexcept nogil:
    """Of a read: what happens to its partitions. May be called by another thread, whose the request is."""
    if outcome != FETCH_ANSWERED and outcome != FETCH_WAITS:
        request.reason = reason_of(outcome)
        parts_advance(request, FOUND_UNUSUAL)
        return
    if request.fetch.parts.count == 0:
        parts_advance(request, WAS_READ)
    if outcome == FETCH_WAITS and may_wait and request.fetch.max_wait_ms > 0:
        parts_advance(request, TOO_LITTLE)


cdef Done fetch_look_at(Loop* loop, Request* request) noexcept nogil:
    cdef Connection* c = request.connection
    cdef RequestHead* head = &request.fetch.head
    cdef const uint8_t* p
    cdef FetchOutcome outcome
    request.bytes = c.buffer + c.start + PREFIX_BYTES
    p = read_head(request.bytes, request.bytes + request.size, head)
    outcome = fetch_serve(
        request.loop.shared.served, loop.shared.sessions, &request.fetch, p, request.bytes + request.size)
    if outcome == FETCH_WAITS and request.size > LARGEST_WAITING_BYTES:
        outcome = FETCH_UNUSUAL_FORM
    if outcome == FETCH_ANSWERED:
        note_outcome(request, outcome, False)
        line_follow(&c.line, request)
        return DONE
    if not request_cut(request):
        return NO_MEMORY
    if outcome == FETCH_BESIDE:
        request_advance(&c.line, request, FOUND_COLD)
        lane_ask(request, request.fetch.queue, work_on)
        return DONE
    note_outcome(request, outcome, True)
    line_follow(&c.line, request)
    prepare_wait(request)
    return DONE


cdef void work_on(Task* task) noexcept nogil:
    """In another thread, whose the request is."""
    cdef Request* request = <Request*>task
    note_outcome(request, fetch_read_slowly(&request.fetch), True)
    lane_post(request)


cdef Done fetch_came_back(Request* request) noexcept nogil:
    line_follow(&request.connection.line, request)
    prepare_wait(request)
    return DONE


cdef void prepare_wait(Request* request) noexcept nogil:
    if request.stage != SHORT:
        return
    fetch_unpin(&request.fetch)  # segments may be deleted while it waits
    request.deadline_us = calls().monotonic_us() + 1000 * <int64_t>request.fetch.max_wait_ms
    request_count_memory(request)


cdef void fetch_look_again(Request* request, bint expired) noexcept nogil:
    parts_advance(request, EXPIRED if expired else CHANGED)
    # What wakes it has just been written.
    note_outcome(request, fetch_read(&request.fetch, True), not expired)
    line_follow(&request.connection.line, request)
    if request.stage == SHORT:
        fetch_unpin(&request.fetch)


cdef inline void count(int64_t* number) noexcept nogil:
    store(number, number[0] + 1)


cdef Done fetch_respond(Loop* loop, Request* request) noexcept nogil:
    cdef Connection* c = request.connection
    if not fetch_settle(&request.fetch):
        request.reason = REASON_READ
        if request.in_buffer and not request_cut(request):
            return NO_MEMORY
        request_advance(&c.line, request, FOUND_UNUSUAL)
        return DONE
    request_leave_buffer(request)
    if not fetch_answer(&request.fetch, c):
        return NO_MEMORY
    times_note(&loop.fetch_times, calls().monotonic_us() - request.fetch.head.received_us)
    count(&loop.responses)
    count(&loop.fetch_responses)
    return DONE
