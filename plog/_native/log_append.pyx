"""Appends: validated batches, one or several together, to the active segment of a partition.

Owns their order, the sequence numbers that are looked at meanwhile (KIP-98) and when
a segment is full. Never rolls, and never decides what an unusual producer means.
"""

from libc.errno cimport ENOMEM, ENOSPC
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memset

from plog._native.batch_fields cimport (
    AT_ATTRIBUTES, AT_BASE_SEQUENCE, AT_BATCH_LENGTH, AT_LAST_OFFSET_DELTA, AT_LEADER_EPOCH,
    AT_MAGIC, AT_MAX_TIMESTAMP, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER_BYTES)
from plog._native.disk_room cimport room_give_back, room_take
from plog._native.locks cimport (
    CACHE_LINE_BYTES, add, load, pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock, store)
from plog._native.part_list cimport part_add, parts_release
from plog._native.partition cimport (
    EndingTransaction, partition_changed, partition_go_offline, partition_revoke_guard, partition_use_guard, settle)
from plog._native.producers cimport (
    BEGINNING, NO_TRANSACTION, ORDINARY, REPEATED, Judgement, ProducerBatch, ProducerTable, producers_assign,
    producers_find, producers_first_open, producers_judge, producers_note, producers_obtain,
    producers_remove, producers_set_transaction)
from plog._native.segment_append cimport SegmentBatch, segment_publish, segment_write
from plog._native.segment_files cimport SegmentFiles, active_of
from plog._native.wire cimport be16, be32, be64, put_int32, put_int64

cdef enum:
    LOG_OVERHEAD_BYTES = 12

# By every append of this process, of either plane; apart, as what lies beside them in memory is read by every append.
ctypedef struct AppendedTotals:
    uint8_t before[CACHE_LINE_BYTES]
    int64_t records              # atomic
    int64_t bytes                # atomic
    uint8_t behind[CACHE_LINE_BYTES]

cdef AppendedTotals totals


# What a producer was before a batch of it was taken in.
ctypedef struct ProducerUndo:
    Producer* producer
    Producer before
    int64_t batch                # its number in the group
    bint made                    # it was not there


cdef inline SegmentBatch* batch_of(const AppendGroup* group, int64_t number) noexcept nogil:
    return &(<SegmentBatch*>group.batches.items)[number]


cdef inline ProducerUndo* undo_of(const AppendGroup* group, int64_t number) noexcept nogil:
    return &(<ProducerUndo*>group.undos.items)[number]


# --- one batch of a group -------------------------------------------------------------------------

cdef bint roll_is_due(
        const AppendGroup* group, const SegmentFiles* active, int64_t size, int64_t last_offset,
        int64_t max_timestamp, int64_t now_ms) noexcept nogil:
    cdef const Partition* partition = group.partition
    cdef int64_t first_append_ms = active.first_append_ms
    cdef int64_t waited_ms
    if last_offset - active.base_offset > INT32_MAX:
        return True
    if active.size_bytes + group.size_bytes == 0:
        return False  # a fresh segment would have no more room
    if active.size_bytes + group.size_bytes + size > partition.segment_bytes:
        return True
    # The last place of a time index is seal()'s.
    if (active.offset_entries + group.offset_entries >= active.max_offset_entries
            or active.time_entries + group.time_entries >= active.max_time_entries - 1):
        return True
    # Kafka's rule: by record time if there is any, else by the age of the segment.
    if active.size_bytes == 0:
        first_append_ms = batch_of(group, 0).max_timestamp
    if first_append_ms >= 0:
        waited_ms = max_timestamp - first_append_ms
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


cdef ProducerUndo* take_producer(
        AppendGroup* group, int64_t producer_id, Producer* producer, const Producer* decided) noexcept nogil:
    """Make all room that noting a batch of it may need. NULL: no memory, and nothing has changed."""
    cdef ProducerTable* table = &group.partition.producers
    cdef ProducerUndo* undo = <ProducerUndo*>part_add(&group.undos, sizeof(ProducerUndo))
    if undo == NULL:
        return NULL
    undo.batch = group.batches.count - 1
    undo.made = producer == NULL
    undo.producer = producer
    if producer == NULL:
        undo.producer = producers_obtain(table, producer_id)
    if undo.producer == NULL or (decided != NULL and reserve_ending(group.partition)):
        if undo.made and undo.producer != NULL:
            producers_remove(table, producer_id)
        group.undos.count -= 1
        return NULL
    undo.before = undo.producer[0]
    return undo


cdef void note_producer(
        AppendGroup* group, Producer* producer, const Producer* decided, int16_t attributes,
        const ProducerBatch* remembered) noexcept nogil:
    cdef ProducerTable* table = &group.partition.producers
    cdef bint control = (attributes & ATTRIBUTE_CONTROL) != 0
    if decided != NULL:
        if control and decided.current_txn_first_offset == NO_TRANSACTION:
            group.ended.first_offset = producer.current_txn_first_offset
            group.ended.marker_offset = remembered.last_offset
        producers_assign(table, producer, decided)
    if control:
        return
    if attributes & ATTRIBUTE_TRANSACTIONAL and producer.current_txn_first_offset == NO_TRANSACTION:
        producers_set_transaction(table, producer, remembered.last_offset - remembered.offset_delta)
    producers_note(table, producer, remembered)


cdef void begin_result(const Partition* partition, AppendResult* out) noexcept nogil:
    out.base_offset = out.last_offset = out.timestamp = -1
    out.error = 0
    out.log_start_offset = load(&partition.log_start_offset)
    out.place.log_id = partition.log_id
    out.place.truncations = partition.truncations
    out.place.leader_epoch = partition.leader_epoch


cdef inline bint is_one_batch(const uint8_t* data, int64_t size) noexcept nogil:
    return (size >= BATCH_HEADER_BYTES and <int8_t>data[AT_MAGIC] == 2
            and <int64_t><int32_t>be32(data + AT_BATCH_LENGTH) + LOG_OVERHEAD_BYTES == size
            and <int32_t>be32(data + AT_LAST_OFFSET_DELTA) >= 0)


cdef void added_read(const uint8_t* data, int64_t base_offset, Added* added) noexcept nogil:
    cdef int32_t last_offset_delta = <int32_t>be32(data + AT_LAST_OFFSET_DELTA)
    cdef ProducerBatch* remembered = &added.remembered
    added.size = <int64_t><int32_t>be32(data + AT_BATCH_LENGTH) + LOG_OVERHEAD_BYTES
    added.attributes = <int16_t>be16(data + AT_ATTRIBUTES)
    added.producer_id = <int64_t>be64(data + AT_PRODUCER_ID)
    added.producer_epoch = <int16_t>be16(data + AT_PRODUCER_EPOCH)
    added.producer = NULL
    remembered.first_sequence = <int32_t>be32(data + AT_BASE_SEQUENCE)
    # What coordinators write for a producer is not numbered.
    remembered.last_sequence = remembered.first_sequence if remembered.first_sequence < 0 else <int32_t>(
        (<int64_t>remembered.first_sequence + last_offset_delta) & 0x7FFFFFFF)
    remembered.offset_delta = last_offset_delta
    remembered.last_offset = base_offset + last_offset_delta
    remembered.timestamp = <int64_t>be64(data + AT_MAX_TIMESTAMP)


cdef bint producer_may_append(
        Partition* partition, Added* added, const Producer* decided, const Writer* writer,
        AppendResult* out) noexcept nogil:
    """False: it is a duplicate, or Python decides."""
    cdef const ProducerBatch* repeated = NULL
    cdef Judgement judged
    added.producer = producers_find(&partition.producers, added.producer_id)
    out.status = APPEND_PRODUCER_UNUSUAL
    if decided != NULL:
        if (decided.producer_id != added.producer_id
                or decided.version != (0 if added.producer == NULL else added.producer.version)):
            return False
        partition_revoke_guard(partition, added.producer_id)
        return True
    if added.attributes & ATTRIBUTE_CONTROL:
        return False
    judged = producers_judge(
        added.producer, added.producer_epoch, added.remembered.first_sequence, added.remembered.last_sequence,
        (added.attributes & ATTRIBUTE_TRANSACTIONAL) != 0, &repeated)
    if judged == REPEATED:
        out.status = APPEND_DUPLICATE
        out.base_offset = repeated.last_offset - repeated.offset_delta
        out.last_offset = repeated.last_offset
        out.timestamp = repeated.timestamp
        return False
    # Whatever may still come between, it is used up: then Python asks again.
    if judged == BEGINNING and writer != NULL and partition_use_guard(
            partition, added.producer_id, added.producer.producer_epoch, writer):
        return True
    return judged == ORDINARY


cdef bint find_room(AppendGroup* group, const Added* added, int64_t now_ms, AppendResult* out) noexcept nogil:
    """On the disk and in the active segment. False: there is none, and nothing has been taken."""
    cdef Partition* partition = group.partition
    # Before any roll, which would take of the reserve too; at once, as others gather for this disk as well.
    if not room_take(partition.room, added.size):
        out.status = APPEND_WRITE_FAILED
        out.error = ENOSPC
        return False
    if not partition.roll_asked and not roll_is_due(
            group, active_of(partition.segments), added.size, added.remembered.last_offset,
            added.remembered.timestamp, now_ms):
        return True
    # Nothing is let in behind, even if it would fit, so that the new segment's base offset,
    # which names its files, stays what it was when they were made.
    group.asked_roll = group.asked_roll or not partition.roll_asked
    partition.roll_asked = True
    room_give_back(partition.room, added.size)
    out.status = APPEND_ROLL_NEEDED
    return False


cdef SegmentBatch* take_in(AppendGroup* group, const Added* added, const Producer* decided) noexcept nogil:
    """Whatever may fail for want of memory comes before the write: what is on the disk is published. NULL: it failed."""
    cdef SegmentBatch* batch = <SegmentBatch*>part_add(&group.batches, sizeof(SegmentBatch))
    cdef ProducerUndo* undo
    if batch == NULL or added.producer_id < 0:
        return batch
    undo = take_producer(group, added.producer_id, added.producer, decided)
    if undo == NULL:
        group.batches.count -= 1
        return NULL
    note_producer(group, undo.producer, decided, added.attributes, &added.remembered)
    return batch


cdef void count_in(AppendGroup* group, const Added* added) noexcept nogil:
    group.size_bytes += added.size
    if not added.attributes & ATTRIBUTE_CONTROL:
        group.record_count += added.remembered.offset_delta + 1
    group.end_offset = added.remembered.last_offset + 1
    # A time entry needs that time has moved on since the one before.
    if added.remembered.timestamp > group.latest_timestamp:
        group.latest_timestamp = added.remembered.timestamp
        group.time_entries = min(group.time_entries + 1, group.offset_entries + 1)
    if group.since_entry_bytes > group.partition.index_interval_bytes:
        group.offset_entries += 1
        group.since_entry_bytes = 0
    group.since_entry_bytes += added.size


cdef bint group_take(
        AppendGroup* group, const uint8_t* data, const Added* added, int64_t now_ms, const Producer* decided,
        AppendResult* out) noexcept nogil:
    cdef SegmentBatch* batch
    if not find_room(group, added, now_ms, out):
        return False
    batch = take_in(group, added, decided)
    if batch == NULL:
        out.status = APPEND_WRITE_FAILED
        out.error = ENOMEM
        room_give_back(group.partition.room, added.size)
        return False
    batch.data = data
    batch.size = added.size
    batch.last_offset = added.remembered.last_offset
    batch.max_timestamp = added.remembered.timestamp
    out.status = APPEND_DONE
    out.base_offset = added.remembered.last_offset - added.remembered.offset_delta
    out.last_offset = added.remembered.last_offset
    out.timestamp = added.remembered.timestamp
    count_in(group, added)
    return True


cdef void group_add(
        AppendGroup* group, uint8_t* data, int64_t size, int64_t now_ms, const Producer* decided,
        const Writer* writer, AppendResult* out) noexcept nogil:
    cdef Partition* partition = group.partition
    cdef Added added
    begin_result(partition, out)
    if not is_one_batch(data, size):
        out.status = APPEND_BAD_BATCH
        return
    if load(&partition.offline_errno) or load(&partition.closed) or not partition.writable:
        out.status = APPEND_NOT_WRITABLE
        out.error = <int>load(&partition.offline_errno)
        return
    added_read(data, group.end_offset, &added)
    if added.producer_id >= 0 and not producer_may_append(partition, &added, decided, writer, out):
        return
    if not group_take(group, data, &added, now_ms, decided, out):
        return
    # Both lie before the CRC's range.
    put_int64(data, out.base_offset)
    put_int32(data + AT_LEADER_EPOCH, <int32_t>partition.leader_epoch)


# --- the group ------------------------------------------------------------------------------------

cdef bint group_open(AppendGroup* group, Partition* partition, GroupOpening how) noexcept nogil:
    if how == GROUP_WAITS:
        pthread_mutex_lock(&partition.write_lock)
    elif pthread_mutex_trylock(&partition.write_lock) != 0:
        return False
    group.partition = partition
    group.batches.count = group.undos.count = 0
    group.size_bytes = group.record_count = group.offset_entries = group.time_entries = group.since_entry_bytes = 0
    if partition.segments != NULL:
        group.since_entry_bytes = active_of(partition.segments).bytes_since_index_entry
        group.latest_timestamp = active_of(partition.segments).max_timestamp
    group.asked_roll = False
    group.end_offset = partition.log_end_offset
    group.ended.first_offset = NO_TRANSACTION
    group.written = False
    group.error = 0
    return True


cdef void undo_behind(AppendGroup* group, int64_t kept) noexcept nogil:
    """Take all batches but the first so many out again. Control batches are alone in their groups."""
    cdef Partition* partition = group.partition
    cdef ProducerTable* table = &partition.producers
    cdef ProducerUndo* undo
    cdef int64_t number
    while group.undos.count > 0:
        undo = undo_of(group, group.undos.count - 1)
        if undo.batch < kept:
            break
        group.undos.count -= 1
        if undo.made:
            producers_remove(table, undo.producer.producer_id)
        else:
            producers_assign(table, undo.producer, &undo.before)
            undo.producer.version = undo.before.version  # nobody has seen another
    for number in range(kept, group.batches.count):
        room_give_back(partition.room, batch_of(group, number).size)
        group.size_bytes -= batch_of(group, number).size
    group.batches.count = kept
    group.end_offset = partition.log_end_offset if kept == 0 else batch_of(group, kept - 1).last_offset + 1
    group.record_count = group.end_offset - partition.log_end_offset
    if group.asked_roll:
        group.asked_roll = partition.roll_asked = False  # it may have been for want of room beside what is not there


cdef void group_abandon(AppendGroup* group) noexcept nogil:
    undo_behind(group, 0)


cdef int group_write(AppendGroup* group, int64_t patience_us) noexcept nogil:
    cdef Partition* partition = group.partition
    cdef SegmentFiles* active
    cdef int64_t whole = group.batches.count
    cdef bint broken = False
    if group.batches.count == 0:
        return 0
    active = active_of(partition.segments)
    group.error = -segment_write(
        active, batch_of(group, 0), &whole, partition.index_interval_bytes, patience_us,
        &group.longest_us, &broken)
    if group.error or whole < group.batches.count:
        undo_behind(group, whole)
    if broken:
        partition_go_offline(partition, group.error)
    if group.error or whole == 0:
        return group.error
    pthread_mutex_lock(&partition.lock)
    segment_publish(active, batch_of(group, 0), group.batches.count)
    store(&partition.log_end_offset, group.end_offset)
    partition.first_open_offset = producers_first_open(&partition.producers)
    if group.ended.first_offset != NO_TRANSACTION:
        partition.ending[partition.ending_count] = group.ended
        partition.ending_count += 1
    if partition.sole_replica:
        store(&partition.high_watermark, group.end_offset)
    settle(partition)
    pthread_mutex_unlock(&partition.lock)
    group.written = True
    add(&totals.records, group.record_count)
    add(&totals.bytes, group.size_bytes)
    return 0


cdef void group_close(AppendGroup* group) noexcept nogil:
    cdef Partition* partition = group.partition
    pthread_mutex_unlock(&partition.write_lock)
    if group.written or load(&partition.offline_errno):
        partition_changed(partition)
    group.partition = NULL


cdef void group_release(AppendGroup* group) noexcept nogil:
    parts_release(&group.batches)
    parts_release(&group.undos)


cdef void partition_append(
        Partition* partition, uint8_t* data, int64_t size, int64_t now_ms,
        const Producer* decided, const Writer* writer, AppendResult* out) noexcept nogil:
    cdef AppendGroup group
    memset(&group, 0, sizeof(AppendGroup))
    group_open(&group, partition, GROUP_WAITS)
    group_add(&group, data, size, now_ms, decided, writer, out)
    if out.status == APPEND_DONE and group_write(&group, INT64_MAX):
        out.status = APPEND_WRITE_FAILED
        out.error = group.error
        out.base_offset = out.last_offset = out.timestamp = -1
    group_close(&group)
    group_release(&group)


def appended():
    return load(&totals.records), load(&totals.bytes)
