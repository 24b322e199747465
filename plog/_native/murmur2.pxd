# Murmur2 as Kafka's default partitioner computes it.
from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t hash_bytes(const uint8_t* p, size_t size) noexcept nogil
