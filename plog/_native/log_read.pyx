"""Reads: from an offset to a range of bytes in one segment's file.

Owns which segment it is and where a range ends: at a batch's end, below the limit.
Reads no records, and leaves the pinned bytes where they are.
"""

from libc.stdint cimport int64_t

from plog._native.locks cimport add, load, pthread_mutex_lock, pthread_mutex_unlock
from plog._native.segment_files cimport SegmentFiles, SegmentList, active_of, list_release, segment_retain
from plog._native.segment_walk cimport (
    WALK_CORRUPT, WALK_FOUND, WALK_PAST_END, BatchPlace, Window, segment_check_order, segment_find,
    segment_find_upper, segment_offset_behind, segment_offset_past)


cdef int64_t floor_segment(const SegmentList* segments, int64_t offset) noexcept nogil:
    """Number of the last segment based at or below `offset`; -1 when all lie above."""
    cdef int64_t low = 0
    cdef int64_t high = segments.count
    cdef int64_t middle
    while low < high:
        middle = (low + high) // 2
        if segments.segments[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef int find_batch(
        SegmentList* segments, int64_t active_size, int64_t fetch_offset, int64_t limit, int64_t gaps_legal_below,
        Window* window, int64_t* number, int64_t* size, BatchPlace* place) noexcept nogil:
    """The batch of an offset, from the segment with this number on; its segment's number, and bytes."""
    cdef SegmentFiles* segment
    cdef int status
    while number[0] < segments.count and segments.segments[number[0]].base_offset < limit:
        segment = segments.segments[number[0]]
        # The active one may have grown since; of the others nothing changes any more.
        size[0] = active_size if number[0] == segments.count - 1 else load(&segment.size_bytes)
        window.filled = 0
        status = segment_find(segment, fetch_offset, size[0], gaps_legal_below, window, place)
        if status != WALK_PAST_END:
            return status
        number[0] += 1  # compaction left a gap at the segment's end
    return WALK_PAST_END


cdef void read_pinned(
        SegmentList* segments, int64_t active_size, int64_t fetch_offset, int64_t max_bytes,
        int64_t limit, int64_t gaps_legal_below, bint whole_first_batch, bint may_wait, ReadResult* out) noexcept nogil:
    """Find the bytes; `limit` is at most the log end offset that goes with `active_size`."""
    cdef int64_t number = floor_segment(segments, fetch_offset)
    cdef SegmentFiles* segment
    cdef BatchPlace place
    cdef Window window
    cdef int64_t size = 0, end = 0
    cdef int64_t next_offset, enough, position
    cdef int status
    if number < 0:
        out.status = READ_OUT_OF_RANGE
        return
    window.position = window.filled = 0
    window.never_waits = not may_wait
    status = find_batch(
        segments, active_size, fetch_offset, limit, gaps_legal_below, &window, &number, &size, &place)
    if status == WALK_PAST_END or (status == WALK_FOUND and place.base_offset >= limit):
        out.status = READ_NOTHING
        return
    segment = segments.segments[number]
    out.base_offset = segment.base_offset
    out.position = place.position
    if status == WALK_FOUND:
        next_offset = out.log_end_offset
        if number < segments.count - 1:
            next_offset = load(&segment.next_offset)
        out.next_offset_hint = next_offset
        if max_bytes < place.size:
            if not whole_first_batch:
                out.status = READ_NOTHING
                return
            max_bytes = place.size
        enough = place.position + min(max_bytes, size - place.position)
        if limit >= next_offset:
            end = size
        else:
            status = segment_find_upper(
                segment, &place, limit, size, enough, &window, &end, &out.next_offset_hint)
            if status == WALK_CORRUPT:
                out.position = end
        if status == WALK_FOUND:
            status = segment_check_order(segment, &place, min(end, enough), gaps_legal_below, &window, &position)
            if status == WALK_CORRUPT:
                out.position = position
    if status == WALK_FOUND:
        out.status = READ_FOUND
        out.size = min(end, enough) - out.position
        if end > enough:
            out.next_offset_hint = -1
        elif out.next_offset_hint < 0:  # nothing lies between the end and the limit
            out.next_offset_hint = next_offset
        segment_retain(segment)
        out.segment = segment
    elif status == WALK_CORRUPT:
        out.status = READ_CORRUPT
    else:
        out.status = READ_FAILED
        out.error = -status


cdef void partition_read(
        Partition* partition, int64_t fetch_offset, int64_t max_bytes, int64_t upper_offset,
        bint whole_first_batch, bint may_wait, ReadResult* out) noexcept nogil:
    cdef SegmentList* segments
    cdef int64_t active_size = 0
    cdef int64_t gaps_legal_below
    out.segment = NULL
    out.base_offset = out.next_offset_hint = -1
    out.position = out.size = 0
    out.error = 0
    pthread_mutex_lock(&partition.lock)
    segments = partition.segments
    if segments != NULL:
        add(&segments.references, 1)
        active_size = active_of(segments).size_bytes
    gaps_legal_below = partition.gaps_legal_below
    out.log_start_offset = partition.log_start_offset
    out.log_end_offset = partition.log_end_offset
    out.high_watermark = partition.high_watermark
    out.last_stable_offset = partition.last_stable_offset
    out.error = <int>partition.offline_errno
    pthread_mutex_unlock(&partition.lock)
    if segments == NULL or out.error:
        out.status = READ_OFFLINE
    elif not out.log_start_offset <= fetch_offset <= out.log_end_offset:
        out.status = READ_OUT_OF_RANGE
    elif fetch_offset >= min(upper_offset, out.log_end_offset):
        out.status = READ_NOTHING
    else:
        read_pinned(
            segments, active_size, fetch_offset, max_bytes,
            min(upper_offset, out.log_end_offset), gaps_legal_below, whole_first_batch, may_wait, out)
    list_release(segments)


cdef int read_end_offset(const ReadResult* read, int64_t* offset) noexcept nogil:
    offset[0] = read.next_offset_hint
    if offset[0] >= 0:
        return 0
    return segment_offset_past(read.segment, read.position + read.size, offset)


cdef int64_t read_next_offset(const ReadResult* read) noexcept nogil:
    cdef int64_t offset = read.next_offset_hint
    if offset < 0 and segment_offset_behind(read.segment, read.position, read.position + read.size, &offset):
        return -1
    return offset
