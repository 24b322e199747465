"""The files of segments as the data path sees them, and the lists of a log's segments.

Owns the descriptors, and the counted pins that keep them open. `segment_walk` looks up batches in
the files, and `segment_append` adds them. Never knows which list a log has now, or which broker leads it.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from posix.unistd cimport close

from plog._native.files cimport calls
from plog._native.locks cimport add, pthread_mutex_destroy

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void* address, size_t size)

cdef enum:
    READ_THROUGH_BYTES = 64 * 1024


cdef void segment_retain(SegmentFiles* segment) noexcept nogil:
    add(&segment.references, 1)


cdef void segment_release(SegmentFiles* segment) noexcept nogil:
    if segment == NULL or add(&segment.references, -1) > 0:
        return
    if segment.offset_map != NULL:
        munmap(segment.offset_map, segment.offset_map_bytes)
    if segment.time_map != NULL:
        munmap(segment.time_map, segment.time_map_bytes)
    # A failed close has nothing left to report: what had to be on the disk was synced before.
    close(segment.log_fd)
    close(segment.offset_index_fd)
    close(segment.time_index_fd)
    pthread_mutex_destroy(&segment.index_lock)
    pthread_mutex_destroy(&segment.tail_lock)
    free(segment.tail)
    free(segment)


cdef void segment_read_through(SegmentFiles* segment, int64_t position, int64_t size) noexcept nogil:
    cdef uint8_t[READ_THROUGH_BYTES] into
    cdef int64_t end = position + size
    cdef int64_t done
    while position < end:
        done = calls().pread(segment.log_fd, into, min(<int64_t>READ_THROUGH_BYTES, end - position), position)
        if done <= 0:
            return
        position += done


# --- segment lists --------------------------------------------------------------------------------

cdef SegmentList* list_new(int64_t count) noexcept nogil:
    cdef SegmentList* made = <SegmentList*>malloc(
        sizeof(SegmentList) + count * sizeof(SegmentFiles*))
    if made != NULL:
        made.references = 1
        made.count = count
        made.size_before_active = 0
        made.segments = <SegmentFiles**>(made + 1)
    return made


cdef void list_release(SegmentList* segments) noexcept nogil:
    cdef int64_t number
    if segments == NULL or add(&segments.references, -1) > 0:
        return
    for number in range(segments.count):
        segment_release(segments.segments[number])
    free(segments)
