"""A reactor's thread asks Python about the unusual partitions of a request, or gives it one whole.

Owns the note about a request. Python answers a callout by the request's own letter, as any other thread that
works on it, and responds to a request that it has whole through the loop's inbox.
"""

from plog._native.callout_reasons cimport Reason
from plog._native.connections cimport count_up
from plog._native.locks cimport load
from plog._native.notes cimport add_note, note_new
from plog._native.reactor_types cimport (
    ASK_FINISH, DONE, EVENT_CALLOUT, EVENT_REQUEST, KIND_FETCH, KIND_OTHER, KIND_PRODUCE, LATER, NO_MEMORY, Note)
from plog._native.request_line cimport line_follow, parts_advance_from, request_advance
from plog._native.request_stages cimport TURN_CAME, UNUSUAL
from plog._native.requests cimport request_count_memory, request_forget_memory, request_stop_listening


cdef void give_bytes(Request* request, Note* note) noexcept nogil:
    note.base = request.frame.base
    note.data = request.frame.data
    note.size = request.frame.size
    note.capacity = request.frame.capacity
    request.frame.base = NULL


cdef void ask_about(Request* request, Note* note) noexcept nogil:
    """The request stays here, and its partitions are Python's until its letter comes."""
    note.request = request
    request.task.ask = ASK_FINISH
    request.posted = 1
    if request.kind == KIND_PRODUCE:  # with the batches
        give_bytes(request, note)
    parts_advance_from(request, UNUSUAL, TURN_CAME)
    line_follow(&request.connection.line, request)
    request_count_memory(request)


cdef void hand_over(Request* request, Note* note) noexcept nogil:
    give_bytes(request, note)
    request_advance(&request.connection.line, request, TURN_CAME)
    request_forget_memory(request)


cdef Reason reason_of(const Request* request) noexcept nogil:
    if request.kind == KIND_PRODUCE:
        return request.produce.reason
    return request.fetch.reason if request.kind == KIND_FETCH else request.reason


cdef Done python_ask(Loop* loop, Request* request) noexcept nogil:
    cdef bint is_callout = request.kind != KIND_OTHER
    cdef Note* note
    request_stop_listening(request)
    # Its letter, which brings the answer, is still on its way about a change.
    if load(&request.posted) != 0:
        return LATER
    note = note_new(EVENT_CALLOUT if is_callout else EVENT_REQUEST, request.connection, 0)
    if note == NULL:
        return NO_MEMORY
    note.received_us = request.frame.received_us
    count_up(&loop.callouts[<int>reason_of(request)], 1)
    if not request.was_asked:
        request.was_asked = True
        count_up(&loop.asked, 1)
    if is_callout:
        ask_about(request, note)
    else:
        hand_over(request, note)
    add_note(loop, note)
    return DONE
