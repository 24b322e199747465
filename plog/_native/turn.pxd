# A connection's turn: what a reactor's thread does for one connection when something has happened to it.
from libc.stdint cimport uint32_t

from plog._native.reactor_types cimport Connection, Loop, Request

# Close once its gathered requests are written and its queued responses sent.
cdef void close_when_written(Loop* loop, Connection* c, const char* reason) noexcept nogil
# It is the broker that takes its time.
cdef bint keeps_its_client_waiting(Connection* c) noexcept nogil
# One turn: take steps, read, cut frames. What there is to send is sent by `send_answers`.
cdef void serve(Loop* loop, Connection* c) noexcept nogil
# One turn of a connection whose first request waits: a partition has changed, or (`expired`) its time is over.
cdef void serve_waiting(Loop* loop, Request* request, bint expired) noexcept nogil
# The end of a round's work: after the write, send what the connections that had a turn have queued.
cdef void send_answers(Loop* loop) noexcept nogil
# What epoll says.
cdef void on_event(Loop* loop, Connection* c, uint32_t events) noexcept nogil
