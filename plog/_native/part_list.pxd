# A list that grows: what a request names, one item for each partition. Its memory is kept from request to request.
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

cdef enum:
    FEWEST_PARTS = 4
    MOST_PARTS = 250000          # no request has more elements

ctypedef struct PartList:
    void* items
    int64_t count
    int64_t capacity


# The next item, of `size` bytes as all in the list, zeroed. NULL: no memory, or too many.
cdef inline void* part_add(PartList* parts, size_t size) noexcept nogil:
    cdef int64_t capacity
    cdef void* grown
    cdef void* added
    if parts.count == parts.capacity:
        if parts.count == MOST_PARTS:
            return NULL
        capacity = min(max(<int64_t>FEWEST_PARTS, 2 * parts.capacity), <int64_t>MOST_PARTS)
        grown = realloc(parts.items, capacity * size)
        if grown == NULL:
            return NULL
        parts.items = grown
        parts.capacity = capacity
    added = <uint8_t*>parts.items + parts.count * size
    memset(added, 0, size)
    parts.count += 1
    return added


cdef inline void parts_release(PartList* parts) noexcept nogil:
    free(parts.items)
    memset(parts, 0, sizeof(PartList))
