# Group commit for the fast path: the partitions of one log directory that wait for a flush.
from libc.stdint cimport int64_t

from plog._native.letter_queue cimport LetterQueue
from plog._native.mailbox cimport Letter
from plog._native.partition cimport Partition

ctypedef struct CommitQueue:
    int64_t references           # atomic
    LetterQueue asked            # of CommitAsked; the queue pins what is in it
    Letter* taken                # the thread's: those of `asked` that it flushes now, chained

cdef void commit_retain(CommitQueue* queue) noexcept nogil
cdef void commit_release(CommitQueue* queue) noexcept nogil
# Flush `partition` soon. False: the queue is stopped.
cdef bint commit_ask(CommitQueue* queue, Partition* partition) noexcept nogil


cdef class CommitThread:
    cdef CommitQueue* queue      # a pin
