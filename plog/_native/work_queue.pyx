"""Threads beside the reactors, for what would keep a reactor from its other clients.

Owns the queue of one log directory, or of computing, and whether that directory's
disk is slow just now. Never looks into what is to be done.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from plog._native.locks cimport (
    add, load, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, store)

cdef extern from "<pthread.h>" nogil:
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)

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
    pthread_cond_destroy(&queue.asked)
    pthread_mutex_destroy(&queue.lock)
    free(queue)


cdef bint work_ask(WorkQueue* queue, Task* task) noexcept nogil:
    cdef bint taken
    task.letter.next = NULL
    pthread_mutex_lock(&queue.lock)
    taken = not queue.stopped
    if taken:
        if queue.first == NULL:
            queue.first = &task.letter
        else:
            queue.last.next = &task.letter
        queue.last = &task.letter
        pthread_cond_signal(&queue.asked)
    pthread_mutex_unlock(&queue.lock)
    return taken


cdef void work_note_time(WorkQueue* queue, int64_t took_us) noexcept nogil:
    cdef int64_t slow = load(&queue.slow)
    if took_us > SLOW_US:
        store(&queue.slow, FAST_IN_A_ROW)
    elif slow > 0:
        store(&queue.slow, slow - 1)


cdef Task* next_task(WorkQueue* queue) noexcept nogil:
    """Wait for something to do; NULL: the queue is stopped, and empty."""
    cdef Task* found
    pthread_mutex_lock(&queue.lock)
    while queue.first == NULL and not queue.stopped:
        pthread_cond_wait(&queue.asked, &queue.lock)
    found = <Task*>queue.first
    if found != NULL:
        queue.first = found.letter.next
    pthread_mutex_unlock(&queue.lock)
    return found


cdef class WorkThread:
    def __cinit__(self):
        self.queue = <WorkQueue*>calloc(1, sizeof(WorkQueue))
        if self.queue == NULL:
            raise MemoryError
        self.queue.references = 1
        pthread_mutex_init(&self.queue.lock, NULL)
        pthread_cond_init(&self.queue.asked, NULL)

    def __dealloc__(self):
        work_release(self.queue)

    def run(self):
        cdef Task* task
        with nogil:
            task = next_task(self.queue)
            while task != NULL:
                task.work(task)
                task = next_task(self.queue)

    def stop(self):
        pthread_mutex_lock(&self.queue.lock)
        self.queue.stopped = True
        pthread_cond_broadcast(&self.queue.asked)
        pthread_mutex_unlock(&self.queue.lock)

    @property
    def is_slow(self):
        return load(&self.queue.slow) > 0
