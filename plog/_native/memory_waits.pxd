# Who reads on while the memory for requests (queued.max.request.bytes) is used up, and who gives way.
from libc.stdint cimport int64_t

from plog._native.reactor_types cimport Connection, Link, Loop



cdef enum:
    # A request that comes on by less in `PATIENCE_US` stands still. A socket that is not read holds more.
    COMES_ON_BYTES = 16 * 1024

# How many bytes it may read now. 0: the connection waits in a list until one of the next two puts it among the ready.
cdef int64_t may_receive(Loop* loop, Connection* c) noexcept nogil
# Let those that wait for memory try again, if there is any.
cdef void feed_starved(Loop* loop) noexcept nogil
# Let them look for small requests that have come whole, if those may be read. To be called now and then.
cdef void feed_small(Loop* loop) noexcept nogil
# Muted no longer, or fed: the next round serves it.
cdef void wait_no_more(Loop* loop, Connection* c) noexcept nogil
# If memory is short, one whose request is half there and does not come on: to be closed. NULL: none. It is looked for
# from `at` on, among those by activity, and `at` moves behind it.
cdef Connection* find_stalled(Loop* loop, Link** at) noexcept nogil
# By how much what answers take is beyond this reactor's share.
cdef int64_t answers_beyond(Loop* loop) noexcept nogil
# Of those whose answers take much, or else any, the one that has taken nothing for longest. NULL: nobody has any.
cdef Connection* find_hoarder(Loop* loop) noexcept nogil
