"""A reactor's thread asks Python about the unusual partitions of a Produce, or gives it a request whole.

Owns the note about a request. Python answers a callout by the request's own letter, as any other thread that
works on it, and responds to a request that it has whole through the loop's inbox.
"""

from plog._native.callout_reasons cimport Reason
from plog._native.connections cimport count_up
from plog._native.fetch_path cimport fetch_unpin
from plog._native.notes cimport add_note, note_new
from plog._native.reactor_types cimport (
    ASK_FINISH, DONE, EVENT_CALLOUT, EVENT_REQUEST, KIND_PRODUCE, NO_MEMORY, Note)
from plog._native.request_line cimport line_follow, parts_advance_from, request_advance
from plog._native.request_stages cimport TURN_CAME, UNUSUAL
from plog._native.requests cimport request_count_memory, request_forget_memory, request_stop_listening


cdef void ask_about(Request* request, Note* note) noexcept nogil:
    """The request stays here, and its partitions are Python's until its letter comes."""
    note.request = request
    request.task.ask = ASK_FINISH
    request.posted = 1
    parts_advance_from(request, UNUSUAL, TURN_CAME)
    line_follow(&request.connection.line, request)
    request_count_memory(request)


cdef void hand_over(Request* request, Note* note) noexcept nogil:
    if request.fetch.session != NULL:  # lest Python counts the request in its session once more
        note.session_id = request.fetch.session.id
        note.session_epoch = request.fetch.session_until
    fetch_unpin(&request.fetch)
    request_advance(&request.connection.line, request, TURN_CAME)
    request_forget_memory(request)


cdef Done python_ask(Loop* loop, Request* request) noexcept nogil:
    cdef bint is_callout = request.kind == KIND_PRODUCE
    cdef Reason reason = request.produce.reason if is_callout else request.reason
    cdef Note* note = note_new(EVENT_CALLOUT if is_callout else EVENT_REQUEST, request.connection, 0)
    if note == NULL:
        return NO_MEMORY
    # Its bytes are Python's in any case.
    note.base = request.frame.base
    note.data = request.frame.data
    note.size = request.frame.size
    note.capacity = request.frame.capacity
    note.received_us = request.frame.received_us
    request.frame.base = NULL
    request_stop_listening(request)
    if is_callout:
        ask_about(request, note)
    else:
        hand_over(request, note)
    count_up(&loop.callouts[<int>reason], 1)
    add_note(loop, note)
    return DONE
