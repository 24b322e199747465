"""The memory of requests that Python has: counted until the last view of it goes.

Owns the count and the wake-up of reactors that wait for memory. Never looks at the bytes.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free

from plog._native.locks cimport add, load
from plog._native.mailbox cimport mailbox_knock


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Frame:
    """A request's memory, held by the memoryviews over it."""

    cdef object owner
    cdef Shared* shared
    cdef void* base
    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef int64_t capacity

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)

    def __dealloc__(self):
        cdef int i
        if self.base == NULL:
            return
        free(self.base)
        add(&self.shared.budget.frame_bytes, -self.capacity)
        if load(&self.shared.starving) > 0:
            for i in range(self.shared.threads):
                mailbox_knock(&self.shared.loops[i].inbox)


cdef object frame_view(object owner, Shared* shared, Note* note):
    cdef Frame frame = Frame.__new__(Frame)
    frame.owner = owner
    frame.shared = shared
    frame.base = note.base
    frame.data = note.data
    frame.size = note.size
    frame.capacity = note.capacity
    note.base = NULL
    return PyMemoryView_FromObject(frame)
