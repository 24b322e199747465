"""The room that clients have on one file system, as both planes see it.

Owns the number of bytes that are left. Never looks at a disk, and never refuses a write: the
append does.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from plog._native.locks cimport CACHE_LINE_BYTES, add, load, store

cdef extern from "<stdlib.h>" nogil:
    void* aligned_alloc(size_t alignment, size_t size)


cdef void room_retain(Room* room) noexcept nogil:
    add(&room.references, 1)


cdef void room_release(Room* room) noexcept nogil:
    if room != NULL and add(&room.references, -1) == 0:
        free(room)


cdef class DiskRoom:
    def __cinit__(self):
        self.room = <Room*>aligned_alloc(CACHE_LINE_BYTES, sizeof(Room))
        if self.room == NULL:
            raise MemoryError
        memset(self.room, 0, sizeof(Room))
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

    def take(self, int64_t size):
        return room_take(self.room, size)
