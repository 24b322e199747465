"""The mutable state of one partition, under one set of locks for Python and the reactor alike.

Owns the segment list, the offsets, the producers and who waits for them; not one Python object.
What is done with them has kernels of its own: `log_append`, `log_read`, `log_flush`. Never decides
who leads, when to roll or delete, or what an unusual producer means: Python publishes its decisions
here.

Invariants, under `lock`: log_start_offset <= high_watermark <= log_end_offset, durable_end <=
log_end_offset, last_stable_offset <= high_watermark. log_end_offset is the active segment's
next_offset.
"""

from libc.errno cimport ENOMEM, ESHUTDOWN
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport strdup

from plog._native.aborted_list cimport aborted_release, aborted_retain
from plog._native.disk_room cimport room_release, room_retain
from plog._native.followers cimport (
    followers_are_enough, followers_clear, followers_commit, followers_count_in, followers_mark_reported,
    followers_note, followers_set, followers_start_of, follower_may_join)
from plog._native.locks cimport (
    add, load_ordered, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
    store, store_pointer)
from plog._native.producers cimport (
    producers_assign, producers_find, producers_first_open, producers_free, producers_init, producers_obtain,
    producers_remove)
from plog._native.segment_files cimport active_of, list_release
from plog._native.txn_guards cimport ANY_PRODUCER, guards_new, guards_release, guards_retain, guards_revoke, guards_use

# --- the partition's life -------------------------------------------------------------------------

cdef int64_t logs_opened        # atomic


cdef Partition* partition_new(const char* directory) noexcept nogil:
    cdef Partition* made = <Partition*>calloc(1, sizeof(Partition))
    if made == NULL:
        return NULL
    made.directory = strdup(directory)
    made.guards = guards_new()
    if made.directory == NULL or made.guards == NULL or producers_init(&made.producers):
        guards_release(made.guards)
        free(made.directory)
        free(made)
        return NULL
    made.references = 1
    made.log_id = add(&logs_opened, 1)
    made.epoch_start = made.led_since = -1
    made.enough_in_sync = 1
    made.slot_fd = made.number = -1
    made.directory_synced_to = -1
    made.segment_bytes = INT32_MAX
    made.segment_ms = INT64_MAX
    made.first_open_offset = made.gaps_legal_below = INT64_MAX
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
    aborted_release(partition.aborted)
    room_release(partition.room)
    producers_free(&partition.producers)
    guards_release(partition.guards)
    followers_clear(&partition.followers)
    free(partition.ending)
    free(partition.directory)
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
    if partition.followers.count > 0:
        store(&partition.high_watermark, followers_commit(
            &partition.followers, partition.log_end_offset, partition.high_watermark))
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


cdef void partition_set_room(Partition* partition, Room* room) noexcept nogil:
    room_retain(room)
    pthread_mutex_lock(&partition.write_lock)
    partition.room, room = room, partition.room
    pthread_mutex_unlock(&partition.write_lock)
    room_release(room)


cdef void partition_set_leader(
        Partition* partition, int32_t leader_epoch, bint leads, bint writable, bint sole_replica,
        bint enough_in_sync) noexcept nogil:
    pthread_mutex_lock(&partition.write_lock)
    store(&partition.writable, writable)
    partition.sole_replica = sole_replica
    pthread_mutex_lock(&partition.lock)
    if not leads or leader_epoch != partition.leader_epoch:
        followers_clear(&partition.followers)  # what they had under another epoch they may have lost
    if not leads:
        partition.led_since = partition.epoch_start = -1
    elif partition.led_since < 0:
        partition.led_since = leader_epoch
        partition.epoch_start = partition.log_end_offset
    elif leader_epoch != partition.leader_epoch:
        partition.epoch_start = partition.log_end_offset
    # A role may be given again, as it was at first: those who count may be others by now.
    if partition.followers.count > 0:
        enough_in_sync = followers_are_enough(&partition.followers)
    store(&partition.enough_in_sync, enough_in_sync)
    store(&partition.leader_epoch, leader_epoch)
    guards_revoke(partition.guards, ANY_PRODUCER)
    if sole_replica:
        store(&partition.high_watermark, partition.log_end_offset)
    settle(partition)
    pthread_mutex_unlock(&partition.lock)
    pthread_mutex_unlock(&partition.write_lock)
    partition_changed(partition)


cdef bint partition_set_followers(
        Partition* partition, int32_t leader_epoch, const Follower* followers, int64_t count, int64_t least_in_sync,
        int64_t now_ms) noexcept nogil:
    cdef bint is_set = True
    pthread_mutex_lock(&partition.lock)
    if leads_in(partition, leader_epoch):
        is_set = followers_set(&partition.followers, followers, count, least_in_sync, now_ms)
        if is_set:
            store(&partition.enough_in_sync, followers_are_enough(&partition.followers))
        settle(partition)
    pthread_mutex_unlock(&partition.lock)
    partition_changed(partition)
    return is_set


cdef FollowerStatus partition_note_follower(
        Partition* partition, int32_t leader_epoch, int32_t broker_id, int64_t broker_epoch, int64_t position,
        int64_t log_start_offset, int64_t now_ms) noexcept nogil:
    cdef FollowerStatus status = FOLLOWER_UNKNOWN
    cdef const Follower* found = NULL
    cdef int64_t before
    cdef int64_t start_before
    cdef bint may_join
    cdef bint moved
    pthread_mutex_lock(&partition.lock)
    before = partition.high_watermark
    start_before = followers_start_of(&partition.followers, broker_id)
    if leads_in(partition, leader_epoch):
        found = followers_note(
            &partition.followers, broker_id, broker_epoch, position, log_start_offset, partition.log_end_offset, now_ms)
    if found != NULL:
        settle(partition)
        may_join = follower_may_join(found, partition.high_watermark, partition.epoch_start)
        status = FOLLOWER_MAY_JOIN if may_join else FOLLOWER_NOTED
    moved = partition.high_watermark != before or found != NULL and found.log_start_offset != start_before
    pthread_mutex_unlock(&partition.lock)
    if moved:
        partition_changed(partition)
    return status


cdef bint partition_count_follower(Partition* partition, int32_t leader_epoch, int32_t broker_id) noexcept nogil:
    cdef bint counts
    pthread_mutex_lock(&partition.lock)
    counts = leads_in(partition, leader_epoch) and followers_count_in(
        &partition.followers, broker_id, partition.high_watermark, partition.epoch_start)
    if counts:
        store(&partition.enough_in_sync, followers_are_enough(&partition.followers))
        settle(partition)
    pthread_mutex_unlock(&partition.lock)
    if counts:
        partition_changed(partition)
    return counts


cdef bint partition_mark_reported(Partition* partition, int32_t broker_id, bint is_reported) noexcept nogil:
    cdef bint is_news
    pthread_mutex_lock(&partition.lock)
    is_news = followers_mark_reported(&partition.followers, broker_id, is_reported)
    pthread_mutex_unlock(&partition.lock)
    return is_news


cdef inline bint leads_in(const Partition* partition, int32_t leader_epoch) noexcept nogil:
    return partition.led_since >= 0 and partition.leader_epoch == leader_epoch


cdef AckStatus partition_ack_status(
        Partition* partition, const AppendPlace* place, int64_t last_offset, bint must_be_durable) noexcept nogil:
    """Tell whether a batch is on every in-sync replica, by one consistent view of the partition.

    The records are the same only while the log is, has not been truncated since, and this broker
    has led it all the time: another leader may have replaced them before this one leads again.
    """
    cdef AckStatus status = ACK_WAITS
    cdef int64_t safe_end
    pthread_mutex_lock(&partition.lock)
    safe_end = partition.high_watermark
    if must_be_durable:
        safe_end = min(safe_end, partition.durable_end)
    if (place.log_id != partition.log_id or place.truncations != partition.truncations or partition.led_since < 0
            or not partition.led_since <= place.leader_epoch <= partition.leader_epoch):
        status = ACK_NOT_LEADER
    elif safe_end > last_offset:
        # Whatever has become of the log's files since: the records were safe.
        status = ACK_SAFE if partition.enough_in_sync else ACK_TOO_FEW_IN_SYNC
    elif partition.offline_errno and partition.offline_errno != ESHUTDOWN:
        status = ACK_OFFLINE
    elif partition.offline_errno or partition.closed:
        status = ACK_NOT_LEADER
    pthread_mutex_unlock(&partition.lock)
    return status


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


cdef void partition_set_aborted(Partition* partition, AbortedList* fresh) noexcept nogil:
    cdef AbortedList* old
    pthread_mutex_lock(&partition.lock)
    old = partition.aborted
    store_pointer(<void**>&partition.aborted, fresh)
    pthread_mutex_unlock(&partition.lock)
    aborted_release(old)


cdef AbortedList* partition_pin_aborted(Partition* partition) noexcept nogil:
    cdef AbortedList* found
    if partition_has_aborted(partition, NULL):
        return NULL
    pthread_mutex_lock(&partition.lock)
    found = partition.aborted
    if found != NULL:
        aborted_retain(found)
    pthread_mutex_unlock(&partition.lock)
    return found


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

cdef void note_producers(Partition* partition) noexcept nogil:
    guards_revoke(partition.guards, ANY_PRODUCER)
    partition.first_open_offset = producers_first_open(&partition.producers)


cdef void publish_producers(Partition* partition) noexcept nogil:
    """Under write_lock, after a change of the table that is no append."""
    pthread_mutex_lock(&partition.lock)
    note_producers(partition)
    settle(partition)
    pthread_mutex_unlock(&partition.lock)


cdef bint partition_use_guard(
        Partition* partition, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil:
    cdef bint had
    pthread_mutex_lock(&partition.lock)
    had = guards_use(partition.guards, producer_id, producer_epoch, writer)
    pthread_mutex_unlock(&partition.lock)
    return had


cdef void partition_revoke_guard(Partition* partition, int64_t producer_id) noexcept nogil:
    pthread_mutex_lock(&partition.lock)
    guards_revoke(partition.guards, producer_id)
    pthread_mutex_unlock(&partition.lock)


cdef TxnGuards* partition_pin_guards(Partition* partition) noexcept nogil:
    cdef TxnGuards* found
    pthread_mutex_lock(&partition.lock)
    found = partition.guards
    guards_retain(found)
    pthread_mutex_unlock(&partition.lock)
    return found


cdef void partition_set_guards(Partition* partition, TxnGuards* guards) noexcept nogil:
    cdef TxnGuards* before
    pthread_mutex_lock(&partition.lock)
    before = partition.guards
    partition.guards = guards
    pthread_mutex_unlock(&partition.lock)
    guards_release(before)


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


cdef ProducerTable swap_producers(Partition* partition, ProducerTable* fresh) noexcept nogil:
    cdef ProducerTable old = partition.producers
    cdef int64_t slot
    partition.producers = fresh[0]
    # A version is never used again, so that a decision about an old entry finds no match.
    for slot in range(partition.producers.capacity):
        if partition.producers.slots[slot] != NULL:
            partition.producers.slots[slot].version += old.last_version
    partition.producers.last_version += old.last_version
    return old


cdef void partition_load_producers(Partition* partition, ProducerTable* fresh) noexcept nogil:
    cdef ProducerTable old
    pthread_mutex_lock(&partition.write_lock)
    old = swap_producers(partition, fresh)
    publish_producers(partition)
    pthread_mutex_unlock(&partition.write_lock)
    producers_free(&old)
    partition_changed(partition)


cdef bint partition_remove_producer(
        Partition* partition, int64_t producer_id, int64_t if_version) noexcept nogil:
    cdef Producer* known
    cdef bint is_same
    pthread_mutex_lock(&partition.write_lock)
    known = producers_find(&partition.producers, producer_id)
    is_same = known != NULL and known.version == if_version
    if is_same:
        producers_remove(&partition.producers, producer_id)
        publish_producers(partition)
    pthread_mutex_unlock(&partition.write_lock)
    if is_same:
        partition_changed(partition)
    return is_same
