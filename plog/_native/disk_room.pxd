# How many bytes clients may still write to one file system, before its reserve is touched. Whoever looks at the disk
# now and then sets it, every append takes from it: no request asks the file system.
from libc.stdint cimport int64_t, uint8_t

from plog._native.locks cimport CACHE_LINE_BYTES, add

ctypedef struct Room:
    int64_t left                 # atomic; below 0 for a moment, while somebody asks for more than there is
    int64_t references           # atomic
    uint8_t padding[CACHE_LINE_BYTES - 16]  # every append writes to `left`: nothing else may share its cache line

cdef void room_retain(Room* room) noexcept nogil
cdef void room_release(Room* room) noexcept nogil

# Takes what a batch needs, before it is written; false if there is not so much. Without a room there is always enough.
cdef inline bint room_take(Room* room, int64_t size) noexcept nogil:
    if room == NULL or add(&room.left, -size) >= 0:
        return True
    add(&room.left, size)
    return False

cdef inline void room_give_back(Room* room, int64_t size) noexcept nogil:
    if room != NULL:
        add(&room.left, size)


cdef class DiskRoom:
    cdef Room* room              # a pin
