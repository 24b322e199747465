"""Who reads on while the memory for requests (queued.max.request.bytes) is used up, and who gives way.

Owns the lists of those that wait for it, the small requests and the one large one that may go beyond it
all the same, and which of those that stand still, or nearly so, gives way: for the memory of its request,
or of the answers that it does not take, which are bounded too. Never closes a connection.
"""

from libc.stdint cimport INT64_MAX, int64_t

from plog._native.connection cimport bytes_in_socket, holds_whole_frame, rest_of_small_frame
from plog._native.links cimport link_append, link_remove
from plog._native.locks cimport add as atomic_add, load as atomic_load
from plog._native.mailbox cimport mailbox_knock
from plog._native.reactor_types cimport Budget, Connection, Link, Loop

cdef enum:
    # How long, when memory is short, a request that is half there may come on by nearly nothing, or grow beyond the
    # budget.
    PATIENCE_US = 10000000
    # Whose answers take less gives way after all others: a consumer that rests holds an answer's first bytes.
    MUCH_BYTES = 64 * 1024
    # While requests in work hold less than this part of the memory, small ones are read beyond it.
    SMALL_ONES_PART = 8


cdef inline bint short_of_memory(Loop* loop) noexcept nogil:
    cdef Budget* budget = &loop.shared.budget
    return atomic_load(&budget.frame_bytes) + atomic_load(&budget.buffer_bytes) > budget.max_bytes


cdef inline bint may_privilege(Loop* loop) noexcept nogil:
    """When memory is short because of requests that are half there, waiting for Python to give some back would be
    for ever: one connection per loop may then complete its request beyond the budget."""
    cdef Budget* budget = &loop.shared.budget
    return loop.privileged == NULL and atomic_load(&budget.frame_bytes) < budget.max_bytes // 2


cdef inline bint may_read_small(Loop* loop) noexcept nogil:
    """Requests that are half there, and hold the most then, must not keep waiting what is done with at once."""
    cdef Budget* budget = &loop.shared.budget
    return atomic_load(&budget.frame_bytes) < budget.max_bytes // SMALL_ONES_PART


cdef int64_t may_receive(Loop* loop, Connection* c) noexcept nogil:
    cdef bint half_there = c.start < c.end
    cdef int64_t rest
    if c.is_exempt or loop.privileged == c or not short_of_memory(loop):
        return INT64_MAX
    rest = rest_of_small_frame(c) if may_read_small(loop) else 0
    if rest > 0:
        return rest
    if half_there and may_privilege(loop):
        loop.privileged = c
        loop.privileged_us = loop.now_us
        return INT64_MAX
    link_append(&loop.starved_half if half_there else &loop.starved, &c.waiting)
    if not loop.starving:
        loop.starving = True
        atomic_add(&loop.shared.starving, 1)
        # Had the memory been given back just before the line above, nobody would knock.
        mailbox_knock(&loop.inbox)
    return 0


cdef void wait_no_more(Loop* loop, Connection* c) noexcept nogil:
    link_remove(&c.waiting)
    link_append(&loop.ready, &c.ready)


cdef inline void feed_all(Loop* loop) noexcept nogil:
    while loop.starved_half.next != &loop.starved_half:
        wait_no_more(loop, loop.starved_half.next.owner)
    while loop.starved.next != &loop.starved:
        wait_no_more(loop, loop.starved.next.owner)


cdef void feed_starved(Loop* loop) noexcept nogil:
    if not short_of_memory(loop):
        feed_all(loop)
    elif may_privilege(loop) and loop.starved_half.next != &loop.starved_half:
        wait_no_more(loop, loop.starved_half.next.owner)
    if loop.starved_half.next == &loop.starved_half and loop.starved.next == &loop.starved:
        loop.starving = False
        atomic_add(&loop.shared.starving, -1)


cdef void feed_small(Loop* loop) noexcept nogil:
    # Not in every round: to look takes system calls, and most of those that wait have no such request.
    if not may_read_small(loop):
        return
    feed_all(loop)


cdef bint stands_still(Loop* loop, Connection* c) noexcept nogil:
    if c.buffer == NULL or c.line.first != NULL or c.came_on_us + PATIENCE_US > loop.now_us:
        return False
    # Read or not: one that waits for memory cannot be blamed for that, but its client for sending hardly anything.
    return c.slow_bytes + bytes_in_socket(c) < COMES_ON_BYTES and not holds_whole_frame(c)


cdef bint outstays(Loop* loop, Connection* c) noexcept nogil:
    cdef Budget* budget = &loop.shared.budget
    if c == loop.privileged:
        return loop.now_us - loop.privileged_us > PATIENCE_US
    # While requests in work hold the most, what is half there may well be slow for our own sake.
    return short_of_memory(loop) and atomic_load(&budget.frame_bytes) < budget.max_bytes // 2 and stands_still(loop, c)


cdef Connection* find_stalled(Loop* loop, Link** at) noexcept nogil:
    cdef Connection* c
    while at[0] != &loop.by_activity:
        c = at[0].owner
        at[0] = at[0].next
        if outstays(loop, c):
            return c
    return NULL


cdef int64_t answers_beyond(Loop* loop) noexcept nogil:
    # Looked at now and then, so that answers on their way need no count that threads share.
    cdef int64_t held = 0
    cdef Link* link = loop.by_activity.next
    while link != &loop.by_activity:
        held += link.owner.answer_bytes
        link = link.next
    return held - loop.shared.budget.max_answer_bytes // loop.shared.threads


cdef Connection* find_hoarder(Loop* loop) noexcept nogil:
    cdef Connection* holds_little = NULL
    cdef Link* link = loop.by_activity.next
    while link != &loop.by_activity:
        if link.owner.answer_bytes >= MUCH_BYTES:
            return link.owner
        if link.owner.answer_bytes > 0 and holds_little == NULL:
            holds_little = link.owner
        link = link.next
    return holds_little
