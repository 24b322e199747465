# What a reactor's thread does with a Produce, step by step.
from plog._native.reactor_types cimport Done, Loop, Request

# Check it; its bytes are at the start of the connection's buffer.
cdef Done produce_look_at(Loop* loop, Request* request) noexcept nogil
# Have a compute thread check it: those before it are with such threads.
cdef Done produce_look_aside(Request* request) noexcept nogil
# It was checked by another thread: take its batches into the write of the round, or leave them to a slow disk's thread.
cdef Done produce_take_in(Loop* loop, Request* request) noexcept nogil
# Write the batches of the round, and conclude their requests. Each connection has further steps then: see `answering`.
cdef void write_gathered(Loop* loop) noexcept nogil
# Another thread has worked on it.
cdef Done produce_came_back(Request* request) noexcept nogil
# A partition has changed, or (`expired`) its time is over.
cdef void produce_look_again(Request* request, bint expired) noexcept nogil
# Queue its response.
cdef Done produce_respond(Loop* loop, Request* request) noexcept nogil
