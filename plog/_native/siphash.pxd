# SipHash-1-3: a hash under a secret key. Who does not know the key can neither find inputs that clash nor, from some
# hashes, tell others.
from libc.stdint cimport uint8_t, uint64_t

ctypedef struct SipKey:
    uint64_t low
    uint64_t high

cdef uint64_t siphash_of(const SipKey* key, const uint8_t* data, size_t size) noexcept nogil
# From 16 bytes; ValueError: they are more or fewer.
cdef SipKey sip_key(bytes key) except *
