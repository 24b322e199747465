# What a reactor's thread does with a request that is for Python.
from plog._native.reactor_types cimport Done, Loop, Request

# Give Python the request's bytes, and the outcomes of the partitions that are done.
cdef Done python_ask(Loop* loop, Request* request) noexcept nogil
