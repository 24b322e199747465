# What a request that waits in the reactor does, whatever it is: begin, listen to its partitions, be woken, end.
from libc.stdint cimport int16_t, int64_t, uint8_t

from plog._native.reactor_types cimport Connection, Loop, Parked


# The last of the connection's requests that wait. NULL: no memory.
cdef Parked* parked_new(Loop* loop, Connection* c, int16_t api_key) noexcept nogil
# Take the connection's first request from it and from its partitions; freed now, or when its letter comes.
cdef void parked_end(Connection* c) noexcept nogil
# Free what no letter is on its way for, and what is on no connection.
cdef void parked_free(Parked* parked) noexcept nogil

# Copy a request whose bytes are in its connection's buffer. False: no memory.
cdef bint parked_keep_frame(Parked* parked, const uint8_t* frame, int64_t size) noexcept nogil
# The frame is not needed any more.
cdef void parked_free_frame(Parked* parked) noexcept nogil
# What it takes besides its frame, whenever `produce` or `fetch` has been filled.
cdef void parked_count_memory(Parked* parked) noexcept nogil

# Let the first request of a connection wait until its partitions change, or its deadline. Who calls looks afterwards
# whether they have changed meanwhile: what changes before the waiters are there wakes nobody.
cdef void parked_listen(Loop* loop, Parked* parked) noexcept nogil
# Have it looked at again: one letter, however often until that is read. From any thread.
cdef void parked_wake(Parked* parked) noexcept nogil
