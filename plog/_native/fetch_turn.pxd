# What a reactor's thread does with a Fetch, step by step.
from plog._native.reactor_types cimport Done, Loop, Request

# Read what it asks for; its bytes are at the start of the connection's buffer.
cdef Done fetch_look_at(Loop* loop, Request* request) noexcept nogil
# Another thread has read.
cdef Done fetch_came_back(Request* request) noexcept nogil
# A partition has changed, or (`expired`) its time is over.
cdef void fetch_look_again(Request* request, bint expired) noexcept nogil
# Queue its response.
cdef Done fetch_respond(Loop* loop, Request* request) noexcept nogil
# Each partition is read, refused, or Python's: whether that is enough. By any thread, whose the request is.
cdef void fetch_conclude(Request* request) noexcept nogil
