# Fetch: which partitions are ordinary, their reads, and the budget of a response.
from libc.stdint cimport int64_t, uint8_t

from plog._native.fetch_call cimport FetchCall, FetchOutcome, FetchPart
from plog._native.fetch_sessions cimport SessionTable
from plog._native.served cimport ServedTable

# Give the pins back; the memory of the lists is kept for the next request.
cdef void fetch_clear(FetchCall* call) noexcept nogil
cdef void fetch_release(FetchCall* call) noexcept nogil
# Read the request and every ordinary partition, once a follower's positions are taken over. `p` follows the three numbers of the header.
cdef FetchOutcome fetch_serve(
    ServedTable* table, SessionTable* sessions, FetchCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil
# Read every partition again. Unless it may wait for the disk, it may come to FETCH_BESIDE.
cdef FetchOutcome fetch_read(FetchCall* call, bint may_wait) noexcept nogil
# The response's bytes that Python may use; `is_first`: its first batch may exceed them.
cdef int64_t fetch_budget(const FetchCall* call, bint* is_first) noexcept nogil
# Python has read its partitions: those behind them get the rest of the bytes.
cdef void fetch_fit(FetchCall* call) noexcept nogil
# The same as fetch_read, and have the records in the page cache afterwards.
cdef void fetch_read_slowly(FetchCall* call) noexcept nogil
# Whether it is answered at once, when each partition is read or refused.
cdef bint fetch_is_enough(const FetchCall* call) noexcept nogil
# Decide what the answer names, before it is encoded.
cdef void fetch_settle(FetchCall* call) noexcept nogil
# What one part came to when it was looked at.
cdef void fetch_forget_outcome(FetchPart* part) noexcept nogil
# Give back what was read: the request waits.
cdef void fetch_unpin(FetchCall* call) noexcept nogil
# Whether a partition has changed since it was read.
cdef bint fetch_is_stale(const FetchCall* call) noexcept nogil
