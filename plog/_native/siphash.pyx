"""SipHash-1-3 (Aumasson and Bernstein, 2012): one round for each word, three at the end.

Owns the hash alone; where keys come from is for its users. `_reference.siphash` is the readable twin.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    KEY_BYTES = 16


cdef extern from "<endian.h>" nogil:
    uint64_t le64toh(uint64_t word)


ctypedef struct SipState:
    uint64_t a
    uint64_t b
    uint64_t c
    uint64_t d


cdef inline uint64_t turned(uint64_t value, int by) noexcept nogil:
    return value << by | value >> (64 - by)


cdef inline void sip_round(SipState* s) noexcept nogil:
    s.a += s.b
    s.c += s.d
    s.b = turned(s.b, 13) ^ s.a
    s.d = turned(s.d, 16) ^ s.c
    s.a = turned(s.a, 32)
    s.c += s.b
    s.a += s.d
    s.b = turned(s.b, 17) ^ s.c
    s.d = turned(s.d, 21) ^ s.a
    s.c = turned(s.c, 32)


cdef inline void take_word(SipState* s, uint64_t word) noexcept nogil:
    s.d ^= word
    sip_round(s)
    s.a ^= word


cdef uint64_t siphash_of(const SipKey* key, const uint8_t* data, size_t size) noexcept nogil:
    cdef SipState s
    cdef uint64_t word = 0
    cdef size_t left = size
    s.a = key.low ^ <uint64_t>0x736F6D6570736575
    s.b = key.high ^ <uint64_t>0x646F72616E646F6D
    s.c = key.low ^ <uint64_t>0x6C7967656E657261
    s.d = key.high ^ <uint64_t>0x7465646279746573
    while left >= sizeof(word):
        memcpy(&word, data, sizeof(word))
        take_word(&s, le64toh(word))
        data += sizeof(word)
        left -= sizeof(word)
    word = 0
    if left > 0:
        memcpy(&word, data, left)
    take_word(&s, le64toh(word) | <uint64_t>size << 56)  # the last word ends with the size
    s.c ^= 0xFF
    sip_round(&s)
    sip_round(&s)
    sip_round(&s)
    return s.a ^ s.b ^ s.c ^ s.d


cdef SipKey sip_key(bytes key) except *:
    cdef SipKey made
    cdef const uint8_t* p = key
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    memcpy(&made.low, p, sizeof(made.low))
    memcpy(&made.high, p + sizeof(made.low), sizeof(made.high))
    made.low = le64toh(made.low)
    made.high = le64toh(made.high)
    return made


def siphash(bytes key not None, bytes data not None):
    cdef SipKey found = sip_key(key)
    return siphash_of(&found, data, len(data))
