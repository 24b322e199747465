"""The end of a connection: at once, once its responses are sent, or once its requests are appended.

Owns the order in which a connection gives back what it holds. Never decides that one must end.
"""

from libc.stdio cimport snprintf

from plog._native.acceptor cimport door_leave
from plog._native.connection cimport bytes_in_socket, connection_shut, drop_answers
from plog._native.connections cimport count_up, leave
from plog._native.epoll cimport EPOLL_CTL_DEL, epoll_ctl
from plog._native.links cimport link_append, link_remove
from plog._native.notes cimport add_note, note_new, note_text
from plog._native.produce_turn cimport write_gathered
from plog._native.reactor_types cimport EVENT_LEFT, REASON_BYTES, Note
from plog._native.request_line cimport line_has_gathered, line_owes_appends, request_advance, request_is_aside
from plog._native.request_stages cimport CLOSED
from plog._native.requests cimport request_end


cdef void write_its_requests(Loop* loop, Connection* c) noexcept nogil:
    """Requests that have come whole are appended. The stages of a broken line do not say where its requests are."""
    if line_has_gathered(&c.line) or c.line.is_broken:
        write_gathered(loop)


cdef void finish_close(Loop* loop, Connection* c, const char* reason) noexcept nogil:
    """Close now. `reason` NULL: the connection holds it."""
    cdef Note* note = c.closed
    write_its_requests(loop, c)
    if c.dead:
        return
    c.dead = True
    while c.line.first != NULL:
        if not request_is_aside(c.line.first):  # else its partitions are another thread's
            request_advance(&c.line, c.line.first, CLOSED)
        request_end(c.line.first)
    # By hand, since a process forked from this one may hold the socket, and then close alone leaves it watched.
    epoll_ctl(loop.epoll_fd, EPOLL_CTL_DEL, c.fd, NULL)
    leave(loop, c)
    link_remove(&c.by_activity)
    link_remove(&c.ready)
    link_remove(&c.waiting)
    link_remove(&c.answering)
    if loop.privileged == c:
        loop.privileged = NULL
    connection_shut(c, &loop.scratch, &loop.shared.budget)
    door_leave(&loop.shared.door, c.listener_id, c.address)
    note.abnormal = c.abnormal
    snprintf(note_text(note), REASON_BYTES, "%s", reason if reason != NULL else <const char*>c.reason)
    c.closed = NULL
    add_note(loop, note)
    count_up(&loop.closed, 1)
    c.next_in_bucket = loop.grave
    loop.grave = c


cdef void begin_close(Loop* loop, Connection* c, const char* reason) noexcept nogil:
    """Read no more, and close once the queued responses are sent. `reason` NULL: the connection holds it."""
    if reason != NULL and not c.closing:
        snprintf(c.reason, REASON_BYTES, "%s", reason)
    write_its_requests(loop, c)
    c.closing = True
    if c.first == NULL:
        finish_close(loop, c, NULL)


cdef void let_go(Loop* loop, Connection* c, const char* reason) noexcept nogil:
    cdef Note* note
    if c.gone:
        return
    if reason != NULL:
        snprintf(c.reason, REASON_BYTES, "%s", reason)
    if c.closing:  # only for its answers to be sent
        finish_close(loop, c, NULL)
        return
    # Linux keeps what came before a reset, and gives it before the error.
    c.gone = c.peer_closed = c.readable = True
    c.left_to_read = bytes_in_socket(c)
    drop_answers(c)
    note = note_new(EVENT_LEFT, c, 0)
    if note != NULL:  # else handlers wait on, in vain
        add_note(loop, note)
    link_append(&loop.ready, &c.ready)


cdef void end_stream(Loop* loop, Connection* c) noexcept nogil:
    """Close once the requests that have come whole are appended."""
    if line_owes_appends(&c.line):
        return
    if c.gone:
        begin_close(loop, c, NULL)
    else:
        begin_close(loop, c, b"closed by the peer" if c.start == c.end
                    else b"closed by the peer in the middle of a request")
