# Group commit for the fast path: the partitions of one log directory that wait for a flush.
from libc.stdint cimport int64_t

from plog._native.locks cimport pthread_mutex_t
from plog._native.partition cimport Partition

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_cond_t:
        pass

ctypedef struct CommitQueue:
    int64_t references           # atomic
    pthread_mutex_t lock
    pthread_cond_t asked
    Partition* first             # chained by next_commit; the queue pins what is in it
    Partition* last
    bint stopped

cdef void commit_retain(CommitQueue* queue) noexcept nogil
cdef void commit_release(CommitQueue* queue) noexcept nogil
# Flush `partition` soon. False: the queue is stopped.
cdef bint commit_ask(CommitQueue* queue, Partition* partition) noexcept nogil


cdef class CommitThread:
    cdef CommitQueue* queue      # a pin
