# How many responses had which error. A response counts once for each error in it; one without any counts as NONE.
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.string cimport memset

from plog._native.locks cimport store

cdef enum:
    FIRST_ERROR = -1             # Kafka's error codes begin with it,
    ERROR_CODES = 192            # and there are fewer
    ERROR_NONE = 0

# Counted by one thread, read by others: from FIRST_ERROR on.
ctypedef struct ErrorCounts:
    int64_t counts[ERROR_CODES]

# Those of one response.
ctypedef struct SeenErrors:
    uint8_t seen[ERROR_CODES]
    bint any


cdef inline void errors_begin(SeenErrors* response) noexcept nogil:
    memset(response, 0, sizeof(SeenErrors))


cdef inline void errors_count(ErrorCounts* errors, int16_t error) noexcept nogil:
    cdef int64_t* count = &errors.counts[error - FIRST_ERROR]
    store(count, count[0] + 1)


cdef inline void errors_note(ErrorCounts* errors, SeenErrors* response, int16_t error) noexcept nogil:
    if error != ERROR_NONE and not response.seen[error - FIRST_ERROR]:
        response.seen[error - FIRST_ERROR] = response.any = True
        errors_count(errors, error)


cdef inline void errors_end(ErrorCounts* errors, const SeenErrors* response) noexcept nogil:
    if not response.any:
        errors_count(errors, ERROR_NONE)
