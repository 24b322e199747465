# What is added to a segment: batches, and the index entries that are due.
from libc.stdint cimport int64_t, uint8_t

from plog._native.segment_files cimport SegmentFiles

# A batch on its way to the file.
ctypedef struct SegmentBatch:
    const uint8_t* data
    int64_t size
    int64_t last_offset
    int64_t max_timestamp

# Writes batches (at least one) at the end, and the index entries that are due once there are enough of them; publishes
# those only. 0 or -errno; on failure all three files are cut back to what they were, or *broken is set.
# After a call that took longer than `patience_us` no further one is made: *count becomes the number of those that are
# whole in the file by then, which may be none. *longest_us is how long the slowest call took.
cdef int segment_write(
    SegmentFiles* segment, const SegmentBatch* batches, int64_t* count, int64_t index_interval_bytes,
    int64_t patience_us, int64_t* longest_us, bint* broken) noexcept nogil
# Publishes what segment_write wrote.
cdef void segment_publish(SegmentFiles* segment, const SegmentBatch* batches, int64_t count) noexcept nogil
# Writes the index entries that wait, and the final time index entry unless the last one says it already. 0, or -errno
# with the files cut back.
cdef int segment_seal(SegmentFiles* segment) noexcept nogil
