"""Group commit for the fast path: who asked while a flush was under way shares the next one.

Owns the queue of one log directory. Never decides what a failed flush means:
that is returned to Python, whose thread this runs on.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from plog._native.locks cimport (
    add, load, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock)
from plog._native.partition cimport partition_flush, partition_release, partition_retain

cdef extern from "<pthread.h>" nogil:
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)


cdef void commit_retain(CommitQueue* queue) noexcept nogil:
    add(&queue.references, 1)


cdef void commit_release(CommitQueue* queue) noexcept nogil:
    cdef Partition* left
    if queue == NULL or add(&queue.references, -1) > 0:
        return
    while queue.first != NULL:
        left = queue.first
        queue.first = left.next_commit
        left.commit_asked = False
        partition_release(left)
    pthread_cond_destroy(&queue.asked)
    pthread_mutex_destroy(&queue.lock)
    free(queue)


cdef bint commit_ask(CommitQueue* queue, Partition* partition) noexcept nogil:
    cdef bint taken
    pthread_mutex_lock(&queue.lock)
    taken = not queue.stopped
    if taken and not partition.commit_asked:
        partition.commit_asked = True
        partition_retain(partition)
        partition.next_commit = NULL
        if queue.first == NULL:
            queue.first = partition
            pthread_cond_signal(&queue.asked)
        else:
            queue.last.next_commit = partition
        queue.last = partition
    pthread_mutex_unlock(&queue.lock)
    return taken


cdef Partition* next_asked(CommitQueue* queue) noexcept nogil:
    """Wait for a partition to flush; NULL: the queue is stopped, and empty."""
    cdef Partition* found
    pthread_mutex_lock(&queue.lock)
    while queue.first == NULL and not queue.stopped:
        pthread_cond_wait(&queue.asked, &queue.lock)
    found = queue.first
    if found != NULL:
        queue.first = found.next_commit
        # Who asks from here on may have appended after the flush has read the end.
        found.commit_asked = False
    pthread_mutex_unlock(&queue.lock)
    return found


cdef class CommitThread:
    def __cinit__(self):
        self.queue = <CommitQueue*>calloc(1, sizeof(CommitQueue))
        if self.queue == NULL:
            raise MemoryError
        self.queue.references = 1
        pthread_mutex_init(&self.queue.lock, NULL)
        pthread_cond_init(&self.queue.asked, NULL)

    def __dealloc__(self):
        commit_release(self.queue)

    def run(self):
        cdef Partition* asked
        cdef int64_t durable_end = 0
        cdef int64_t number = -1
        cdef int failed = 0
        with nogil:
            while not failed:
                asked = next_asked(self.queue)
                if asked == NULL:
                    break
                failed = partition_flush(asked, &durable_end)
                number = load(&asked.listener_number)
                partition_release(asked)
        return (number, -failed) if failed else None

    def stop(self):
        pthread_mutex_lock(&self.queue.lock)
        self.queue.stopped = True
        pthread_cond_signal(&self.queue.asked)
        pthread_mutex_unlock(&self.queue.lock)
