# The form of Fetch requests, in every version with record batches.
from libc.stdint cimport int64_t, uint8_t

from plog._native.fetch_call cimport FetchCall

# Fill `call` with what the request says; `p` follows the three numbers of the header. No answer is to hold more than
# `largest_bytes`. False: it is malformed, and `fault` says where.
cdef bint fetch_read_request(
    FetchCall* call, int64_t largest_bytes, const uint8_t* p, const uint8_t* end) noexcept nogil
