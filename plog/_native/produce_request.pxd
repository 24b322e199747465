# The form of Produce requests, in every version with record batches.
from libc.stdint cimport uint8_t

from plog._native.produce_call cimport ProduceCall

# Read it into `topics` and `parts`; `p` follows the three numbers of the header. False: it is malformed, and `fault` says
# where.
cdef bint produce_read_request(ProduceCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil
