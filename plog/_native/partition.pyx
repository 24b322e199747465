"""The mutable state of one partition, under one set of locks for Python and the reactor alike.

Owns the segment list, the offsets, the producers and the order of appends, and calls the disk for
them; not one Python object. Never decides who leads, when to roll or delete, or what an unusual
producer means: Python publishes its decisions here.

Invariants, under `lock`: log_start_offset <= high_watermark <= log_end_offset, durable_end <=
log_end_offset, last_stable_offset <= high_watermark. log_end_offset is the active segment's
next_offset.
"""

from libc.errno cimport ENOMEM, ESHUTDOWN
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy
from posix.unistd cimport close

from plog._native.batch_fields cimport (
    AT_ATTRIBUTES, AT_BASE_SEQUENCE, AT_BATCH_LENGTH, AT_LAST_OFFSET_DELTA, AT_LEADER_EPOCH,
    AT_MAGIC, AT_MAX_TIMESTAMP, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER_BYTES)
from plog._native.crc32c cimport crc32c_update
from plog._native.files cimport calls, write_all
from plog._native.locks cimport (
    add, load, load_ordered, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
    pthread_mutex_unlock, store)
from plog._native.producers cimport (
    NO_TRANSACTION, ORDINARY, REPEATED, Judgement, ProducerBatch, producers_assign,
    producers_find, producers_first_open, producers_free, producers_init, producers_judge,
    producers_note, producers_obtain, producers_remove, producers_set_transaction)
from plog._native.segment cimport (
    WALK_CORRUPT, WALK_FOUND, WALK_PAST_END, BatchPlace, Window, segment_find,
    segment_find_upper, segment_publish, segment_release, segment_retain, segment_write)
from plog._native.wire cimport be16, be32, be64, put_int32, put_int64

cdef enum:
    LOG_OVERHEAD_BYTES = 12
    SLOT_BYTES = 32


# --- segment lists --------------------------------------------------------------------------------

cdef SegmentList* list_new(int64_t count) noexcept nogil:
    cdef SegmentList* made = <SegmentList*>malloc(
        sizeof(SegmentList) + count * sizeof(SegmentFiles*))
    if made != NULL:
        made.references = 1
        made.count = count
        made.size_before_active = 0
        made.segments = <SegmentFiles**>(made + 1)
    return made


cdef void list_release(SegmentList* segments) noexcept nogil:
    cdef int64_t number
    if segments == NULL or add(&segments.references, -1) > 0:
        return
    for number in range(segments.count):
        segment_release(segments.segments[number])
    free(segments)


cdef SegmentFiles* active_of(const SegmentList* segments) noexcept nogil:
    return segments.segments[segments.count - 1]


# --- the partition's life -------------------------------------------------------------------------

cdef Partition* partition_new() noexcept nogil:
    cdef Partition* made = <Partition*>calloc(1, sizeof(Partition))
    if made == NULL:
        return NULL
    if producers_init(&made.producers):
        free(made)
        return NULL
    made.references = 1
    made.directory_fd = -1
    made.slot_fd = -1
    made.directory_synced_to = -1
    made.segment_bytes = INT32_MAX
    made.segment_ms = INT64_MAX
    made.first_open_offset = INT64_MAX
    made.waiters.previous = made.waiters.next = &made.waiters
    pthread_mutex_init(&made.flush_lock, NULL)
    pthread_mutex_init(&made.write_lock, NULL)
    pthread_mutex_init(&made.lock, NULL)
    return made


cdef void partition_retain(Partition* partition) noexcept nogil:
    add(&partition.references, 1)


cdef void partition_release(Partition* partition) noexcept nogil:
    if partition == NULL or add(&partition.references, -1) > 0:
        return
    list_release(partition.segments)
    producers_free(&partition.producers)
    free(partition.ending)
    if partition.directory_fd >= 0:
        close(partition.directory_fd)
    pthread_mutex_destroy(&partition.flush_lock)
    pthread_mutex_destroy(&partition.write_lock)
    pthread_mutex_destroy(&partition.lock)
    free(partition)


cdef void partition_changed(Partition* partition) noexcept nogil:
    """The one place that every change others may wait for passes through; no lock is held."""
    cdef Waiter* waiter
    cdef Waiter* after
    add(&partition.changes, 1)
    # Who comes later looks at `changes` once it is in the list, and finds this one.
    if load_ordered(&partition.waiting) == 0:
        return
    pthread_mutex_lock(&partition.lock)
    if partition.watched:
        partition.watched = False
        add(&partition.waiting, -1)
        if partition.listener != NULL:
            partition.listener(partition.listener_argument, partition.listener_number)
    waiter = partition.waiters.next
    while waiter != &partition.waiters:
        after = waiter.next
        waiter.wake(waiter)
        waiter = after
    pthread_mutex_unlock(&partition.lock)


cdef void partition_add_waiter(Partition* partition, Waiter* waiter) noexcept nogil:
    pthread_mutex_lock(&partition.lock)
    waiter.partition = partition
    waiter.previous = partition.waiters.previous
    waiter.next = &partition.waiters
    partition.waiters.previous.next = waiter
    partition.waiters.previous = waiter
    add(&partition.waiting, 1)
    pthread_mutex_unlock(&partition.lock)


cdef void partition_remove_waiter(Waiter* waiter) noexcept nogil:
    cdef Partition* partition = waiter.partition
    if partition == NULL:
        return
    pthread_mutex_lock(&partition.lock)
    waiter.previous.next = waiter.next
    waiter.next.previous = waiter.previous
    waiter.partition = NULL
    add(&partition.waiting, -1)
    pthread_mutex_unlock(&partition.lock)


cdef void partition_watch(Partition* partition) noexcept nogil:
    pthread_mutex_lock(&partition.lock)
    if not partition.watched:
        partition.watched = True
        add(&partition.waiting, 1)
    pthread_mutex_unlock(&partition.lock)


cdef void partition_set_listener(
        Partition* partition, ChangeListener listener, void* argument, int64_t number) noexcept nogil:
    pthread_mutex_lock(&partition.lock)
    partition.listener = listener
    partition.listener_argument = argument
    store(&partition.listener_number, number)
    pthread_mutex_unlock(&partition.lock)


cdef void partition_go_offline(Partition* partition, int error) noexcept nogil:
    # The first reason stays.
    pthread_mutex_lock(&partition.lock)
    if partition.offline_errno == 0:
        store(&partition.offline_errno, error)
    pthread_mutex_unlock(&partition.lock)


cdef void settle(Partition* partition) noexcept nogil:
    """Under `lock`, after any change: restore what the invariants say of the dependent offsets.

    The last stable offset stops at the first offset of every transaction that is open or whose
    marker the high watermark has not passed.
    """
    cdef int64_t stable
    cdef int64_t kept = 0
    cdef int64_t number
    if partition.high_watermark > partition.log_end_offset:
        store(&partition.high_watermark, partition.log_end_offset)
    if partition.high_watermark < partition.log_start_offset:
        store(&partition.high_watermark, partition.log_start_offset)
    stable = min(partition.high_watermark, partition.first_open_offset)
    for number in range(partition.ending_count):
        if partition.ending[number].marker_offset >= partition.high_watermark:
            stable = min(stable, partition.ending[number].first_offset)
            partition.ending[kept] = partition.ending[number]
            kept += 1
    partition.ending_count = kept
    store(&partition.last_stable_offset, max(stable, partition.log_start_offset))


# --- append ---------------------------------------------------------------------------------------

cdef bint roll_is_due(
        const Partition* partition, const SegmentFiles* active, int64_t size, int64_t last_offset,
        int64_t max_timestamp, int64_t now_ms) noexcept nogil:
    cdef int64_t waited_ms
    if last_offset - active.base_offset > INT32_MAX:
        return True
    if active.size_bytes == 0:
        return False  # a fresh segment would have no more room
    if active.size_bytes + size > partition.segment_bytes:
        return True
    # The last place of a time index is seal()'s.
    if (active.offset_entries >= active.max_offset_entries
            or active.time_entries >= active.max_time_entries - 1):
        return True
    # Kafka's rule: by record time if there is any, else by the age of the segment.
    if active.first_append_ms >= 0:
        waited_ms = max_timestamp - active.first_append_ms
    else:
        waited_ms = now_ms - active.created_ms
    return waited_ms > partition.segment_ms - partition.segment_jitter_ms


cdef int reserve_ending(Partition* partition) noexcept nogil:
    # Under write_lock, which all who add hold; `lock` keeps out those who drop.
    cdef EndingTransaction* larger
    cdef int failed = 0
    pthread_mutex_lock(&partition.lock)
    if partition.ending_count == partition.ending_capacity:
        larger = <EndingTransaction*>realloc(
            partition.ending, (partition.ending_capacity + 8) * sizeof(EndingTransaction))
        if larger == NULL:
            failed = -ENOMEM
        else:
            partition.ending = larger
            partition.ending_capacity += 8
    pthread_mutex_unlock(&partition.lock)
    return failed


cdef void append_locked(
        Partition* partition, uint8_t* data, int64_t size, int64_t now_ms,
        const Producer* decided, AppendResult* out) noexcept nogil:
    cdef int16_t attributes = <int16_t>be16(data + AT_ATTRIBUTES)
    cdef int32_t last_offset_delta = <int32_t>be32(data + AT_LAST_OFFSET_DELTA)
    cdef int64_t max_timestamp = <int64_t>be64(data + AT_MAX_TIMESTAMP)
    cdef int64_t producer_id = <int64_t>be64(data + AT_PRODUCER_ID)
    cdef int16_t producer_epoch = <int16_t>be16(data + AT_PRODUCER_EPOCH)
    cdef bint transactional = (attributes & ATTRIBUTE_TRANSACTIONAL) != 0
    cdef bint control = (attributes & ATTRIBUTE_CONTROL) != 0
    cdef int64_t base_offset = partition.log_end_offset
    cdef int64_t last_offset = base_offset + last_offset_delta
    cdef int64_t ended_transaction = NO_TRANSACTION
    cdef SegmentFiles* active
    cdef Producer* producer = NULL
    cdef bint made_producer = False
    cdef const ProducerBatch* repeated = NULL
    cdef ProducerBatch remembered
    cdef Judgement judged
    cdef bint broken = False
    cdef int failed

    if load(&partition.offline_errno) or load(&partition.closed) or not partition.writable:
        out.status = APPEND_NOT_WRITABLE
        out.error = <int>load(&partition.offline_errno)
        return

    remembered.first_sequence = <int32_t>be32(data + AT_BASE_SEQUENCE)
    remembered.last_sequence = <int32_t>(
        (<int64_t>remembered.first_sequence + last_offset_delta) & 0x7FFFFFFF)
    if producer_id >= 0:
        producer = producers_find(&partition.producers, producer_id)
        if decided != NULL:
            if (decided.producer_id != producer_id
                    or decided.version != (0 if producer == NULL else producer.version)):
                out.status = APPEND_PRODUCER_UNUSUAL
                return
        else:
            if control:
                out.status = APPEND_PRODUCER_UNUSUAL
                return
            judged = producers_judge(
                producer, producer_epoch, remembered.first_sequence, remembered.last_sequence,
                transactional, &repeated)
            if judged == REPEATED:
                out.status = APPEND_DUPLICATE
                out.base_offset = repeated.last_offset - repeated.offset_delta
                out.last_offset = repeated.last_offset
                out.timestamp = repeated.timestamp
                return
            if judged != ORDINARY:
                out.status = APPEND_PRODUCER_UNUSUAL
                return

    active = active_of(partition.segments)
    if partition.roll_asked or roll_is_due(
            partition, active, size, last_offset, max_timestamp, now_ms):
        # Nothing is let in behind, even if it would fit, so that the new segment's base offset,
        # which names its files, stays what it was when they were made.
        partition.roll_asked = True
        out.status = APPEND_ROLL_NEEDED
        return

    # Whatever may fail for want of memory comes before the write: what is on the disk is published.
    if decided != NULL and producer_id >= 0:
        made_producer = producer == NULL
        producer = producers_obtain(&partition.producers, producer_id)
        if producer == NULL or reserve_ending(partition):
            if producer != NULL and made_producer:
                producers_remove(&partition.producers, producer_id)
            out.status = APPEND_WRITE_FAILED
            out.error = ENOMEM
            return

    # Both lie before the CRC's range.
    put_int64(data, base_offset)
    put_int32(data + AT_LEADER_EPOCH, <int32_t>partition.leader_epoch)
    failed = segment_write(
        active, data, size, last_offset, max_timestamp, partition.index_interval_bytes, &broken)
    if failed:
        if made_producer:
            producers_remove(&partition.producers, producer_id)
        if broken:
            partition_go_offline(partition, -failed)
        out.status = APPEND_WRITE_FAILED
        out.error = -failed
        return

    if producer != NULL:
        if decided != NULL:
            if control and decided.current_txn_first_offset == NO_TRANSACTION:
                ended_transaction = producer.current_txn_first_offset
            producers_assign(&partition.producers, producer, decided)
        if not control:
            if transactional and producer.current_txn_first_offset == NO_TRANSACTION:
                producers_set_transaction(&partition.producers, producer, base_offset)
            remembered.offset_delta = last_offset_delta
            remembered.last_offset = last_offset
            remembered.timestamp = max_timestamp
            producers_note(&partition.producers, producer, &remembered)

    pthread_mutex_lock(&partition.lock)
    segment_publish(active, size, last_offset, max_timestamp)
    store(&partition.log_end_offset, last_offset + 1)
    partition.first_open_offset = producers_first_open(&partition.producers)
    if ended_transaction != NO_TRANSACTION:
        partition.ending[partition.ending_count].first_offset = ended_transaction
        partition.ending[partition.ending_count].marker_offset = last_offset
        partition.ending_count += 1
    if partition.sole_replica:
        store(&partition.high_watermark, last_offset + 1)
    settle(partition)
    pthread_mutex_unlock(&partition.lock)
    out.status = APPEND_DONE
    out.base_offset = base_offset
    out.last_offset = last_offset
    out.timestamp = max_timestamp


cdef void partition_append(
        Partition* partition, uint8_t* data, int64_t size, int64_t now_ms,
        const Producer* decided, AppendResult* out) noexcept nogil:
    out.base_offset = out.last_offset = out.timestamp = -1
    out.error = 0
    out.log_start_offset = load(&partition.log_start_offset)
    if (size < BATCH_HEADER_BYTES or <int8_t>data[AT_MAGIC] != 2
            or <int64_t><int32_t>be32(data + AT_BATCH_LENGTH) + LOG_OVERHEAD_BYTES != size
            or <int32_t>be32(data + AT_LAST_OFFSET_DELTA) < 0):
        out.status = APPEND_BAD_BATCH
        return
    pthread_mutex_lock(&partition.write_lock)
    append_locked(partition, data, size, now_ms, decided, out)
    pthread_mutex_unlock(&partition.write_lock)
    if out.status == APPEND_DONE or load(&partition.offline_errno):
        partition_changed(partition)


# --- read -----------------------------------------------------------------------------------------

cdef int64_t floor_segment(const SegmentList* segments, int64_t offset) noexcept nogil:
    """Number of the last segment based at or below `offset`; -1 when all lie above."""
    cdef int64_t low = 0
    cdef int64_t high = segments.count
    cdef int64_t middle
    while low < high:
        middle = (low + high) // 2
        if segments.segments[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef void read_pinned(
        SegmentList* segments, int64_t active_size, int64_t fetch_offset, int64_t max_bytes,
        int64_t limit, bint whole_first_batch, bint may_wait, ReadResult* out) noexcept nogil:
    """Find the bytes; `limit` is at most the log end offset that goes with `active_size`."""
    cdef int64_t number = floor_segment(segments, fetch_offset)
    cdef SegmentFiles* segment = NULL
    cdef BatchPlace place
    cdef Window window
    cdef int64_t size = 0
    cdef int64_t next_offset, enough
    cdef int64_t end = 0
    cdef int status = WALK_PAST_END
    if number < 0:
        out.status = READ_OUT_OF_RANGE
        return
    window.position = window.filled = 0
    window.never_waits = not may_wait
    while number < segments.count and segments.segments[number].base_offset < limit:
        segment = segments.segments[number]
        # The active one may have grown since; of the others nothing changes any more.
        size = active_size if number == segments.count - 1 else load(&segment.size_bytes)
        window.filled = 0
        status = segment_find(segment, fetch_offset, size, &window, &place)
        if status != WALK_PAST_END:
            break
        number += 1  # compaction left a gap at the segment's end
    if status == WALK_PAST_END or (status == WALK_FOUND and place.base_offset >= limit):
        out.status = READ_NOTHING
        return
    out.base_offset = segment.base_offset
    out.position = place.position
    if status == WALK_FOUND:
        next_offset = out.log_end_offset
        if number < segments.count - 1:
            next_offset = load(&segment.next_offset)
        out.next_offset_hint = next_offset
        if max_bytes < place.size:
            if not whole_first_batch:
                out.status = READ_NOTHING
                return
            max_bytes = place.size
        enough = place.position + min(max_bytes, size - place.position)
        if limit >= next_offset:
            end = size
        else:
            status = segment_find_upper(
                segment, &place, limit, size, enough, &window, &end, &out.next_offset_hint)
            if status == WALK_CORRUPT:
                out.position = end
    if status == WALK_FOUND:
        out.status = READ_FOUND
        out.size = min(end, enough) - out.position
        if end > enough:
            out.next_offset_hint = -1
        elif out.next_offset_hint < 0:  # nothing lies between the end and the limit
            out.next_offset_hint = next_offset
        segment_retain(segment)
        out.segment = segment
    elif status == WALK_CORRUPT:
        out.status = READ_CORRUPT
    else:
        out.status = READ_FAILED
        out.error = -status


cdef void partition_read(
        Partition* partition, int64_t fetch_offset, int64_t max_bytes, int64_t upper_offset,
        bint whole_first_batch, bint may_wait, ReadResult* out) noexcept nogil:
    cdef SegmentList* segments
    cdef int64_t active_size = 0
    out.segment = NULL
    out.base_offset = out.next_offset_hint = -1
    out.position = out.size = 0
    out.error = 0
    pthread_mutex_lock(&partition.lock)
    segments = partition.segments
    if segments != NULL:
        add(&segments.references, 1)
        active_size = active_of(segments).size_bytes
    out.log_start_offset = partition.log_start_offset
    out.log_end_offset = partition.log_end_offset
    out.high_watermark = partition.high_watermark
    out.last_stable_offset = partition.last_stable_offset
    out.error = <int>partition.offline_errno
    pthread_mutex_unlock(&partition.lock)
    if segments == NULL or out.error:
        out.status = READ_OFFLINE
    elif not out.log_start_offset <= fetch_offset <= out.log_end_offset:
        out.status = READ_OUT_OF_RANGE
    elif fetch_offset >= min(upper_offset, out.log_end_offset):
        out.status = READ_NOTHING
    else:
        read_pinned(
            segments, active_size, fetch_offset, max_bytes,
            min(upper_offset, out.log_end_offset), whole_first_batch, may_wait, out)
    list_release(segments)


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


cdef int flush_pinned(
        Partition* partition, SegmentList* segments, int64_t log_end_offset) noexcept nogil:
    """Sync in order, so that what is durable is always a prefix of the log."""
    cdef SegmentFiles* segment
    cdef int64_t number, next_offset
    cdef int failed
    for number in range(segments.count):
        segment = segments.segments[number]
        next_offset = log_end_offset
        if number < segments.count - 1:
            next_offset = load(&segment.next_offset)
        if next_offset <= partition.durable_end:
            continue
        if segment.base_offset > partition.directory_synced_to:
            failed = calls().fsync(partition.directory_fd)
            if failed:
                partition_go_offline(partition, -failed)
                return failed
            partition.directory_synced_to = active_of(segments).base_offset
        failed = calls().fdatasync(segment.log_fd)
        if failed:
            # The kernel may have dropped the dirty pages: a second try would lie.
            partition_go_offline(partition, -failed)
            return failed
        # The slot first: nobody may hear of an end that a restart could not prove.
        failed = write_slot(partition, next_offset)
        if failed:
            return failed
        pthread_mutex_lock(&partition.lock)
        store(&partition.durable_end, next_offset)
        pthread_mutex_unlock(&partition.lock)
    return 0


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


# --- what Python and replication publish ----------------------------------------------------------

cdef bint partition_advance_high_watermark(Partition* partition, int64_t offset) noexcept nogil:
    cdef bint moved
    pthread_mutex_lock(&partition.lock)
    offset = min(offset, partition.log_end_offset)
    moved = offset > partition.high_watermark
    if moved:
        store(&partition.high_watermark, offset)
        settle(partition)
    pthread_mutex_unlock(&partition.lock)
    if moved:
        partition_changed(partition)
    return moved


cdef void partition_set_limits(
        Partition* partition, int64_t segment_bytes, int64_t segment_ms, int64_t segment_jitter_ms,
        int64_t index_interval_bytes) noexcept nogil:
    pthread_mutex_lock(&partition.write_lock)
    store(&partition.segment_bytes, segment_bytes)
    partition.segment_ms = segment_ms
    partition.segment_jitter_ms = segment_jitter_ms
    partition.index_interval_bytes = index_interval_bytes
    partition.roll_asked = False
    pthread_mutex_unlock(&partition.write_lock)


cdef void partition_set_leader(
        Partition* partition, int32_t leader_epoch, bint writable,
        bint sole_replica) noexcept nogil:
    pthread_mutex_lock(&partition.write_lock)
    store(&partition.writable, writable)
    partition.sole_replica = sole_replica
    pthread_mutex_lock(&partition.lock)
    store(&partition.leader_epoch, leader_epoch)
    if sole_replica:
        store(&partition.high_watermark, partition.log_end_offset)
    settle(partition)
    pthread_mutex_unlock(&partition.lock)
    pthread_mutex_unlock(&partition.write_lock)
    partition_changed(partition)


cdef bint partition_set_log_start_offset(Partition* partition, int64_t offset) noexcept nogil:
    cdef bint fits
    pthread_mutex_lock(&partition.lock)
    fits = offset <= partition.log_end_offset
    if fits:
        store(&partition.log_start_offset, offset)
        settle(partition)
    pthread_mutex_unlock(&partition.lock)
    if fits:
        partition_changed(partition)
    return fits


cdef PublishStatus partition_replace_segments(
        Partition* partition, SegmentList* fresh) noexcept nogil:
    cdef SegmentList* unused = fresh
    cdef PublishStatus status = PUBLISH_DONE
    pthread_mutex_lock(&partition.write_lock)
    pthread_mutex_lock(&partition.lock)
    if partition.closed:
        status = PUBLISH_CLOSED
    elif active_of(fresh).next_offset != partition.log_end_offset:
        status = PUBLISH_MISFIT
    else:
        if active_of(fresh) != active_of(partition.segments):
            partition.roll_asked = False
        unused = partition.segments
        partition.segments = fresh
    pthread_mutex_unlock(&partition.lock)
    pthread_mutex_unlock(&partition.write_lock)
    # Outside the locks: the last pin closes files.
    list_release(unused)
    if status == PUBLISH_DONE:
        partition_changed(partition)
    return status


cdef void cut_numbers(Partition* partition, int64_t log_end_offset) noexcept nogil:
    """Under `lock`: nothing may lie past the new end."""
    cdef int64_t kept = 0
    cdef int64_t number
    store(&active_of(partition.segments).next_offset, log_end_offset)
    store(&partition.log_end_offset, log_end_offset)
    store(&partition.durable_end, min(partition.durable_end, log_end_offset))
    store(&partition.log_start_offset, min(partition.log_start_offset, log_end_offset))
    # A cut-off marker has ended nothing.
    for number in range(partition.ending_count):
        if partition.ending[number].marker_offset < log_end_offset:
            partition.ending[kept] = partition.ending[number]
            kept += 1
    partition.ending_count = kept
    settle(partition)


cdef PublishStatus partition_truncate(
        Partition* partition, SegmentList* fresh, int64_t log_end_offset,
        int* error) noexcept nogil:
    cdef SegmentList* unused = fresh
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
        pthread_mutex_lock(&partition.lock)
        unused = partition.segments
        partition.segments = fresh
        # First, so that who sees offsets of after it sees it too.
        add(&partition.truncations, 1)
        cut_numbers(partition, log_end_offset)
        pthread_mutex_unlock(&partition.lock)
    pthread_mutex_unlock(&partition.write_lock)
    pthread_mutex_unlock(&partition.flush_lock)
    list_release(unused)
    if status == PUBLISH_DONE:
        partition_changed(partition)
    return status


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


cdef void partition_close(Partition* partition) noexcept nogil:
    cdef SegmentList* old
    pthread_mutex_lock(&partition.flush_lock)
    partition.slot_fd = -1
    pthread_mutex_lock(&partition.write_lock)
    store(&partition.writable, False)
    pthread_mutex_lock(&partition.lock)
    store(&partition.closed, 1)
    old = partition.segments
    partition.segments = NULL
    pthread_mutex_unlock(&partition.lock)
    pthread_mutex_unlock(&partition.write_lock)
    pthread_mutex_unlock(&partition.flush_lock)
    list_release(old)
    partition_changed(partition)


# --- producers ------------------------------------------------------------------------------------

cdef void publish_producers(Partition* partition) noexcept nogil:
    """Under write_lock, after a change of the table that is no append."""
    pthread_mutex_lock(&partition.lock)
    partition.first_open_offset = producers_first_open(&partition.producers)
    settle(partition)
    pthread_mutex_unlock(&partition.lock)


cdef bint partition_copy_producer(
        Partition* partition, int64_t producer_id, Producer* out) noexcept nogil:
    cdef Producer* found
    pthread_mutex_lock(&partition.write_lock)
    found = producers_find(&partition.producers, producer_id)
    if found != NULL:
        out[0] = found[0]
    pthread_mutex_unlock(&partition.write_lock)
    return found != NULL


cdef int64_t partition_copy_producers(Partition* partition, Producer** out) noexcept nogil:
    cdef int64_t slot
    cdef int64_t count = 0
    out[0] = NULL
    pthread_mutex_lock(&partition.write_lock)
    if partition.producers.count > 0:
        out[0] = <Producer*>malloc(partition.producers.count * sizeof(Producer))
        if out[0] == NULL:
            count = -ENOMEM
        else:
            for slot in range(partition.producers.capacity):
                if partition.producers.slots[slot] != NULL:
                    out[0][count] = partition.producers.slots[slot][0]
                    count += 1
    pthread_mutex_unlock(&partition.write_lock)
    return count


cdef int partition_put_producer(
        Partition* partition, const Producer* source, int64_t if_version) noexcept nogil:
    cdef Producer* found
    cdef int done = 0
    pthread_mutex_lock(&partition.write_lock)
    found = producers_find(&partition.producers, source.producer_id)
    if if_version == (0 if found == NULL else found.version):
        found = producers_obtain(&partition.producers, source.producer_id)
        if found == NULL:
            done = -ENOMEM
        else:
            producers_assign(&partition.producers, found, source)
            publish_producers(partition)
            done = 1
    pthread_mutex_unlock(&partition.write_lock)
    if done == 1:
        partition_changed(partition)
    return done


cdef void partition_load_producers(Partition* partition, ProducerTable* fresh) noexcept nogil:
    cdef ProducerTable old
    cdef int64_t slot
    pthread_mutex_lock(&partition.write_lock)
    old = partition.producers
    partition.producers = fresh[0]
    # Versions never come again, so that a decision upon an old entry finds no match.
    for slot in range(partition.producers.capacity):
        if partition.producers.slots[slot] != NULL:
            partition.producers.slots[slot].version += old.last_version
    partition.producers.last_version += old.last_version
    publish_producers(partition)
    pthread_mutex_unlock(&partition.write_lock)
    producers_free(&old)
    partition_changed(partition)


cdef void partition_remove_producer(Partition* partition, int64_t producer_id) noexcept nogil:
    pthread_mutex_lock(&partition.write_lock)
    producers_remove(&partition.producers, producer_id)
    publish_producers(partition)
    pthread_mutex_unlock(&partition.write_lock)
    partition_changed(partition)
