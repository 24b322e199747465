# The last offset of each key of a log, as far as one pass of compaction has read it.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from plog._native.batch_fields cimport BatchFields
from plog._native.siphash cimport SipKey

ctypedef struct KeySlot:
    uint64_t low
    uint64_t high
    int64_t after       # the key's last offset, plus one; 0: nobody's


cdef class OffsetMap:
    cdef KeySlot* slots
    cdef uint64_t size
    cdef SipKey low_key
    cdef SipKey high_key
    cdef readonly int64_t capacity
    cdef readonly int64_t count

    # Where a key is, or would be.
    cdef KeySlot* slot_of(self, const uint8_t* key, size_t size) noexcept nogil
    cdef int take(self, const uint8_t* p, const uint8_t* end, const BatchFields* batch, int64_t from_offset,
                  int32_t* index) noexcept nogil
