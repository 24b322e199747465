"""Counts the traffic of a topic: records and bytes, from clients and to clients.

Owns the counters, which network threads and handlers share. They live as long as the topic has
partitions on this broker: segments and logs come and go without a change.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from plog._native.locks cimport add, load


cdef Traffic* traffic_new() noexcept nogil:
    cdef Traffic* traffic = <Traffic*>calloc(1, sizeof(Traffic))
    if traffic != NULL:
        traffic.references = 1
    return traffic


cdef void traffic_release(Traffic* traffic) noexcept nogil:
    if traffic != NULL and add(&traffic.references, -1) == 0:
        free(traffic)


cdef class TopicTraffic:
    def __cinit__(self):
        self.traffic = traffic_new()
        if self.traffic == NULL:
            raise MemoryError

    def __dealloc__(self):
        traffic_release(self.traffic)

    def received(self, int64_t records, int64_t size_bytes):
        traffic_received(self.traffic, records, size_bytes)

    def sent(self, int64_t records, int64_t size_bytes):
        traffic_sent(self.traffic, records, size_bytes)

    @property
    def received_records(self):
        return load(&self.traffic.received_records)

    @property
    def received_bytes(self):
        return load(&self.traffic.received_bytes)

    @property
    def sent_records(self):
        return load(&self.traffic.sent_records)

    @property
    def sent_bytes(self):
        return load(&self.traffic.sent_bytes)
