# The durable end of a partition: how it moves on, is proved and is taken back; and group commit.
from libc.stdint cimport int64_t

from plog._native.letter_queue cimport LetterQueue
from plog._native.mailbox cimport Letter
from plog._native.partition cimport Partition, PublishStatus
from plog._native.producers cimport ProducerTable
from plog._native.segment_files cimport SegmentList

# Have the disk begin to write what a flush will wait for.
cdef void partition_begin_flush(Partition* partition) noexcept nogil
# 0 or -errno; *durable_end is set either way.
cdef int partition_flush(Partition* partition, int64_t* durable_end) noexcept nogil
# Makes the segments' names durable, which a flush would do when it is due. 0 or -errno.
cdef int partition_sync_names(Partition* partition) noexcept nogil
cdef int partition_set_durable_slot(
    Partition* partition, int fd, int64_t position, const char* key) noexcept nogil
# The list and the table (NULL: the producers stay) are taken over, whatever the result.
cdef PublishStatus partition_truncate(
    Partition* partition, SegmentList* fresh, int64_t log_end_offset, ProducerTable* producers,
    int* error) noexcept nogil

# The partitions of one log directory that wait for a flush.
ctypedef struct CommitQueue:
    int64_t references           # atomic
    LetterQueue asked            # of CommitAsked, each with a pin
    Letter* taken                # the thread's: those of `asked` that it flushes now, chained

cdef void commit_retain(CommitQueue* queue) noexcept nogil
cdef void commit_release(CommitQueue* queue) noexcept nogil
# Flush `partition` soon. False: the queue is stopped.
cdef bint commit_ask(CommitQueue* queue, Partition* partition) noexcept nogil


cdef class CommitThread:
    cdef CommitQueue* queue      # a pin
