# Python is asked about the unusual partitions of a Fetch.
from libc.stdint cimport int64_t

from plog._native.reactor_types cimport Request


cdef class FetchCallout:
    cdef object owner                       # of the reactor's memory
    cdef Request* request                   # NULL: it is answered
    cdef readonly int version
    cdef readonly int correlation_id
    cdef readonly object client_id
    cdef readonly int64_t size
    cdef readonly int replica_id
    cdef readonly bint read_committed
    cdef readonly int64_t max_bytes
    cdef readonly bint is_first
    cdef list _asked                        # None: not made yet
    cdef int64_t count


cdef FetchCallout fetch_callout_about(object owner, Request* request)
