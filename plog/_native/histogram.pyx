"""How long things took, as counts in buckets that grow with the time.

Owns the buckets: one for each microsecond below four, then four for each octave, so that a
percentile is known to a quarter of itself. Adding is two atomic additions, from any thread.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from plog._native.locks cimport add, load

cdef extern from * nogil:
    """
    static inline int plog_log2(uint64_t value) { return 63 - __builtin_clzll(value); }
    """
    int log2 "plog_log2"(uint64_t value)


cdef int times_bucket(int64_t us) noexcept nogil:
    cdef int octave
    if us < 4:
        return <int>max(us, 0)
    octave = log2(<uint64_t>us)
    return min(4 * (octave - 1) + <int>((us >> (octave - 2)) & 3), TIMES_BUCKETS - 1)


cdef void times_note(Times* times, int64_t us) noexcept nogil:
    add(&times.counts[times_bucket(us)], 1)
    add(&times.total_us, max(us, 0))


def upper_bounds():
    cdef int number
    # Of bucket 4 * (octave - 1) + quarter: the last microsecond that falls in it.
    return tuple(
        number if number < 4 else ((number % 4 + 5) << (number // 4 - 1)) - 1
        for number in range(TIMES_BUCKETS - 1))


cdef class Histogram:
    def __cinit__(self):
        memset(&self.times, 0, sizeof(Times))

    def note(self, int64_t us):
        times_note(&self.times, us)

    cdef void add(self, const Times* times) noexcept:
        cdef int number
        for number in range(TIMES_BUCKETS):
            add(&self.times.counts[number], load(&times.counts[number]))
        add(&self.times.total_us, load(&times.total_us))

    def add_all(self, Histogram other not None):
        self.add(&other.times)

    @property
    def counts(self):
        cdef int number
        return tuple([load(&self.times.counts[number]) for number in range(TIMES_BUCKETS)])

    @property
    def total_us(self):
        return load(&self.times.total_us)
