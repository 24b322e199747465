"""Appends: one validated batch after another, to the active segment of a partition.

Owns their order, the sequence numbers that are looked at meanwhile (KIP-98) and when
a segment is full. Never rolls, and never decides what an unusual producer means.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport realloc

from plog._native.batch_fields cimport (
    AT_ATTRIBUTES, AT_BASE_SEQUENCE, AT_BATCH_LENGTH, AT_LAST_OFFSET_DELTA, AT_LEADER_EPOCH,
    AT_MAGIC, AT_MAX_TIMESTAMP, AT_PRODUCER_EPOCH, AT_PRODUCER_ID, ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER_BYTES)
from plog._native.locks cimport load, pthread_mutex_lock, pthread_mutex_unlock, store
from plog._native.partition cimport (
    EndingTransaction, active_of, partition_changed, partition_go_offline, settle)
from plog._native.producers cimport (
    NO_TRANSACTION, ORDINARY, REPEATED, Judgement, ProducerBatch, producers_assign,
    producers_find, producers_first_open, producers_judge, producers_note, producers_obtain,
    producers_remove, producers_set_transaction)
from plog._native.segment cimport SegmentFiles, segment_publish, segment_write
from plog._native.wire cimport be16, be32, be64, put_int32, put_int64

cdef enum:
    LOG_OVERHEAD_BYTES = 12


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
