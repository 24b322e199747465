# The records and bytes that clients have written to a topic, and those that they have read.
from libc.stdint cimport int64_t, uint8_t

from plog._native.locks cimport CACHE_LINE_BYTES, add

ctypedef struct Traffic:
    int64_t references           # atomic
    int64_t received_records     # atomic, as all that follows
    int64_t received_bytes
    uint8_t apart[CACHE_LINE_BYTES]
    int64_t sent_records
    int64_t sent_bytes

cdef Traffic* traffic_new() noexcept nogil  # one pin, or NULL
cdef void traffic_release(Traffic* traffic) noexcept nogil  # NULL is allowed
cdef inline void traffic_retain(Traffic* traffic) noexcept nogil:
    add(&traffic.references, 1)
cdef inline void traffic_received(Traffic* traffic, int64_t records, int64_t size) noexcept nogil:
    add(&traffic.received_records, records)
    add(&traffic.received_bytes, size)
cdef inline void traffic_sent(Traffic* traffic, int64_t records, int64_t size) noexcept nogil:
    add(&traffic.sent_records, records)
    add(&traffic.sent_bytes, size)


cdef class TopicTraffic:
    cdef Traffic* traffic
