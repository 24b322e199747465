# The aborted transactions that readers of committed records are told of: an immutable list, counted as segment lists are.
from libc.stdint cimport int64_t

# An entry of a transaction index.
ctypedef struct Aborted:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset          # the marker's
    int64_t last_stable_offset   # what it was once the transaction had ended

ctypedef struct AbortedList:
    int64_t references           # atomic
    int64_t known_from           # who reads from below it may meet others
    int64_t ending               # so many stand first whose markers are being written: they have no end yet
    int64_t count                # of all; the others ascend by their markers
    Aborted* entries

# A walk over those with records or their marker in [fetch_offset, upper_offset); `number` begins at 0.
ctypedef struct AbortedWalk:
    const AbortedList* among
    int64_t fetch_offset
    int64_t upper_offset
    int64_t number

cdef void aborted_retain(AbortedList* pinned) noexcept nogil
cdef void aborted_release(AbortedList* pinned) noexcept nogil
# The next one, NULL: that was all.
cdef const Aborted* aborted_next(AbortedWalk* walk) noexcept nogil
cdef int64_t aborted_count(AbortedWalk walk) noexcept nogil


cdef class PublishedAborted:
    cdef AbortedList* pinned
