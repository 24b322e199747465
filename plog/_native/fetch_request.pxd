# The form of Fetch requests: what is asked for, read from the frame.
from libc.stdint cimport int64_t, uint8_t

from plog._native.fetch_call cimport FetchCall

# Fill `call` with what the request says; `p` follows the three numbers of the header. No answer is to hold more than
# `largest_bytes`. False: not an ordinary consumer's, or damaged.
cdef bint fetch_read_request(
    FetchCall* call, int64_t largest_bytes, const uint8_t* p, const uint8_t* end) noexcept nogil
