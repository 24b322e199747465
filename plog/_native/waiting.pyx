"""Requests that wait in the reactor: on their connection, at their partitions, by their deadline.

Owns their memory and the letters that wake them. Never says what a request means, nor
when it has waited enough: that is `fast_turn`'s.
"""

from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from plog._native.connection cimport link_remove
from plog._native.fetch_call cimport FetchPart, fetch_part
from plog._native.fetch_path cimport fetch_release
from plog._native.locks cimport add, exchange, store
from plog._native.mailbox cimport mailbox_put
from plog._native.partition cimport Partition, Waiter, partition_add_waiter, partition_remove_waiter
from plog._native.produce_path cimport ProducePart, produce_part, produce_release
from plog._native.reactor_types cimport ASK_RECHECK, Connection, Link, Loop, Parked


# --- beginning and end ----------------------------------------------------------------------------

cdef Parked* parked_new(Loop* loop, Connection* c, int16_t api_key) noexcept nogil:
    cdef Parked* parked = <Parked*>calloc(1, sizeof(Parked))
    if parked == NULL:
        return NULL
    parked.inbox = &loop.inbox
    parked.budget = &loop.shared.budget
    parked.waiting = &loop.waiting
    parked.connection = c
    parked.api_key = api_key
    parked.frame.received_us = c.received_us  # nothing has been read since
    if c.parked == NULL:
        c.parked = parked
    else:
        c.last_parked.after = parked
    c.last_parked = parked
    c.parked_count += 1
    store(&loop.waiting, loop.waiting + 1)
    return parked


cdef bint parked_keep_frame(Parked* parked, const uint8_t* frame, int64_t size) noexcept nogil:
    parked.frame.base = malloc(size)
    if parked.frame.base == NULL:
        return False
    parked.frame.data = <uint8_t*>parked.frame.base
    parked.frame.size = parked.frame.capacity = size
    memcpy(parked.frame.base, frame, size)
    add(&parked.budget.frame_bytes, size)
    return True


cdef void parked_count_memory(Parked* parked) noexcept nogil:
    # Clients that let very many requests wait are to be held up as those that send large ones.
    add(&parked.budget.frame_bytes, -parked.counted_bytes)
    parked.counted_bytes = (
        sizeof(Parked) + parked.produce.parts.capacity * sizeof(ProducePart)
        + parked.fetch.parts.capacity * sizeof(FetchPart))
    add(&parked.budget.frame_bytes, parked.counted_bytes)


cdef void parked_free_frame(Parked* parked) noexcept nogil:
    if parked.frame.base != NULL:
        add(&parked.budget.frame_bytes, -parked.frame.capacity)
        free(parked.frame.base)
        parked.frame.base = NULL


cdef void parked_free(Parked* parked) noexcept nogil:
    parked_free_frame(parked)
    add(&parked.budget.frame_bytes, -parked.counted_bytes)
    produce_release(&parked.produce)
    fetch_release(&parked.fetch)
    free(parked)


cdef void leave_connection(Connection* c) noexcept nogil:
    cdef Parked* parked = c.parked
    store(parked.waiting, parked.waiting[0] - 1)
    parked.connection = NULL
    parked.over = True
    c.parked = parked.after
    c.parked_count -= 1
    if c.parked == NULL:
        c.held_up = False


cdef void parked_end(Connection* c) noexcept nogil:
    cdef Parked* parked = c.parked
    cdef int64_t number
    if parked.listens:
        for number in range(parked.produce.parts.count):
            partition_remove_waiter(&produce_part(&parked.produce, number).waiter)
        for number in range(parked.fetch.parts.count):
            partition_remove_waiter(&fetch_part(&parked.fetch, number).waiter)
        link_remove(&c.by_deadline)
    leave_connection(c)
    # From here on no letter is written, so that one that is there is the last. A thread that works on the request
    # writes one when it is done.
    if exchange(&parked.posted, 1) == 0:
        parked_free(parked)


# --- waiting --------------------------------------------------------------------------------------

cdef void wake(Waiter* waiter) noexcept nogil:
    """From any thread, under the partition's lock."""
    parked_wake(<Parked*>waiter.owner)


cdef void parked_wake(Parked* parked) noexcept nogil:
    if exchange(&parked.posted, 1) == 0:
        # A closed mailbox means that the loop has ended, and all its connections with it.
        mailbox_put(parked.inbox, &parked.task.letter, &parked.task.letter, 1)


cdef void listen_to(Parked* parked, Partition* partition, Waiter* waiter) noexcept nogil:
    waiter.owner = parked
    waiter.wake = wake
    partition_add_waiter(partition, waiter)


cdef void parked_listen(Loop* loop, Parked* parked) noexcept nogil:
    cdef Connection* c = parked.connection
    cdef Link* before = loop.by_deadline.previous
    cdef ProducePart* produced
    cdef FetchPart* fetched
    cdef int64_t number
    parked.task.ask = ASK_RECHECK
    parked.listens = True
    # Most of a kind wait equally long, so the place is nearly always the last one.
    while (before != &loop.by_deadline
           and before.owner.parked.deadline_us > parked.deadline_us):
        before = before.previous
    c.by_deadline.previous = before
    c.by_deadline.next = before.next
    before.next.previous = &c.by_deadline
    before.next = &c.by_deadline
    for number in range(parked.produce.parts.count):
        produced = produce_part(&parked.produce, number)
        if not produced.settled:
            listen_to(parked, produced.served.partition, &produced.waiter)
    for number in range(parked.fetch.parts.count):
        fetched = fetch_part(&parked.fetch, number)
        listen_to(parked, fetched.served.partition, &fetched.waiter)
