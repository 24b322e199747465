"""Wakes an event loop of Python's when a partition has changed.

A bell is in the partition's list of those who wait. Many changes ring it once, until it is asked.
"""

from libc.stdint cimport int64_t, uint64_t

from plog._native.locks cimport exchange
from plog._native.partition cimport Waiter, partition_add_waiter, partition_remove_waiter
from plog._native.partition_log cimport PartitionLog

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void* data, size_t size)


ctypedef struct Bell:
    Waiter waiter
    int64_t has_rung             # atomic
    int fd


cdef void ring(Waiter* waiter) noexcept nogil:
    """From any thread, under the partition's lock."""
    cdef Bell* bell = <Bell*>waiter.owner
    cdef uint64_t one = 1
    if exchange(&bell.has_rung, 1) == 0:
        # It fails only where the counter is full: then the loop has word already.
        write(bell.fd, &one, sizeof(one))


cdef class ChangeBell:
    cdef Bell bell
    cdef PartitionLog log

    def __init__(self, PartitionLog log not None, int eventfd):
        if self.log is not None:
            raise ValueError("this bell is in use")
        self.log = log
        self.bell.fd = eventfd
        self.bell.waiter.owner = &self.bell
        self.bell.waiter.wake = ring
        with nogil:
            partition_add_waiter(self.log.partition, &self.bell.waiter)

    def take(self):
        return exchange(&self.bell.has_rung, 0) != 0

    def close(self):
        with nogil:
            partition_remove_waiter(&self.bell.waiter)

    def __dealloc__(self):
        partition_remove_waiter(&self.bell.waiter)
