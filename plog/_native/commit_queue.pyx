"""Group commit for the fast path: who asked while a flush was under way shares the next one.

Owns the queue of one log directory. Never decides what a failed flush means:
that is returned to Python, whose thread this runs on.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from plog._native.letter_queue cimport queue_destroy, queue_init, queue_put, queue_stop, queue_take_all
from plog._native.locks cimport add, exchange, load
from plog._native.log_flush cimport partition_begin_flush, partition_flush
from plog._native.mailbox cimport Letter
from plog._native.partition cimport CommitAsked, partition_release, partition_retain


cdef void commit_retain(CommitQueue* queue) noexcept nogil:
    add(&queue.references, 1)


cdef void commit_release(CommitQueue* queue) noexcept nogil:
    cdef Partition* left
    if queue == NULL or add(&queue.references, -1) > 0:
        return
    queue_stop(&queue.asked)
    left = next_asked(queue)
    while left != NULL:  # a flush has failed, and its thread has left the others
        partition_release(left)
        left = next_asked(queue)
    queue_destroy(&queue.asked)
    free(queue)


cdef bint commit_ask(CommitQueue* queue, Partition* partition) noexcept nogil:
    cdef CommitAsked* asked = &partition.commit_asked
    if exchange(&asked.waits, 1) == 1:
        return True  # its flush has yet to begin
    asked.partition = partition
    partition_retain(partition)
    if queue_put(&queue.asked, &asked.letter):
        return True
    exchange(&asked.waits, 0)
    partition_release(partition)
    return False


cdef void begin_flushes(Letter* first) noexcept nogil:
    """Have the disk write all of them at once, rather than each when its flush waits."""
    cdef Letter* letter = first.next  # the first one's flush is next
    while letter != NULL:
        partition_begin_flush((<CommitAsked*>letter).partition)
        letter = letter.next


cdef Partition* next_asked(CommitQueue* queue) noexcept nogil:
    """Wait for a partition to flush; NULL: the queue is stopped, and empty."""
    cdef CommitAsked* asked
    cdef Partition* partition
    if queue.taken == NULL:
        queue.taken = queue_take_all(&queue.asked)
        if queue.taken == NULL:
            return NULL
        begin_flushes(queue.taken)
    asked = <CommitAsked*>queue.taken
    queue.taken = asked.letter.next
    partition = asked.partition
    # Who asks from here on may have appended after the flush has read the end.
    exchange(&asked.waits, 0)
    return partition


cdef class CommitThread:
    def __cinit__(self):
        self.queue = <CommitQueue*>calloc(1, sizeof(CommitQueue))
        if self.queue == NULL:
            raise MemoryError
        self.queue.references = 1
        queue_init(&self.queue.asked)

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
        queue_stop(&self.queue.asked)
