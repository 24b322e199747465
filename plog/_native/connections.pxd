# The connections of one loop: by id, and by when they were last active.
from libc.stdint cimport int64_t, uint32_t

from plog._native.locks cimport store as atomic_store
from plog._native.reactor_types cimport Connection, Loop, Shared

# A number that one thread changes and others read.
cdef inline void count_up(int64_t* number, int64_t by) noexcept nogil:
    atomic_store(number, number[0] + by)

cdef Connection* find(Loop* loop, int64_t id) noexcept nogil
# Among the loop's connections, by id.
cdef void enter(Loop* loop, Connection* c) noexcept nogil
cdef void leave(Loop* loop, Connection* c) noexcept nogil
# Edge or level triggered events of `fd`, by the struct at `source`.
cdef bint watch(Loop* loop, int fd, uint32_t events, void* source) noexcept nogil
# Bytes have passed.
cdef void note_passing(Loop* loop, Connection* c) noexcept nogil
# So many bytes of a request have come.
cdef void note_received(Loop* loop, Connection* c, int64_t size) noexcept nogil
# The broker fails it: it closes once its queued responses are sent.
cdef void give_up(Loop* loop, Connection* c, const char* reason) noexcept nogil
# Something happened: it is not idle.
cdef void touch(Loop* loop, Connection* c) noexcept nogil
# The loop owns it from now on.
cdef void adopt(Loop* loop, Connection* c) noexcept nogil
# Drop a connection that no loop owns; it counts as refused.
cdef void discard(Shared* shared, Connection* c) noexcept nogil
