# How long things took: counts in buckets of a quarter of an octave, which several threads may add to.
from libc.stdint cimport int64_t

cdef enum:
    TIMES_BUCKETS = 112          # the last one is open: from 470 s on

ctypedef struct Times:
    int64_t counts[TIMES_BUCKETS]
    int64_t total_us

cdef int times_bucket(int64_t us) noexcept nogil
# One more. A clock that went back counts as no time.
cdef void times_note(Times* times, int64_t us) noexcept nogil


cdef class Histogram:
    cdef Times times
    # Those of a struct as well.
    cdef void add(self, const Times* times) noexcept
