"""Threads beside the reactors, for what would keep a reactor from its other clients.

Owns the queue of one log directory, or of computing, and whether that directory's
disk is slow just now. Never looks into what is to be done.
"""

from libc.stdint cimport INT64_MAX, int64_t
from libc.stdlib cimport calloc, free

from plog._native.files cimport calls
from plog._native.letter_queue cimport queue_destroy, queue_init, queue_put, queue_stop, queue_take
from plog._native.locks cimport add, exchange_if, load, store

cdef enum:
    # A disk that is written behind the page cache takes microseconds; 20 ms are felt by every other client.
    SLOW_US = 20000
    FAST_IN_A_ROW = 64


cdef void work_retain(WorkQueue* queue) noexcept nogil:
    add(&queue.references, 1)


cdef void work_release(WorkQueue* queue) noexcept nogil:
    # Stopped threads have emptied it.
    if queue == NULL or add(&queue.references, -1) > 0:
        return
    queue_destroy(&queue.tasks)
    free(queue)


cdef bint work_ask(WorkQueue* queue, Task* task) noexcept nogil:
    return queue_put(&queue.tasks, &task.letter)


cdef void work_note_time(WorkQueue* queue, int64_t took_us) noexcept nogil:
    cdef int64_t slow = load(&queue.slow)
    if took_us > SLOW_US:
        store(&queue.slow_us, calls().monotonic_us())
        store(&queue.slow, FAST_IN_A_ROW)
    elif slow > 1 or slow == 1 and is_steady(queue):
        exchange_if(&queue.slow, slow, slow - 1)  # not over what another thread has just found


cdef bint is_steady(WorkQueue* queue) noexcept nogil:
    return calls().monotonic_us() - load(&queue.slow_us) >= queue.steady_us


cdef int64_t work_patience_us(const WorkQueue* queue) noexcept nogil:
    return SLOW_US if queue.steady_us > 0 else INT64_MAX


cdef class WorkThread:
    def __cinit__(self, *, int64_t steady_us=0):
        self.queue = <WorkQueue*>calloc(1, sizeof(WorkQueue))
        if self.queue == NULL:
            raise MemoryError
        self.queue.references = 1
        self.queue.steady_us = steady_us
        self.queue.slow_us = -steady_us
        # Its first call must not be a reactor's either.
        self.queue.slow = FAST_IN_A_ROW if steady_us > 0 else 0
        queue_init(&self.queue.tasks)

    def __dealloc__(self):
        work_release(self.queue)

    def run(self):
        cdef Task* task
        with nogil:
            task = <Task*>queue_take(&self.queue.tasks)
            while task != NULL:
                task.work(task)
                task = <Task*>queue_take(&self.queue.tasks)

    def stop(self):
        queue_stop(&self.queue.tasks)

    def note_time(self, int64_t took_us):
        work_note_time(self.queue, took_us)

    @property
    def is_slow(self):
        return load(&self.queue.slow) > 0
