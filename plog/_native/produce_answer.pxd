# The response to a Produce, in every version.
from plog._native.produce_call cimport ProduceCall
from plog._native.reactor_types cimport Connection

# Queue it. False: no memory.
cdef bint produce_answer(const ProduceCall* call, Connection* c) noexcept nogil
# The same as bytes, with the length before them: for tests.
cdef bytes produce_answer_bytes(const ProduceCall* call)
