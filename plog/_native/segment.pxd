# One segment's files as the data path sees them: counted pins, published sizes, index mappings, batch walks.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.locks cimport pthread_mutex_t

ctypedef struct SegmentFiles:
    int64_t references        # atomic; the descriptors and mappings go with the last one
    int64_t base_offset
    int log_fd
    int offset_index_fd
    int time_index_fd
    int64_t created_ms        # wall clock when this struct was made
    int64_t max_offset_entries
    int64_t max_time_entries
    # Mappings have a fixed length, may reach past the end of their file, and are made on first use; only
    # entries below the published counts are ever touched.
    int64_t offset_map_bytes
    int64_t time_map_bytes
    void* offset_map
    void* time_map
    # Published with release order; read by load().
    int64_t size_bytes
    int64_t next_offset
    int64_t offset_entries
    int64_t time_entries
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t first_append_ms
    # The writer's own.
    pthread_mutex_t index_lock
    int64_t bytes_since_index_entry
    int64_t last_indexed_timestamp

# What finding and walking return, beside -errno.
cdef enum:
    WALK_FOUND = 0
    WALK_PAST_END = 1
    WALK_CORRUPT = -100000

# A batch on its way to the file.
ctypedef struct SegmentBatch:
    const uint8_t* data
    int64_t size
    int64_t last_offset
    int64_t max_timestamp

# A batch (or an old message set entry) in the file.
ctypedef struct BatchPlace:
    int64_t position
    int64_t size
    int64_t base_offset
    int64_t last_offset

cdef enum:
    WINDOW_BYTES = 4096

# A few KB of the file, so that walking small batches does not cost a call for each.
ctypedef struct Window:
    bint never_waits             # for a disk: what is not in the page cache is -EAGAIN
    int64_t position
    int64_t filled
    uint8_t data[WINDOW_BYTES]

cdef void segment_retain(SegmentFiles* segment) noexcept nogil
cdef void segment_release(SegmentFiles* segment) noexcept nogil

# (offset, position) of the greatest index entry at or below `target`, else (base_offset, 0). 0 or -errno.
cdef int segment_lookup_offset(
    SegmentFiles* segment, int64_t target, int64_t* offset, int64_t* position) noexcept nogil
# (timestamp, offset) of the greatest entry at or below `timestamp`, else (-1, base_offset). 0 or -errno.
cdef int segment_lookup_time(
    SegmentFiles* segment, int64_t timestamp, int64_t* found, int64_t* offset) noexcept nogil

# The first batch whose last offset is at or past `target`, among the first `end` bytes of the file.
# WALK_FOUND, WALK_PAST_END, WALK_CORRUPT (place.position says where) or -errno.
cdef int segment_find(
    SegmentFiles* segment, int64_t target, int64_t end, Window* window, BatchPlace* place) noexcept nogil
# Where the first batch that starts at or past `upper_offset` begins, walking on from `first`, which lies below;
# `end` if there is none, and some position past `enough` if that comes first. A status as above; on
# WALK_CORRUPT *found says where. *next_offset is the base offset of the batch at *found, -1 if it was not read.
cdef int segment_find_upper(
    SegmentFiles* segment, const BatchPlace* first, int64_t upper_offset, int64_t end, int64_t enough,
    Window* window, int64_t* found, int64_t* next_offset) noexcept nogil

# Writes batches (at least one) at the end and the index entries that are due; publishes the index counts only. 0 or
# -errno; on failure all three files are cut back to what they were, or *broken is set.
cdef int segment_write(
    SegmentFiles* segment, const SegmentBatch* batches, int64_t count, int64_t index_interval_bytes,
    bint* broken) noexcept nogil
# Publishes what segment_write wrote.
cdef void segment_publish(SegmentFiles* segment, const SegmentBatch* batches, int64_t count) noexcept nogil


cdef class Segment:
    cdef SegmentFiles* files


cdef class FileRange:
    cdef SegmentFiles* segment  # a pin of its own
    cdef readonly int64_t position
    cdef readonly int64_t size
    cdef readonly int64_t next_offset_hint

# Takes the caller's pin over.
cdef FileRange new_file_range(SegmentFiles* pinned, int64_t position, int64_t size, int64_t next_offset_hint)
