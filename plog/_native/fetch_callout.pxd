# Python is asked about the unusual partitions of a Fetch.
from libc.stdint cimport int64_t

from plog._native.callout cimport Callout
from plog._native.reactor_types cimport Request


cdef class FetchCallout(Callout):
    cdef readonly int replica_id
    cdef readonly int64_t replica_epoch
    cdef readonly bint is_followers
    cdef readonly int64_t came_ms
    cdef readonly bint read_committed
    cdef readonly int64_t max_bytes
    cdef readonly bint is_first


cdef FetchCallout fetch_callout_about(object owner, Request* request)
