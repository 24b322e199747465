# The durable end of a partition: what moves it on, proves it and takes it back.
from libc.stdint cimport int64_t

from plog._native.partition cimport Partition, PublishStatus, SegmentList
from plog._native.producers cimport ProducerTable

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
