"""A reactor's thread gives Python a request: its bytes, and the outcomes of the partitions that are done.

Owns the note about a request. Python responds through the loop's inbox.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from plog._native.connections cimport count_up
from plog._native.fetch_path cimport fetch_unpin
from plog._native.log_append cimport AppendResult
from plog._native.notes cimport add_note, note_new
from plog._native.produce_path cimport ProduceCall, produce_part
from plog._native.reactor_types cimport DONE, EVENT_REQUEST, NO_MEMORY, Note
from plog._native.request_line cimport request_advance
from plog._native.request_stages cimport TURN_CAME
from plog._native.requests cimport request_forget_memory, request_stop_listening


cdef bint note_appended(Note* note, const ProduceCall* call) noexcept nogil:
    """Python must not append again the partitions that are appended. False: no memory."""
    cdef int64_t number
    if call.appended == 0:
        return True
    note.appended = <AppendResult*>malloc(call.appended * sizeof(AppendResult))
    if note.appended == NULL:
        return False
    for number in range(call.appended):
        note.appended[number] = produce_part(call, number).result
    note.appended_count = call.appended
    return True


cdef Done python_ask(Loop* loop, Request* request) noexcept nogil:
    """Give it the request's bytes, and the outcomes of the partitions that are done."""
    cdef Note* note = note_new(EVENT_REQUEST, request.connection, 0)
    if note == NULL or not note_appended(note, &request.produce):
        free(note)
        return NO_MEMORY
    note.base = request.frame.base
    note.data = request.frame.data
    note.size = request.frame.size
    note.capacity = request.frame.capacity
    note.received_us = request.frame.received_us
    request.frame.base = NULL
    if request.fetch.session != NULL:  # lest Python counts the request in its session once more
        note.session_id = request.fetch.session.id
        note.session_epoch = request.fetch.session_until
    fetch_unpin(&request.fetch)
    request_stop_listening(request)
    request_forget_memory(request)
    add_note(loop, note)
    count_up(&loop.passed[request.passed], 1)
    request_advance(&request.connection.line, request, TURN_CAME)
    return DONE
