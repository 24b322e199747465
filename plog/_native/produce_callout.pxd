# Python is asked about the unusual partitions of a Produce.
from plog._native.callout cimport Callout
from plog._native.reactor_types cimport Request


cdef class ProduceCallout(Callout):
    cdef readonly int acks
    cdef readonly object transactional_id
    cdef readonly int timeout_ms
    cdef object _frame


# `frame`: a view of the request's bytes, which are Python's now.
cdef ProduceCallout produce_callout_about(object owner, Request* request, object frame)
