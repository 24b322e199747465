# Fetch without Python: the ordinary request of a consumer, in a session or outside, from its frame to what it came to.
from libc.stdint cimport int64_t, uint8_t

from plog._native.fetch_call cimport FetchCall, FetchOutcome
from plog._native.fetch_sessions cimport SessionTable
from plog._native.served cimport ServedTable

# Give the pins back; the memory of the lists is kept for the next request.
cdef void fetch_clear(FetchCall* call) noexcept nogil
cdef void fetch_release(FetchCall* call) noexcept nogil
# Read the request and every partition. `p` follows the three numbers of the header. An outcome for Python leaves
# `session` set when the request has been counted in that.
cdef FetchOutcome fetch_serve(
    ServedTable* table, SessionTable* sessions, FetchCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil
# Read every partition anew. Unless it may wait for the disk, it may come to FETCH_BESIDE.
cdef FetchOutcome fetch_read(FetchCall* call, bint may_wait) noexcept nogil
# The same, and have the records in the page cache afterwards.
cdef FetchOutcome fetch_read_slowly(FetchCall* call) noexcept nogil
# Decide what the answer names, before it is encoded. False: the session has moved on meanwhile, for Python to tell.
cdef bint fetch_settle(FetchCall* call) noexcept nogil
# Give back what was read: the request waits.
cdef void fetch_unpin(FetchCall* call) noexcept nogil
# Whether a partition has changed since it was read.
cdef bint fetch_is_stale(const FetchCall* call) noexcept nogil
