# The answer to a Fetch that is settled.
from plog._native.fetch_call cimport FetchCall
from plog._native.reactor_types cimport Connection

# Queue the answer. False: no memory.
cdef bint fetch_answer(FetchCall* call, Connection* c) noexcept nogil
