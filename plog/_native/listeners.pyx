"""Accepting connections: loop 0 does it for all loops, and gives each a part of them.

Owns the listeners, and when one is not watched for a while. The door decides who may enter.
"""

from libc.stdint cimport int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from posix.unistd cimport close

from plog._native.acceptor cimport DOOR_EXHAUSTED, DOOR_EMPTY, DOOR_REFUSED, Guest, door_admit, door_leave
from plog._native.connection cimport connection_new
from plog._native.connections cimport adopt, discard, watch
from plog._native.epoll cimport EPOLL_CTL_DEL, EPOLLIN, epoll_ctl
from plog._native.mailbox cimport mailbox_count, mailbox_put
from plog._native.notes cimport add_note, note_new, note_text
from plog._native.reactor_types cimport (
    ASK_ADOPT, EVENT_CLOSED, EVENT_OPENED, EVENT_REFUSED, REASON_BYTES, TICK_US, Command, Connection, Note, Shared)

cdef enum:
    ACCEPTS_PER_TURN = 64
    # So many events not yet taken by Python: let further clients wait in the backlog.
    NOTES_TO_STOP_ACCEPTING = 65536


cdef void note_refusal(Loop* loop, Listener* listener, const Guest* guest) noexcept nogil:
    """One note a second: a flood must not fill Python's mailbox. The count is in the statistics."""
    cdef Note* note
    cdef int64_t most = sizeof(guest.peer) + sizeof(guest.reason) + 4
    if loop.now_us < loop.next_refusal_us:
        return
    loop.next_refusal_us = loop.now_us + TICK_US
    note = note_new(EVENT_REFUSED, NULL, most)
    if note != NULL:
        note.listener_id = listener.id
        # Peer and reason in one text, apart by a NUL; `size` is where the reason starts.
        note.size = snprintf(note_text(note), most, "%s", guest.peer) + 1
        snprintf(note_text(note) + note.size, most - note.size, "%s", guest.reason)
        add_note(loop, note)


cdef void park(Loop* loop, Listener* listener) noexcept nogil:
    epoll_ctl(loop.epoll_fd, EPOLL_CTL_DEL, listener.fd, NULL)
    listener.parked = True


cdef void welcome(Loop* loop, Listener* listener) noexcept nogil:
    cdef Shared* shared = loop.shared
    cdef Guest guest
    cdef Connection* c
    cdef Command* command
    cdef Loop* owner
    cdef int outcome
    cdef int64_t id
    cdef int i
    if mailbox_count(&shared.events) > NOTES_TO_STOP_ACCEPTING:
        park(loop, listener)
        return
    for i in range(ACCEPTS_PER_TURN):
        outcome = door_admit(&shared.door, listener.fd, listener.id, listener.is_exempt, &guest)
        if outcome == DOOR_EMPTY:
            return
        if outcome == DOOR_EXHAUSTED:
            park(loop, listener)
            return
        if outcome == DOOR_REFUSED:
            note_refusal(loop, listener, &guest)
            continue
        id = shared.next_id
        shared.next_id += 1
        c = connection_new(guest.fd, id, listener.id, guest.address)
        if c == NULL:
            close(guest.fd)
            door_leave(&shared.door, listener.id, guest.address)
            continue
        c.may_be_fast = listener.may_be_fast
        c.is_exempt = listener.is_exempt
        c.is_between_brokers = listener.is_between_brokers
        c.opened = note_new(EVENT_OPENED, c, sizeof(guest.peer))
        c.closed = note_new(EVENT_CLOSED, c, REASON_BYTES)
        command = <Command*>calloc(1, sizeof(Command))
        if c.opened == NULL or c.closed == NULL or command == NULL:
            free(command)
            discard(shared, c)
            continue
        snprintf(note_text(c.opened), sizeof(guest.peer), "%s", guest.peer)
        owner = &shared.loops[id % shared.threads]
        if owner == loop:
            free(command)
            adopt(loop, c)
            continue
        command.ask = ASK_ADOPT
        command.connection = c
        if not mailbox_put(&owner.inbox, &command.letter, &command.letter, 1):
            free(command)
            discard(shared, c)


cdef void listen_on(Loop* loop, Listener* listener) noexcept nogil:
    listener.parked = not watch(loop, listener.fd, EPOLLIN, listener)


cdef void close_listeners(Loop* loop) noexcept nogil:
    cdef Listener* listener
    while loop.listeners != NULL:
        listener = loop.listeners
        loop.listeners = listener.next
        close(listener.fd)
        free(listener)
