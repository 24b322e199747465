"""The room that clients have below one log directory, as both planes see it.

Owns the number of bytes that are left. Never looks at a disk, and never refuses a write: the
append does.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free

from plog._native.locks cimport add, load, store


cdef void room_retain(Room* room) noexcept nogil:
    add(&room.references, 1)


cdef void room_release(Room* room) noexcept nogil:
    if room != NULL and add(&room.references, -1) == 0:
        free(room)


cdef class DiskRoom:
    def __cinit__(self):
        self.room = <Room*>calloc(1, sizeof(Room))
        if self.room == NULL:
            raise MemoryError
        self.room.references = 1
        self.room.left = INT64_MAX

    def __dealloc__(self):
        room_release(self.room)

    @property
    def left(self):
        return load(&self.room.left)

    @left.setter
    def left(self, int64_t size):
        store(&self.room.left, size)
