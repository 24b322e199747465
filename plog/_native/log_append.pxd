# Appends to a partition: the look at its producer, the write and what becomes known by it, as one critical section.
from libc.stdint cimport int64_t, uint8_t

from plog._native.partition cimport Partition
from plog._native.producers cimport Producer

cdef enum AppendStatus:
    APPEND_DONE = 0
    APPEND_DUPLICATE = 1
    APPEND_ROLL_NEEDED = 2
    APPEND_PRODUCER_UNUSUAL = 3
    APPEND_WRITE_FAILED = 4
    APPEND_NOT_WRITABLE = 5
    APPEND_BAD_BATCH = 6         # not one whole v2 batch: the caller did not validate it

ctypedef struct AppendResult:
    AppendStatus status
    int64_t base_offset
    int64_t last_offset
    int64_t timestamp
    int64_t log_start_offset
    int error                    # errno of WRITE_FAILED and NOT_WRITABLE

# One validated batch, restamped in place. `decided`: NULL, or the entry that Python wants the producer to have before
# this batch; its version says which state that decision was made upon.
cdef void partition_append(
    Partition* partition, uint8_t* data, int64_t size, int64_t now_ms, const Producer* decided,
    AppendResult* out) noexcept nogil
