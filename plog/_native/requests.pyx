"""The memory of requests: from the bytes in a connection's buffer to the last letter about them.

Owns their structs, their bytes once these leave the buffer, and what both count for in the budget.
Never says what a request means, nor what happens to it next: that is `request_line`'s.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from plog._native.callout_reasons cimport REASON_NONE
from plog._native.connection cimport cut_frame, drop_frame
from plog._native.fetch_call cimport FetchPart, fetch_bytes, fetch_part
from plog._native.fetch_path cimport fetch_clear, fetch_release
from plog._native.links cimport link_remove
from plog._native.locks cimport add, exchange, store
from plog._native.partition cimport partition_remove_waiter
from plog._native.produce_call cimport ProducePart, produce_part
from plog._native.produce_path cimport produce_bytes, produce_clear, produce_release
from plog._native.reactor_types cimport KIND_FETCH, KIND_OTHER, Frame
from plog._native.request_line cimport line_put, line_remove
from plog._native.request_stages cimport progress_begin

cdef enum:
    MAX_FREE = 512
    # What a free one keeps for its next partitions.
    MAX_KEPT_PARTS = 256


cdef Request* request_new(Loop* loop, Connection* c) noexcept nogil:
    cdef Request* request = loop.free_requests
    if request != NULL:
        loop.free_requests = request.next
        loop.free_count -= 1
    else:
        request = <Request*>calloc(1, sizeof(Request))
        if request == NULL:
            return NULL
        request.loop = loop
        request.produce.progress = request.fetch.progress = &request.progress
    request.connection = c
    request.in_buffer = True
    request.frame.received_us = c.received_us
    request.produce.head.received_us = request.fetch.head.received_us = c.received_us
    request.produce.head.connection = request.fetch.head.connection = c.id
    request_set_kind(request, KIND_OTHER)
    line_put(&c.line, request)
    return request


cdef void request_set_kind(Request* request, RequestKind kind) noexcept nogil:
    request.kind = kind
    request.parts = &request.fetch.parts if kind == KIND_FETCH else &request.produce.parts
    request.part_bytes = sizeof(FetchPart) if kind == KIND_FETCH else sizeof(ProducePart)


cdef void request_forget_parts(Request* request) noexcept nogil:
    if request.kind == KIND_FETCH:
        fetch_clear(&request.fetch)
    else:
        produce_clear(&request.produce)
    progress_begin(&request.progress)


cdef bint request_cut(Request* request) noexcept nogil:
    cdef Frame* frame = &request.frame
    if cut_frame(
            request.connection, request.size, &request.loop.shared.budget, &frame.base, &frame.data, &frame.capacity) < 0:
        return False
    frame.size = request.size
    request.bytes = frame.data
    request.in_buffer = False
    return True


cdef void request_leave_buffer(Request* request) noexcept nogil:
    if request.in_buffer:
        drop_frame(request.connection, request.size)
        request.in_buffer = False


cdef bint request_copy(Request* request) noexcept nogil:
    cdef Frame* frame = &request.frame
    if frame.base != NULL:
        return True
    frame.base = malloc(request.size)
    if frame.base == NULL:
        return False
    memcpy(frame.base, request.bytes, request.size)
    frame.data = request.bytes = <uint8_t*>frame.base
    frame.size = frame.capacity = request.size
    add(&request.loop.shared.budget.frame_bytes, frame.capacity)
    return True


cdef void request_free_bytes(Request* request) noexcept nogil:
    request.bytes = NULL
    if request.frame.base != NULL:
        add(&request.loop.shared.budget.frame_bytes, -request.frame.capacity)
        free(request.frame.base)
        request.frame.base = NULL


cdef void count_as(Request* request, int64_t size) noexcept nogil:
    cdef Loop* loop = request.loop
    store(&loop.waiting, loop.waiting + (size > 0) - (request.counted_bytes > 0))
    add(&loop.shared.budget.frame_bytes, size - request.counted_bytes)
    request.counted_bytes = size


cdef void request_count_memory(Request* request) noexcept nogil:
    # Clients that let very many requests wait are to be held up as those that send large ones.
    count_as(
        request, sizeof(Request) + produce_bytes(&request.produce) + fetch_bytes(&request.fetch))


cdef void request_forget_memory(Request* request) noexcept nogil:
    if request.counted_bytes > 0:
        count_as(request, 0)


cdef void request_stop_listening(Request* request) noexcept nogil:
    cdef int64_t number
    if not request.listens:
        return
    request.listens = False
    link_remove(&request.connection.by_deadline)
    for number in range(request.produce.parts.count):
        partition_remove_waiter(&produce_part(&request.produce, number).waiter)
    for number in range(request.fetch.parts.count):
        partition_remove_waiter(&fetch_part(&request.fetch, number).waiter)


cdef void request_end(Request* request) noexcept nogil:
    cdef Loop* loop = request.loop
    request_stop_listening(request)
    request_leave_buffer(request)
    line_remove(&request.connection.line, request)
    request.connection = NULL
    request.over = True
    # From here on no letter is written, so that one that is there is the last. A thread that works on the request
    # writes one when it is done.
    if exchange(&request.posted, 1) != 0:
        return
    if (loop.free_count == MAX_FREE or request.parts.capacity > MAX_KEPT_PARTS
            or request.produce.topics.capacity > MAX_KEPT_PARTS or request.fetch.asked.capacity > MAX_KEPT_PARTS
            or request.fetch.forgotten.capacity > MAX_KEPT_PARTS):
        request_free(request)
        return
    clear(request)
    request.next = loop.free_requests
    loop.free_requests = request
    loop.free_count += 1


cdef void clear(Request* request) noexcept nogil:
    request_free_bytes(request)
    request_forget_memory(request)
    request.posted = 0
    request.over = False
    request.reason = REASON_NONE
    request.was_asked = False
    request_forget_parts(request)


cdef void request_free(Request* request) noexcept nogil:
    clear(request)
    produce_release(&request.produce)
    fetch_release(&request.fetch)
    free(request)


cdef void requests_release(Loop* loop) noexcept nogil:
    cdef Request* request = loop.free_requests
    while request != NULL:
        loop.free_requests = request.next
        request_free(request)
        request = loop.free_requests
