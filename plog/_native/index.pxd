# Sparse offset index (8-byte entries) and time index (12-byte entries): search and entry layout.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cpdef enum:
    OFFSET_ENTRY_BYTES = 8
    TIME_ENTRY_BYTES = 12

# Greatest entry whose offset <= target, by bisection over `count` entries at `map`;
# returns its number, or -1 when there is none. relative = target - base_offset.
cdef int64_t search_offset(const uint8_t* map, uint32_t count, int64_t relative) noexcept nogil
# First entry whose position >= target; `count` when there is none.
cdef int64_t search_position(const uint8_t* map, uint32_t count, int64_t position) noexcept nogil
# Greatest entry whose timestamp <= target; -1 when there is none.
cdef int64_t search_time(const uint8_t* map, uint32_t count, int64_t timestamp) noexcept nogil
