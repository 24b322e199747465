# The files of segments as the data path sees them: counted pins, published sizes; and lists of segments.
from libc.stdint cimport int64_t, uint8_t

from plog._native.index cimport OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from plog._native.locks cimport pthread_mutex_t

cdef enum:
    TAIL_ENTRIES = 32

# Index entries that are not in the files yet, as they will stand there.
ctypedef struct IndexTail:
    int64_t offset_count
    int64_t time_count        # at most as many
    uint8_t offsets[TAIL_ENTRIES * OFFSET_ENTRY_BYTES]
    uint8_t times[TAIL_ENTRIES * TIME_ENTRY_BYTES]

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
    # entries that are written are ever touched.
    int64_t offset_map_bytes
    int64_t time_map_bytes
    void* offset_map
    void* time_map
    # Published with release order; read by load().
    int64_t size_bytes
    int64_t next_offset
    int64_t offset_entries    # those in the tail among them
    int64_t time_entries
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t first_append_ms
    int64_t loaded_bytes      # of the log file that were there when it was opened; never changes
    # The writer's own.
    pthread_mutex_t index_lock
    int64_t bytes_since_index_entry
    int64_t last_indexed_timestamp
    # For lookups too; the lock is held for some instructions, never over I/O.
    pthread_mutex_t tail_lock
    int64_t offsets_written
    int64_t times_written
    # The offsets of the loaded batches between these two positions are known to be in order.
    int64_t ordered_from
    int64_t ordered_to
    IndexTail* tail           # NULL: there is none

# An immutable list of segments; each list pins its segments, each reader the list.
ctypedef struct SegmentList:
    int64_t references
    int64_t count
    int64_t size_before_active
    SegmentFiles** segments      # ascending, the last is active

cdef void segment_retain(SegmentFiles* segment) noexcept nogil
cdef void segment_release(SegmentFiles* segment) noexcept nogil
# Have the disk bring a range of the log file into the page cache. The sender meets what cannot be read once more, and
# reports it.
cdef void segment_read_through(SegmentFiles* segment, int64_t position, int64_t size) noexcept nogil

# One pin; NULL when memory is out. `count` places, not yet filled.
cdef SegmentList* list_new(int64_t count) noexcept nogil
cdef void list_release(SegmentList* segments) noexcept nogil
cdef inline SegmentFiles* active_of(const SegmentList* segments) noexcept nogil:
    return segments.segments[segments.count - 1]
