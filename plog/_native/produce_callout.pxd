# Python is asked about the unusual partitions of a Produce.
from libc.stdint cimport int64_t

from plog._native.reactor_types cimport Request


cdef class ProduceCallout:
    cdef object owner                       # of the reactor's memory
    cdef Request* request                   # NULL: it is answered
    cdef readonly int correlation_id
    cdef readonly object client_id
    cdef readonly int64_t size
    cdef readonly int acks
    cdef readonly int version
    cdef readonly object transactional_id
    cdef object _frame
    cdef list _asked                        # None: not made yet
    cdef int64_t count


# `frame`: a view of the request's bytes, which are Python's now.
cdef ProduceCallout callout_about(object owner, Request* request, object frame)
