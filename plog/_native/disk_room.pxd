# How many bytes clients may still write below one log directory, before its reserve is touched. Whoever looks at the
# disk now and then sets it, every append takes from it: no request asks the file system.
from libc.stdint cimport int64_t

from plog._native.locks cimport add, load

ctypedef struct Room:
    int64_t references           # atomic
    int64_t left                 # atomic; may be below 0 for a moment, as appends take it after they have written

cdef void room_retain(Room* room) noexcept nogil
cdef void room_release(Room* room) noexcept nogil

# Without a room there is always enough.
cdef inline bint room_has(const Room* room, int64_t size) noexcept nogil:
    return room == NULL or load(&room.left) >= size

cdef inline void room_take(Room* room, int64_t size) noexcept nogil:
    if room != NULL:
        add(&room.left, -size)


cdef class DiskRoom:
    cdef Room* room              # a pin
