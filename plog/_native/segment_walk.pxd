# Where in a segment an offset or a timestamp is: index lookups and the walk over batches.
from libc.stdint cimport int64_t, uint8_t

from plog._native.segment_files cimport SegmentFiles

# What finding and walking return, beside -errno.
cdef enum:
    WALK_FOUND = 0
    WALK_PAST_END = 1
    WALK_CORRUPT = -100000

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

# The batch of the greatest index entry at or below `target`, among the first `end` bytes of the file. An entry that
# leads elsewhere than to a batch that it bounds is not used. Without an entry that leads past `known`, a batch below
# `target`, that one; NULL stands for the segment's first batch. A status as below.
cdef int segment_lookup_offset(
    SegmentFiles* segment, int64_t target, int64_t end, const BatchPlace* known, Window* window,
    BatchPlace* place) noexcept nogil
# (timestamp, offset) of the greatest entry at or below `timestamp`, else (-1, base_offset). 0 or -errno.
cdef int segment_lookup_time(
    SegmentFiles* segment, int64_t timestamp, int64_t* found, int64_t* offset) noexcept nogil

# An offset that all batches which end at or below `position` lie below: that of the next index entry, or the segment's
# end. 0 or -errno.
cdef int segment_offset_past(SegmentFiles* segment, int64_t position, int64_t* offset) noexcept nogil

# The offset of the first batch that does not end at or below `end`, walking from the index entry before it, or from
# `position`, where a batch begins. Never waits for the disk. 0, WALK_CORRUPT or -errno.
cdef int segment_offset_behind(
    SegmentFiles* segment, int64_t position, int64_t end, int64_t* offset) noexcept nogil

# The first batch whose last offset is at or past `target`, among the first `end` bytes of the file. Batches may be
# missing below `gaps_legal_below` alone.
# WALK_FOUND, WALK_PAST_END, WALK_CORRUPT (place.position says where) or -errno.
cdef int segment_find(
    SegmentFiles* segment, int64_t target, int64_t end, int64_t gaps_legal_below, Window* window,
    BatchPlace* place) noexcept nogil
# Check that the offsets of the loaded batches from `first` to position `end` are in order: the CRC does not cover
# them. Gaps are legal up to offset `gaps_legal_below`, none reaches the segment's end. Each range is read once. A
# status as above; on WALK_CORRUPT *bad says where.
cdef int segment_check_order(
    SegmentFiles* segment, const BatchPlace* first, int64_t end, int64_t gaps_legal_below, Window* window,
    int64_t* bad) noexcept nogil
# Where the first batch that starts at or past `upper_offset` begins, walking on from `first`, which lies below;
# `end` if there is none, and some position past `enough` if that comes first. A status as above; on
# WALK_CORRUPT *found says where. *next_offset is the base offset of the batch at *found, -1 if it was not read.
cdef int segment_find_upper(
    SegmentFiles* segment, const BatchPlace* first, int64_t upper_offset, int64_t end, int64_t enough,
    Window* window, int64_t* found, int64_t* next_offset) noexcept nogil
