# One partition's log as a Python object. What the reactor calls is in partition.pxd, on `partition`.
from plog._native.partition cimport Partition


cdef class PartitionLog:
    cdef Partition* partition    # a pin of its own
    cdef tuple _segments         # the Segment objects of partition.segments, for Python
    cdef object __weakref__
