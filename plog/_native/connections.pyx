"""The connections of one loop: by id, and by when they were last active.

Owns the table and the times of activity. Never closes a connection that a loop owns.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free

from plog._native.acceptor cimport door_leave
from plog._native.connection cimport connection_shut
from plog._native.epoll cimport EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, epoll_ctl, epoll_event
from plog._native.links cimport link_append
from plog._native.locks cimport add as atomic_add
from plog._native.memory_waits cimport COMES_ON_BYTES
from plog._native.notes cimport add_note, note_free
from plog._native.reactor_types cimport REASON_BYTES, SOURCE_CONNECTION


# --- by id ----------------------------------------------------------------------------------------

cdef inline Connection** bucket_of(Loop* loop, int64_t id) noexcept nogil:
    # Ids go round robin over the loops, so within one loop these are consecutive.
    return &loop.buckets[(id // loop.shared.threads) & (loop.bucket_count - 1)]


cdef Connection* find(Loop* loop, int64_t id) noexcept nogil:
    cdef Connection* c = bucket_of(loop, id)[0]
    while c != NULL and c.id != id:
        c = c.next_in_bucket
    return c


cdef void enter(Loop* loop, Connection* c) noexcept nogil:
    cdef Connection** at
    cdef Connection** old = loop.buckets
    cdef int64_t old_count = loop.bucket_count
    cdef Connection** fresh
    cdef Connection* moved
    cdef Connection* next_moved
    cdef int64_t i
    if loop.connections >= old_count:
        fresh = <Connection**>calloc(2 * old_count, sizeof(Connection*))
        if fresh != NULL:  # else the chains grow longer
            loop.buckets = fresh
            loop.bucket_count = 2 * old_count
            for i in range(old_count):
                moved = old[i]
                while moved != NULL:
                    next_moved = moved.next_in_bucket
                    at = bucket_of(loop, moved.id)
                    moved.next_in_bucket = at[0]
                    at[0] = moved
                    moved = next_moved
            free(old)
    at = bucket_of(loop, c.id)
    c.next_in_bucket = at[0]
    at[0] = c
    loop.connections += 1


cdef void leave(Loop* loop, Connection* c) noexcept nogil:
    cdef Connection** at = bucket_of(loop, c.id)
    while at[0] != c:
        at = &at[0].next_in_bucket
    at[0] = c.next_in_bucket
    loop.connections -= 1


cdef void give_up(Loop* loop, Connection* c, const char* reason) noexcept nogil:
    c.closing = c.abnormal = True
    snprintf(c.reason, REASON_BYTES, "%s", reason)
    link_append(&loop.answering, &c.answering)


# --- by activity ----------------------------------------------------------------------------------

cdef void note_passing(Loop* loop, Connection* c) noexcept nogil:
    c.active_us = loop.now_us
    link_append(&loop.by_activity, &c.by_activity)


cdef void touch(Loop* loop, Connection* c) noexcept nogil:
    note_passing(loop, c)
    c.came_on_us = loop.now_us
    c.slow_bytes = 0


cdef void note_received(Loop* loop, Connection* c, int64_t size) noexcept nogil:
    c.received_us = loop.now_us
    c.slow_bytes += size
    if c.slow_bytes >= COMES_ON_BYTES or c.end - c.start == size:  # it comes on, or begins
        touch(loop, c)
    else:
        note_passing(loop, c)


cdef bint watch(Loop* loop, int fd, uint32_t events, void* source) noexcept nogil:
    cdef epoll_event event
    event.events = events
    event.data.ptr = source
    return epoll_ctl(loop.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0


cdef void adopt(Loop* loop, Connection* c) noexcept nogil:
    c.kind = SOURCE_CONNECTION
    c.writable = True
    if not watch(loop, c.fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | <uint32_t>EPOLLET, c):
        discard(loop.shared, c)
        return
    enter(loop, c)
    touch(loop, c)
    add_note(loop, c.opened)
    c.opened = NULL


cdef void discard(Shared* shared, Connection* c) noexcept nogil:
    atomic_add(&shared.door.refused, 1)
    connection_shut(c, NULL, &shared.budget)
    door_leave(&shared.door, c.listener_id, c.address)
    if c.opened != NULL:
        note_free(c.opened)
    if c.closed != NULL:
        note_free(c.closed)
    free(c)
