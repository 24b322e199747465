# Produce: which batches may be appended as they are, the append, and the wait for their safety.
from libc.stdint cimport int64_t, uint8_t

from plog._native.log_append cimport AppendResult
from plog._native.produce_call cimport ProduceCall, ProducePart
from plog._native.served cimport ServedTable
from plog._native.work_queue cimport WorkQueue

cdef enum ProduceOutcome:
    PRODUCE_CHECKED = 0          # each partition may be appended, or is Python's
    PRODUCE_MALFORMED = 1
    PRODUCE_BESIDE = 2           # nothing done: for the thread of `queue`, which checks it anew

# Give the pins back; the memory of the lists is kept for the next request.
cdef void produce_clear(ProduceCall* call) noexcept nogil
cdef void produce_release(ProduceCall* call) noexcept nogil
# What it takes besides its frame.
cdef int64_t produce_bytes(const ProduceCall* call) noexcept nogil
# Read the whole request and check its batches. `p` follows the three numbers of the header. `in_reactor`: what takes
# long is left to another thread.
cdef ProduceOutcome produce_check(
    ServedTable* table, ProduceCall* call, const uint8_t* p, const uint8_t* end, int64_t now_ms,
    bint in_reactor) noexcept nogil
# Whether a batch of the same partition, earlier in the request, is Python's.
cdef bint follows_pythons(const ProduceCall* call, const ProducePart* part) noexcept nogil
# Its bytes have moved.
cdef void produce_move(ProduceCall* call, int64_t by) noexcept nogil
# Whose thread has to append it: the disk of one of the checked partitions is slow. NULL: none.
cdef WorkQueue* produce_slow_disk(const ProduceCall* call) noexcept nogil
# After the groups have been written, append the rest, partition by partition, unless what must come before it is
# Python's, or a disk that is slow by now would keep the reactor. Python decides about the others.
cdef void produce_conclude(ProduceCall* call, int64_t now_ms, bint may_append, bint in_reactor) noexcept nogil
# Python has appended it.
cdef void produce_was_written(
    ServedTable* table, ProduceCall* call, ProducePart* part, const AppendResult* result) noexcept nogil
# See which of those that are appended are safe or lost.
cdef void produce_settle(ProduceCall* call) noexcept nogil
# The same for the first time: those whose safety depends on a flush are to be flushed.
cdef void produce_begin_wait(ProduceCall* call) noexcept nogil
# Whether a partition that is waited for has changed since it was appended.
cdef bint produce_is_stale(const ProduceCall* call) noexcept nogil
# Refuse those that are not settled.
cdef void produce_expire(ProduceCall* call) noexcept nogil
