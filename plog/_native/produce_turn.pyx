"""What a reactor's thread does with a Produce, step by step: check, take in, conclude, respond.

Decides which thread does the next step. `produce_path` knows what a Produce means, `request_line` when
its turn has come.
"""

from libc.stdint cimport int64_t, uint8_t

from plog._native.connection cimport let_go_of_buffers
from plog._native.connections cimport count_up, give_up
from plog._native.error_counts cimport SeenErrors, errors_begin, errors_end, errors_note
from plog._native.files cimport calls
from plog._native.gather cimport gather_add, gather_clear, gather_write
from plog._native.histogram cimport times_note
from plog._native.lanes cimport lane_ask, lane_post
from plog._native.links cimport link_append
from plog._native.produce_answer cimport produce_answer
from plog._native.produce_call cimport ACKS_NONE, ProduceCall, produce_part
from plog._native.produce_path cimport (
    PRODUCE_BESIDE, PRODUCE_CHECKED, PRODUCE_MALFORMED, ProduceOutcome, produce_check, produce_conclude,
    produce_expire, produce_move, produce_release, produce_settle, produce_slow_disk)
from plog._native.reactor_types cimport (
    DONE, NO_MEMORY, PREFIX_BYTES, WRITE_FIRST, Connection, Gather, Line)
from plog._native.request cimport RequestHead, read_head
from plog._native.request_line cimport (
    line_count, line_follow, line_is_passed, parts_advance, parts_advance_from, request_advance)
from plog._native.request_stages cimport (
    APPENDED, CHECKED, FOUND_COLD, FOUND_LONG, FOUND_MALFORMED, GATHERED, IS_SAFE, ON_DISK, REFUSED, UNUSUAL, WROTE, parts_in)
from plog._native.requests cimport (
    request_copy, request_count_memory, request_cut, request_forget_parts, request_free_bytes,
    request_leave_buffer)
from plog._native.work_queue cimport Task, WorkQueue


# --- checking -------------------------------------------------------------------------------------

cdef ProduceOutcome check(Request* request, bint in_reactor) noexcept nogil:
    cdef const uint8_t* end = request.bytes + request.size
    cdef RequestHead* head = &request.produce.head
    cdef const uint8_t* p = read_head(request.bytes, end, head)
    cdef ProduceOutcome outcome = produce_check(
        request.loop.shared.served, &request.produce, p, end, calls().now_ms(), in_reactor)
    if outcome == PRODUCE_MALFORMED:
        request_forget_parts(request)
        produce_release(&request.produce)
        parts_advance(request, FOUND_MALFORMED)
    return outcome


cdef Done leave_to(Request* request, WorkQueue* queue) noexcept nogil:
    """Another thread reads it again from its first byte."""
    request_forget_parts(request)
    if not request_cut(request):
        return NO_MEMORY
    request_advance(
        &request.connection.line, request, FOUND_LONG if queue == request.loop.shared.served.compute else FOUND_COLD)
    lane_ask(request, queue, work_on)
    return DONE


cdef bint cut(Request* request) noexcept nogil:
    """Keep its bytes, which its partitions look at. False: no memory."""
    cdef const uint8_t* before = request.bytes
    if not request_cut(request):
        return False
    produce_move(&request.produce, request.bytes - before)
    return True


cdef Done produce_look_aside(Request* request) noexcept nogil:
    return leave_to(request, request.loop.shared.served.compute)


cdef Done produce_look_at(Loop* loop, Request* request) noexcept nogil:
    cdef Connection* c = request.connection
    cdef ProduceOutcome outcome
    request.bytes = c.buffer + c.start + PREFIX_BYTES
    outcome = check(request, True)
    if outcome == PRODUCE_BESIDE and line_count(&c.line, GATHERED) > 0:
        request_forget_parts(request)  # the disk's thread must not append it before them
        return WRITE_FIRST
    if outcome == PRODUCE_BESIDE:
        return leave_to(request, request.produce.queue)
    if parts_in(&request.progress, UNUSUAL) == 0:
        request_leave_buffer(request)
    elif not cut(request):
        return NO_MEMORY
    # The next request need not wait for this one: writes and flushes are shared, and so is the time they take.
    if parts_in(&request.progress, CHECKED) > 0:
        gather_add(&loop.gather, request, calls().now_ms())
    line_follow(&c.line, request)
    if request.stage == UNUSUAL:
        request_count_memory(request)
    return DONE


cdef void work_on(Task* task) noexcept nogil:
    """In another thread, whose the request is."""
    cdef Request* request = <Request*>task
    cdef bint appends = request.stage == ON_DISK
    cdef ProduceOutcome outcome = PRODUCE_CHECKED
    if request.produce.parts.count == 0:  # else it was checked, and then found its disk slow
        outcome = check(request, False)
    # A compute thread must not meet a disk, or all directories would wait for it.
    if appends and outcome == PRODUCE_CHECKED:
        produce_conclude(&request.produce, calls().now_ms(), True, False)
    lane_post(request)


# --- appending ------------------------------------------------------------------------------------

cdef Done produce_take_in(Loop* loop, Request* request) noexcept nogil:
    cdef Line* line = &request.connection.line
    cdef WorkQueue* disk = produce_slow_disk(&request.produce)
    if disk == NULL:
        gather_add(&loop.gather, request, calls().now_ms())
        line_follow(line, request)
        return DONE
    if line_count(line, GATHERED) > 0:
        return WRITE_FIRST
    parts_advance_from(request, CHECKED, FOUND_COLD)
    line_follow(line, request)
    lane_ask(request, disk, work_on)
    return DONE


cdef Done conclude(Request* request, int64_t now_ms) noexcept nogil:
    cdef Line* line = &request.connection.line
    produce_conclude(&request.produce, now_ms, line_is_passed(line, request), True)
    if request.produce.parts.count == 0:
        parts_advance(request, WROTE)
        parts_advance(request, IS_SAFE)
    line_follow(line, request)
    return settle_bytes(request)


cdef void write_gathered(Loop* loop) noexcept nogil:
    cdef Gather* gather = &loop.gather
    cdef Request* request
    cdef int64_t now_ms
    cdef int64_t number
    if gather.request_count == 0:
        return
    gather_write(gather)
    now_ms = calls().now_ms()
    for number in range(gather.request_count):
        request = gather.requests[number]
        link_append(&loop.answering, &request.connection.answering)
        if conclude(request, now_ms) == NO_MEMORY:
            give_up(loop, request.connection, b"out of memory for a request")
    gather_clear(gather)
    let_go_of_buffers(&loop.scratch, &loop.shared.budget)


cdef Done produce_came_back(Request* request) noexcept nogil:
    line_follow(&request.connection.line, request)
    return DONE if request.stage == CHECKED else settle_bytes(request)


cdef Done settle_bytes(Request* request) noexcept nogil:
    """Keep its bytes for Python alone."""
    cdef const uint8_t* before = request.bytes
    if request.stage != UNUSUAL:
        request_free_bytes(request)
    elif not request_copy(request):
        return NO_MEMORY
    else:
        produce_move(&request.produce, request.bytes - before)
    request.deadline_us = calls().monotonic_us() + 1000 * <int64_t>max(request.produce.timeout_ms, 0)
    if request.stage < REFUSED or request.connection.line.first != request:
        request_count_memory(request)
    return DONE


cdef void produce_look_again(Request* request, bint expired) noexcept nogil:
    produce_settle(&request.produce)
    if expired and parts_in(&request.progress, APPENDED) > 0:
        produce_expire(&request.produce)
    line_follow(&request.connection.line, request)


# --- the response ---------------------------------------------------------------------------------

cdef void count_errors(Loop* loop, const ProduceCall* call) noexcept nogil:
    cdef SeenErrors seen
    cdef int64_t number
    errors_begin(&seen)
    for number in range(call.parts.count):
        errors_note(&loop.produce_errors, &seen, produce_part(call, number).error)
    errors_end(&loop.produce_errors, &seen)


cdef Done produce_respond(Loop* loop, Request* request) noexcept nogil:
    cdef ProduceCall* call = &request.produce
    times_note(&loop.produce_asked_times if request.was_asked else &loop.produce_times,
               calls().monotonic_us() - call.head.received_us)
    if call.acks == ACKS_NONE:
        return DONE
    if not produce_answer(call, request.connection):
        return NO_MEMORY
    count_up(&loop.responses, 1)
    count_errors(loop, call)
    return DONE
