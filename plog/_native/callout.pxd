# Python is asked about the unusual partitions of a request, of whatever kind.
from libc.stdint cimport int64_t

from plog._native.reactor_types cimport Request


# What the kinds have in common. The methods are each kind's own.
cdef class Callout:
    cdef object owner                       # of the reactor's memory
    cdef Request* request                   # NULL: it is answered
    cdef readonly int version
    cdef readonly int correlation_id
    cdef readonly object client_id
    cdef readonly int64_t size
    cdef list _asked                        # None: not made yet
    cdef int64_t count

    cdef list asked_parts(self)
    # What `put` takes. Raises for what the response cannot state, before anything is decided.
    cdef list checked(self, list outcomes)
    cdef int put(self, list checked, list nodes) except -1
    cdef void refuse_rest(self, Request* request) noexcept nogil
    # What the request does next.
    cdef void conclude(self, Request* request) noexcept nogil
