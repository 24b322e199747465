"""Other threads that work on a request, and the letters by which it comes back to its loop.

Owns the lists in which a request waits: those of its partitions, and that of deadlines. Never says what
a request means, nor when it has waited enough.
"""

from libc.stdint cimport int64_t

from plog._native.fetch_call cimport FetchPart, fetch_part
from plog._native.fetch_path cimport fetch_is_stale
from plog._native.locks cimport exchange
from plog._native.mailbox cimport mailbox_put
from plog._native.partition cimport Partition, Waiter, partition_add_waiter
from plog._native.produce_call cimport ProducePart, produce_part
from plog._native.produce_path cimport produce_is_stale
from plog._native.reactor_types cimport ASK_FINISH, ASK_RECHECK, KIND_PRODUCE, Connection, Link
from plog._native.request_stages cimport APPENDED
from plog._native.requests cimport request_count_memory, request_free
from plog._native.work_queue cimport work_ask


# --- lanes ----------------------------------------------------------------------------------------

cdef void lane_ask(Request* request, WorkQueue* queue, void (*work)(Task* task) noexcept nogil) noexcept nogil:
    request_count_memory(request)
    request.task.ask = ASK_FINISH
    request.task.work = work
    request.posted = 1
    if not work_ask(queue, &request.task):  # the broker is stopping: this thread does it
        work(&request.task)


cdef void lane_post(Request* request) noexcept nogil:
    if not mailbox_put(&request.loop.inbox, &request.task.letter, &request.task.letter, 1):
        request_free(request)  # the loop has ended, and the connection with it


# --- waiting --------------------------------------------------------------------------------------

cdef void wake(Waiter* waiter) noexcept nogil:
    """From any thread, under the partition's lock."""
    post(<Request*>waiter.owner)


cdef void post(Request* request) noexcept nogil:
    """One letter, however often until that is read."""
    if exchange(&request.posted, 1) == 0:
        # A closed mailbox means that the loop has ended, and all its connections with it.
        mailbox_put(&request.loop.inbox, &request.task.letter, &request.task.letter, 1)


cdef void listen_to(Request* request, Partition* partition, Waiter* waiter) noexcept nogil:
    waiter.owner = request
    waiter.wake = wake
    partition_add_waiter(partition, waiter)


cdef void note_deadline(Loop* loop, Request* request) noexcept nogil:
    """Most of a kind wait equally long, so the place is nearly always the last one."""
    cdef Connection* c = request.connection
    cdef Link* before = loop.by_deadline.previous
    while before != &loop.by_deadline and before.owner.line.first.deadline_us > request.deadline_us:
        before = before.previous
    c.by_deadline.previous = before
    c.by_deadline.next = before.next
    before.next.previous = &c.by_deadline
    before.next = &c.by_deadline


cdef bint wait_for(Loop* loop, Request* request) noexcept nogil:
    cdef ProducePart* produced
    cdef FetchPart* fetched
    cdef int64_t number
    request.task.ask = ASK_RECHECK
    request.listens = True
    note_deadline(loop, request)
    for number in range(request.produce.parts.count):
        produced = produce_part(&request.produce, number)
        if produced.stage == APPENDED:
            listen_to(request, produced.served.partition, &produced.waiter)
    for number in range(request.fetch.parts.count):
        fetched = fetch_part(&request.fetch, number)
        listen_to(request, fetched.served.partition, &fetched.waiter)
    if request.kind == KIND_PRODUCE:
        return not produce_is_stale(&request.produce)
    return not fetch_is_stale(&request.fetch)
