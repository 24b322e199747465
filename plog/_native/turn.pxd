# A connection's turn: what a reactor's thread does for one connection when something has happened to it.
from libc.stdint cimport int64_t, uint32_t

from plog._native.locks cimport store as atomic_store
from plog._native.reactor_types cimport Connection, Frame, Loop, Shared

# A number that one thread changes and others read.
cdef inline void count_up(int64_t* number, int64_t by) noexcept nogil:
    atomic_store(number, number[0] + by)

cdef Connection* find(Loop* loop, int64_t id) noexcept nogil
# Edge or level triggered events of `fd`, by the struct at `source`.
cdef bint watch(Loop* loop, int fd, uint32_t events, void* source) noexcept nogil
# Among the loop's connections, by id.
cdef void enter(Loop* loop, Connection* c) noexcept nogil
# It is the broker that takes its time.
cdef bint keeps_its_client_waiting(Connection* c) noexcept nogil
# Something happened: it is not idle.
cdef void touch(Loop* loop, Connection* c) noexcept nogil
# Drop a connection that no loop owns; it counts as refused.
cdef void discard(Shared* shared, Connection* c) noexcept nogil
# Close now. `reason` NULL: the connection holds it.
cdef void finish_close(Loop* loop, Connection* c, const char* reason) noexcept nogil
# Its answers reach no client any more: drop them, do the requests that have come whole, then close. Bounded: it reads
# no more than the kernel holds now. `reason` NULL: the connection holds it.
cdef void let_go(Loop* loop, Connection* c, const char* reason) noexcept nogil
# Close once what is queued has been sent; read no more. `reason` NULL: the connection holds it.
cdef void begin_close(Loop* loop, Connection* c, const char* reason) noexcept nogil
# Write what the round has gathered, and conclude the requests: their answers are queued, and sent at its end.
cdef void write_gathered(Loop* loop) noexcept nogil
# Give Python a frame that is malloc'ed and counted already. False: no memory, and the frame is freed.
cdef bint hand_over_frame(Loop* loop, Connection* c, Frame* frame) noexcept nogil
# One turn: read, cut and answer, gather or hand over. What there is to send is sent by `send_answers`.
cdef void serve(Loop* loop, Connection* c) noexcept nogil
# The end of a round's work: after the write, send what the connections that had a turn have queued.
cdef void send_answers(Loop* loop) noexcept nogil
# What epoll says.
cdef void on_event(Loop* loop, Connection* c, uint32_t events) noexcept nogil
