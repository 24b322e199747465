"""The durable part of a partition, and group commit: requests that come during a flush share the next one.

Owns the durable end, the order of syncs behind it and its slot in the log directory's
`durable-ends`, which proves it to a restart. Owns the queue of each log directory for reactors. Never
decides where to cut, nor the meaning of a failed flush: that is returned to Python, whose thread flushes.
"""

from libc.errno cimport EINTR, EIO, ENOMEM, ESHUTDOWN
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.unistd cimport close

from plog._native.crc32c cimport crc32c_update
from plog._native.files cimport calls, lacks_descriptor, write_all
from plog._native.histogram cimport Histogram, Times, times_note
from plog._native.letter_queue cimport queue_destroy, queue_init, queue_put, queue_stop, queue_take_all
from plog._native.locks cimport add, exchange, load, pthread_mutex_lock, pthread_mutex_unlock, store
from plog._native.partition cimport (
    PUBLISH_CLOSED, PUBLISH_DONE, PUBLISH_FAILED, PUBLISH_MISFIT, SLOT_KEY_BYTES, CommitAsked, note_producers,
    partition_changed, partition_go_offline, partition_release, partition_retain, settle, swap_producers)
from plog._native.producers cimport producers_free
from plog._native.segment_files cimport SegmentFiles, active_of, list_release
from plog._native.wire cimport put_int32, put_int64

cdef enum:
    SLOT_BYTES = 32

cdef Times durations            # of every fdatasync of this process


# --- flush ----------------------------------------------------------------------------------------

cdef int write_slot(Partition* partition, int64_t durable_end) noexcept nogil:
    """Under flush_lock."""
    cdef uint8_t slot[SLOT_BYTES]
    if partition.slot_fd < 0:
        return 0
    memcpy(slot, partition.slot_key, SLOT_KEY_BYTES)
    put_int64(slot + SLOT_KEY_BYTES, durable_end)
    put_int32(slot + SLOT_KEY_BYTES + 8, <int32_t>crc32c_update(0, slot, SLOT_KEY_BYTES + 8))
    return write_all(partition.slot_fd, slot, SLOT_BYTES, partition.slot_position)


cdef inline bint lacks_resource(int error) noexcept nogil:
    """Whether an operation, but no sync, can be tried again: `files.NO_RESOURCES`."""
    return lacks_descriptor(error) or error == ENOMEM


cdef int sync_failed(Partition* partition, int failed) noexcept nogil:
    """A failed sync is final: the kernel may have dropped the dirty pages, so that a second try would lie.

    That is so whatever the error. EMFILE of a file system in user space, or ENOMEM of the writing of a page, must not
    be taken for a want of descriptors or memory, after which the flush is tried again.
    """
    cdef int error = EIO if lacks_resource(-failed) else -failed
    partition_go_offline(partition, error)
    return -error


cdef int sync_names(Partition* partition, const SegmentList* segments) noexcept nogil:
    """Make the names of all segments durable. Under flush_lock.

    The directory is opened and closed again: only rolls need it, and a descriptor for each partition would be many.
    Its path is the one under which the segments' files were made. A caller that renames the directory has closed the
    log, or called partition_sync_names before.
    """
    cdef int fd = -EINTR
    cdef int failed
    while fd == -EINTR:
        fd = calls().open_directory(partition.directory)
    if fd < 0:
        if not lacks_resource(-fd):  # without a descriptor nothing has failed yet: the next flush tries again
            partition_go_offline(partition, -fd)
        return fd
    failed = calls().fsync(fd)
    close(fd)
    if failed:
        return sync_failed(partition, failed)
    partition.directory_synced_to = active_of(segments).base_offset
    return 0


cdef int flush_pinned(
        Partition* partition, SegmentList* segments, int64_t log_end_offset) noexcept nogil:
    """Sync in order, so that what is durable is always a prefix of the log."""
    cdef SegmentFiles* segment
    cdef int64_t number, next_offset, begun_us
    cdef int failed
    for number in range(segments.count):
        segment = segments.segments[number]
        next_offset = log_end_offset
        if number < segments.count - 1:
            next_offset = load(&segment.next_offset)
        if next_offset <= partition.durable_end:
            continue
        if segment.base_offset > partition.directory_synced_to:
            failed = sync_names(partition, segments)
            if failed:
                return failed
        begun_us = calls().monotonic_us()
        failed = calls().fdatasync(segment.log_fd)
        times_note(&durations, calls().monotonic_us() - begun_us)
        if failed:
            return sync_failed(partition, failed)
        # The slot first: nobody may hear of an end that a restart could not prove.
        failed = write_slot(partition, next_offset)
        if failed:
            return failed
        pthread_mutex_lock(&partition.lock)
        store(&partition.durable_end, next_offset)
        pthread_mutex_unlock(&partition.lock)
    return 0


cdef void partition_begin_flush(Partition* partition) noexcept nogil:
    cdef SegmentList* segments
    pthread_mutex_lock(&partition.lock)
    segments = partition.segments
    if segments != NULL:
        add(&segments.references, 1)
    pthread_mutex_unlock(&partition.lock)
    if segments != NULL:
        calls().begin_writing(active_of(segments).log_fd)
    list_release(segments)


cdef int partition_flush(Partition* partition, int64_t* durable_end) noexcept nogil:
    cdef SegmentList* segments
    cdef int64_t log_end_offset, before
    cdef int failed = 0
    pthread_mutex_lock(&partition.flush_lock)
    pthread_mutex_lock(&partition.lock)
    # The end is read before any sync: bytes that come later are not promised by this one.
    segments = partition.segments
    if segments != NULL:
        add(&segments.references, 1)
    log_end_offset = partition.log_end_offset
    before = partition.durable_end
    failed = -<int>partition.offline_errno
    pthread_mutex_unlock(&partition.lock)
    if not failed and before < log_end_offset:
        failed = -ESHUTDOWN if segments == NULL else flush_pinned(
            partition, segments, log_end_offset)
    durable_end[0] = load(&partition.durable_end)
    pthread_mutex_unlock(&partition.flush_lock)
    list_release(segments)
    if durable_end[0] != before or failed:
        partition_changed(partition)
    return failed


cdef int partition_sync_names(Partition* partition) noexcept nogil:
    cdef SegmentList* segments
    cdef int failed
    pthread_mutex_lock(&partition.flush_lock)
    pthread_mutex_lock(&partition.lock)
    segments = partition.segments
    if segments != NULL:
        add(&segments.references, 1)
    failed = -<int>partition.offline_errno
    pthread_mutex_unlock(&partition.lock)
    if not failed and segments != NULL and active_of(segments).base_offset > partition.directory_synced_to:
        failed = sync_names(partition, segments)
    pthread_mutex_unlock(&partition.flush_lock)
    list_release(segments)
    if failed:
        partition_changed(partition)
    return failed


# --- slot and truncation --------------------------------------------------------------------------

cdef int partition_set_durable_slot(
        Partition* partition, int fd, int64_t position, const char* key) noexcept nogil:
    cdef int failed
    pthread_mutex_lock(&partition.flush_lock)
    partition.slot_fd = fd
    partition.slot_position = position
    if fd >= 0:
        memcpy(partition.slot_key, key, SLOT_KEY_BYTES)
    failed = write_slot(partition, load(&partition.durable_end))
    pthread_mutex_unlock(&partition.flush_lock)
    return failed


cdef void cut_numbers(Partition* partition, int64_t log_end_offset) noexcept nogil:
    """Under `lock`: nothing may lie past the new end."""
    cdef int64_t kept = 0
    cdef int64_t number
    store(&active_of(partition.segments).next_offset, log_end_offset)
    store(&partition.log_end_offset, log_end_offset)
    store(&partition.durable_end, min(partition.durable_end, log_end_offset))
    store(&partition.log_start_offset, min(partition.log_start_offset, log_end_offset))
    partition.epoch_start = min(partition.epoch_start, log_end_offset)
    # A cut-off marker has ended nothing.
    for number in range(partition.ending_count):
        if partition.ending[number].marker_offset < log_end_offset:
            partition.ending[kept] = partition.ending[number]
            kept += 1
    partition.ending_count = kept
    settle(partition)


cdef PublishStatus partition_truncate(
        Partition* partition, SegmentList* fresh, int64_t log_end_offset, ProducerTable* producers,
        int* error) noexcept nogil:
    cdef SegmentList* unused = fresh
    cdef ProducerTable* replaced = producers
    cdef ProducerTable old
    cdef PublishStatus status = PUBLISH_DONE
    error[0] = 0
    pthread_mutex_lock(&partition.flush_lock)
    pthread_mutex_lock(&partition.write_lock)
    if partition.closed:
        status = PUBLISH_CLOSED
    elif active_of(fresh).next_offset > log_end_offset:
        status = PUBLISH_MISFIT
    elif partition.durable_end > log_end_offset and partition.slot_fd >= 0:
        # On the disk before the files are cut, or a restart would miss bytes that were durable.
        error[0] = -write_slot(partition, log_end_offset)
        if not error[0]:
            error[0] = -calls().fdatasync(partition.slot_fd)
        if error[0]:
            status = PUBLISH_FAILED
    if status == PUBLISH_DONE:
        partition.directory_synced_to = -1
        partition.roll_asked = False
        if producers != NULL:
            old = swap_producers(partition, producers)
            replaced = &old
        pthread_mutex_lock(&partition.lock)
        unused = partition.segments
        partition.segments = fresh
        # With the end, or the last stable offset would pass a transaction whose marker has been cut off.
        if producers != NULL:
            note_producers(partition)
        cut_numbers(partition, log_end_offset)
        # Last: who has seen this number sees the lower offsets, too.
        add(&partition.truncations, 1)
        pthread_mutex_unlock(&partition.lock)
    pthread_mutex_unlock(&partition.write_lock)
    pthread_mutex_unlock(&partition.flush_lock)
    list_release(unused)
    if replaced != NULL:
        producers_free(replaced)
    if status == PUBLISH_DONE:
        partition_changed(partition)
    return status


def flush_times():
    cdef Histogram found = Histogram()
    found.add(&durations)
    return found


# --- group commit ---------------------------------------------------------------------------------

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
    # A request from here on may be about records that were appended after the flush has read the end.
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
                number = load(&asked.number)
                partition_release(asked)
        return (number, -failed) if failed else None

    def stop(self):
        queue_stop(&self.queue.asked)
