# Python is asked about the unusual partitions of a Produce.
from plog._native.reactor_types cimport Request


cdef class ProduceCallout:
    cdef object owner                       # of the reactor's memory
    cdef Request* request                   # NULL: it is answered
    cdef readonly object frame
    cdef readonly int acks
    cdef readonly int version
    cdef readonly object transactional_id
    cdef readonly list asked


# `frame`: a view of the request's bytes, which are Python's now.
cdef ProduceCallout callout_about(object owner, Request* request, object frame)
