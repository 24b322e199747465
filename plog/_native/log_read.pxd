# Where the batches lie that a reader asks for.
from libc.stdint cimport int64_t

from plog._native.partition cimport Partition
from plog._native.segment_files cimport SegmentFiles

cdef enum ReadStatus:
    READ_FOUND = 0
    READ_NOTHING = 1             # at or past the upper offset, or no room for the first batch
    READ_OUT_OF_RANGE = 2        # below the log start offset, or past the log end offset
    READ_OFFLINE = 3
    READ_CORRUPT = 4             # bad header at `position` of the segment based at `base_offset`
    READ_FAILED = 5

ctypedef struct ReadResult:
    ReadStatus status
    SegmentFiles* segment        # READ_FOUND: pinned for the caller
    int64_t base_offset          # of that segment
    int64_t position
    int64_t size
    int64_t next_offset_hint     # -1: not known
    int64_t log_start_offset     # these as they were when the segments were pinned
    int64_t log_end_offset
    int64_t high_watermark
    int64_t last_stable_offset
    int error

# An offset that the batches of READ_FOUND lie below: of the next one, or of the nearest in the index. 0 or -errno.
cdef int read_end_offset(const ReadResult* read, int64_t* offset) noexcept nogil
# The offset behind the last whole batch of READ_FOUND. Never waits for the disk. -1: it is not known.
cdef int64_t read_next_offset(const ReadResult* read) noexcept nogil
# Unless it may wait for the disk, it fails with EAGAIN where that would have to be asked.
cdef void partition_read(
    Partition* partition, int64_t fetch_offset, int64_t max_bytes, int64_t upper_offset, bint whole_first_batch,
    bint may_wait, ReadResult* out) noexcept nogil
