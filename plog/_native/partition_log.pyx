"""One partition's log, for Python: the skin over `plog._native.partition`.

Owns the conversions, the exceptions, and the Segment objects of the published list. Never holds
state of its own beside them: whatever both planes must agree upon is in the struct.
"""

from cpython.buffer cimport PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EIO, ESHUTDOWN
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free

import os
from typing import NamedTuple

from plog._native.aborted_list cimport AbortedList, PublishedAborted, aborted_retain
from plog._native.disk_room cimport DiskRoom
from plog._native.files cimport calls
from plog._native.locks cimport load, pthread_mutex_lock, pthread_mutex_unlock
from plog._native.log_append cimport (
    APPEND_BAD_BATCH, APPEND_DONE, APPEND_DUPLICATE, APPEND_NOT_WRITABLE, APPEND_PRODUCER_UNUSUAL,
    APPEND_ROLL_NEEDED, APPEND_WRITE_FAILED, AppendResult, partition_append)
from plog._native.log_flush cimport (
    partition_flush, partition_set_durable_slot, partition_sync_names, partition_truncate)
from plog._native.log_read cimport (
    READ_CORRUPT, READ_FOUND, READ_NOTHING, READ_OFFLINE, READ_OUT_OF_RANGE, ReadResult, partition_read)
from plog._native.partition cimport (
    ACK_NOT_LEADER as _ACK_NOT_LEADER, ACK_OFFLINE as _ACK_OFFLINE, ACK_SAFE as _ACK_SAFE,
    ACK_TOO_FEW_IN_SYNC as _ACK_TOO_FEW_IN_SYNC, ACK_WAITS as _ACK_WAITS, AckStatus, AppendPlace,
    PUBLISH_CLOSED, PUBLISH_DONE, PUBLISH_MISFIT, SLOT_KEY_BYTES, Partition, PublishStatus,
    partition_ack_status, partition_advance_high_watermark, partition_changed, partition_close,
    partition_copy_producer, partition_copy_producers, partition_go_offline, partition_load_producers, partition_new,
    partition_put_producer, partition_release, partition_remove_producer,
    partition_replace_segments, partition_set_aborted, partition_set_leader, partition_set_limits,
    partition_set_log_start_offset, partition_set_room, settle)
from plog._native.producers cimport (
    Producer, ProducerTable, producer_entry, producers_assign, producers_free, producers_init,
    producers_obtain, read_producer_entry)
from plog._native.segment cimport FileRange, Segment, new_file_range
from plog._native.segment_files cimport SegmentList, active_of, list_new, segment_retain

from plog.errors import CorruptRecord, KafkaStorageError

from plog._native.producers import ProducerEntry, SequencedBatch  # noqa: F401

# The contract names them here.
globals().update(FileRange=FileRange, Segment=Segment)

APPENDED = APPEND_DONE
DUPLICATE = APPEND_DUPLICATE
ROLL_NEEDED = APPEND_ROLL_NEEDED
PRODUCER_UNUSUAL = APPEND_PRODUCER_UNUSUAL
WRITE_FAILED = APPEND_WRITE_FAILED
NOT_WRITABLE = APPEND_NOT_WRITABLE

ACK_WAITS = _ACK_WAITS
ACK_SAFE = _ACK_SAFE
ACK_NOT_LEADER = _ACK_NOT_LEADER
ACK_OFFLINE = _ACK_OFFLINE
ACK_TOO_FEW_IN_SYNC = _ACK_TOO_FEW_IN_SYNC


class Appended(NamedTuple):
    """What became of one append."""

    status: int
    base_offset: int
    last_offset: int
    timestamp: int
    log_start_offset: int
    errno: int
    took_us: int = 0
    log_id: int = -1
    truncations: int = -1
    leader_epoch: int = -1


class PartitionState(NamedTuple):
    """A consistent copy of the struct's numbers."""

    log_start_offset: int
    log_end_offset: int
    durable_end: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    size_bytes: int
    segment_count: int


cdef object os_error(int64_t negative):
    return OSError(-negative, os.strerror(-negative))


cdef SegmentList* list_of(object segments) except NULL:
    """Check a list from Python and pin its segments. Raises ValueError, TypeError."""
    cdef int64_t count = len(segments)
    cdef SegmentList* made
    cdef Segment segment
    cdef Segment before = None
    cdef int64_t number = 0
    if count == 0:
        raise ValueError("a log has at least one segment")
    for segment in segments:
        if segment is None:
            raise TypeError("a segment is None")
        if before is not None and segment.files.base_offset < max(
                load(&before.files.next_offset), before.files.base_offset + 1):
            raise ValueError(f"segment {segment.files.base_offset} begins below the end of the one "
                             f"before it, {before.files.base_offset} to {before.next_offset}")
        before = segment
    made = list_new(count)
    if made == NULL:
        raise MemoryError
    for segment in segments:
        segment_retain(segment.files)
        made.segments[number] = segment.files
        number += 1
        if number < count:
            made.size_before_active += load(&segment.files.size_bytes)
    return made


cdef int fill_table(ProducerTable* table, entries) except -1:
    """Make a table of entries, which the caller has to free."""
    cdef Producer source
    cdef Producer* made
    if producers_init(table):
        raise MemoryError
    try:
        for entry in entries:
            read_producer_entry(entry, &source)
            made = producers_obtain(table, source.producer_id)
            if made == NULL:
                raise MemoryError
            producers_assign(table, made, &source)
    except BaseException:
        producers_free(table)
        raise
    return 0


cdef class PartitionLog:
    def __cinit__(
        self,
        segments,
        *,
        int64_t log_start_offset,
        int64_t high_watermark,
        int64_t durable_end,
        int32_t leader_epoch,
        directory,
        int64_t index_interval_bytes,
    ):
        cdef Partition* partition
        cdef int64_t log_end_offset
        cdef bytes path
        self._segments = tuple(segments)
        path = os.fsencode(directory)
        partition = partition_new(PyBytes_AS_STRING(path))
        if partition == NULL:
            raise MemoryError
        self.partition = partition
        partition.segments = list_of(self._segments)
        log_end_offset = active_of(partition.segments).next_offset
        if log_start_offset > log_end_offset or durable_end > log_end_offset:
            raise ValueError(
                f"the log ends at {log_end_offset}, before its start {log_start_offset} "
                f"or its durable end {durable_end}")
        partition.index_interval_bytes = index_interval_bytes
        partition.log_start_offset = log_start_offset
        partition.log_end_offset = log_end_offset
        partition.high_watermark = high_watermark
        partition.durable_end = durable_end
        partition.leader_epoch = leader_epoch
        settle(partition)

    def __dealloc__(self):
        partition_release(self.partition)

    # -- state

    def state(self):
        cdef Partition* p = self.partition
        cdef int64_t start, end, durable_end, high_watermark, stable, leader_epoch
        cdef int64_t size_bytes = 0
        cdef int64_t count = 0
        with nogil:
            pthread_mutex_lock(&p.lock)
            start = p.log_start_offset
            end = p.log_end_offset
            durable_end = p.durable_end
            high_watermark = p.high_watermark
            stable = p.last_stable_offset
            leader_epoch = p.leader_epoch
            if p.segments != NULL:
                count = p.segments.count
                size_bytes = p.segments.size_before_active + active_of(p.segments).size_bytes
            pthread_mutex_unlock(&p.lock)
        return PartitionState(
            start, end, durable_end, high_watermark, stable, leader_epoch, size_bytes, count)

    @property
    def log_start_offset(self):
        return load(&self.partition.log_start_offset)

    @property
    def log_end_offset(self):
        return load(&self.partition.log_end_offset)

    @property
    def durable_end(self):
        return load(&self.partition.durable_end)

    @property
    def high_watermark(self):
        return load(&self.partition.high_watermark)

    @property
    def last_stable_offset(self):
        return load(&self.partition.last_stable_offset)

    @property
    def leader_epoch(self):
        return load(&self.partition.leader_epoch)

    @property
    def segments(self):
        return list(self._segments)

    @property
    def change_count(self):
        return load(&self.partition.changes)

    @property
    def truncations(self):
        return load(&self.partition.truncations)

    # -- what Python publishes

    def set_aborted(self, PublishedAborted aborted):
        cdef AbortedList* pinned = NULL
        if aborted is not None:
            pinned = aborted.pinned
            aborted_retain(pinned)
        partition_set_aborted(self.partition, pinned)

    def set_limits(
        self,
        *,
        int64_t segment_bytes,
        int64_t segment_ms,
        int64_t segment_jitter_ms,
        int64_t index_interval_bytes,
    ):
        cdef Partition* p = self.partition
        with nogil:
            partition_set_limits(
                p, segment_bytes, segment_ms, segment_jitter_ms, index_interval_bytes)

    def set_room(self, DiskRoom room not None):
        partition_set_room(self.partition, room.room)

    def set_leader(
        self, int32_t leader_epoch, *, bint writable, bint sole_replica, leads=None, bint enough_in_sync=True
    ):
        cdef Partition* p = self.partition
        cdef bint is_leader = writable if leads is None else leads
        with nogil:
            partition_set_leader(p, leader_epoch, is_leader, writable, sole_replica, enough_in_sync)

    def epoch_start(self):
        cdef Partition* p = self.partition
        cdef int64_t epoch, start
        with nogil:
            pthread_mutex_lock(&p.lock)
            epoch = p.leader_epoch
            start = p.epoch_start
            pthread_mutex_unlock(&p.lock)
        return None if start < 0 else (epoch, start)

    def ack_status(self, appended, *, bint must_be_durable):
        cdef Partition* p = self.partition
        cdef AppendPlace place
        cdef AckStatus status
        cdef int64_t last_offset = appended.last_offset
        place.log_id = appended.log_id
        place.truncations = appended.truncations
        place.leader_epoch = appended.leader_epoch
        with nogil:
            status = partition_ack_status(p, &place, last_offset, must_be_durable)
        return <int>status

    def set_gaps_legal_below(self, offset):
        cdef Partition* p = self.partition
        cdef int64_t below = min(offset, (1 << 63) - 1)
        with nogil:
            pthread_mutex_lock(&p.lock)
            p.gaps_legal_below = below
            pthread_mutex_unlock(&p.lock)

    def set_log_start_offset(self, int64_t offset):
        cdef bint fits
        with nogil:
            fits = partition_set_log_start_offset(self.partition, offset)
        if not fits:
            raise ValueError(f"log start offset {offset} past the end, {self.log_end_offset}")

    def advance_high_watermark(self, int64_t offset):
        cdef bint moved
        with nogil:
            moved = partition_advance_high_watermark(self.partition, offset)
        return moved

    def replace_segments(self, segments):
        cdef tuple kept = tuple(segments)
        cdef SegmentList* fresh = list_of(kept)
        cdef PublishStatus status
        with nogil:
            status = partition_replace_segments(self.partition, fresh)
        if status == PUBLISH_CLOSED:
            raise KafkaStorageError("the log is closed")
        if status == PUBLISH_MISFIT:
            raise ValueError(f"the segments end at {kept[len(kept) - 1].next_offset}, "
                             f"the log at {self.log_end_offset}")
        self._segments = kept

    def truncate(self, segments, int64_t log_end_offset, producers=None):
        cdef tuple kept = tuple(segments)
        cdef SegmentList* fresh
        cdef ProducerTable table
        cdef ProducerTable* taken = NULL
        cdef PublishStatus status
        cdef int error
        if producers is not None:
            fill_table(&table, producers)
            taken = &table
        try:
            fresh = list_of(kept)
        except BaseException:
            if taken != NULL:
                producers_free(taken)
            raise
        with nogil:
            status = partition_truncate(self.partition, fresh, log_end_offset, taken, &error)
        if status == PUBLISH_CLOSED:
            raise KafkaStorageError("the log is closed")
        if status == PUBLISH_MISFIT:
            raise ValueError(
                f"the segments end at {kept[len(kept) - 1].next_offset}, past {log_end_offset}")
        if status != PUBLISH_DONE:
            raise os_error(-error)
        self._segments = kept

    def set_durable_slot(self, int fd, int64_t position, bytes key):
        cdef const char* at = PyBytes_AS_STRING(key)
        cdef int failed
        if len(key) != SLOT_KEY_BYTES and fd >= 0:
            raise ValueError(f"a slot's key of {len(key)} bytes, not {SLOT_KEY_BYTES}")
        with nogil:
            failed = partition_set_durable_slot(self.partition, fd, position, at)
        if failed:
            raise os_error(failed)

    def close(self):
        with nogil:
            partition_close(self.partition)
        self._segments = ()

    def offline(self, bint failed=True):
        with nogil:
            partition_go_offline(self.partition, EIO if failed else ESHUTDOWN)
            partition_changed(self.partition)

    def sync_names(self):
        cdef int failed
        with nogil:
            failed = partition_sync_names(self.partition)
        if failed:
            raise os_error(failed)

    # -- producers

    def producer(self, int64_t producer_id):
        cdef Producer copy
        cdef bint known
        with nogil:
            known = partition_copy_producer(self.partition, producer_id, &copy)
        return producer_entry(&copy) if known else None

    def producers(self):
        cdef Producer* copies
        cdef int64_t count, number
        with nogil:
            count = partition_copy_producers(self.partition, &copies)
        if count < 0:
            raise MemoryError
        try:
            return [producer_entry(&copies[number]) for number in range(count)]
        finally:
            free(copies)

    def put_producer(self, entry, int64_t if_version):
        cdef Producer source
        cdef int done
        read_producer_entry(entry, &source)
        with nogil:
            done = partition_put_producer(self.partition, &source, if_version)
        if done < 0:
            raise MemoryError
        return done == 1

    def load_producers(self, entries):
        cdef ProducerTable fresh
        fill_table(&fresh, entries)
        with nogil:
            partition_load_producers(self.partition, &fresh)

    def remove_producer(self, int64_t producer_id, int64_t if_version):
        cdef bint is_removed
        with nogil:
            is_removed = partition_remove_producer(self.partition, producer_id, if_version)
        return is_removed

    # -- data

    def append(self, records, int64_t now_ms, decided=None):
        cdef Partition* p = self.partition
        cdef Py_buffer view
        cdef Producer source
        cdef Producer* chosen = NULL
        cdef AppendResult out
        cdef int64_t took_us
        if decided is not None:
            read_producer_entry(decided, &source)
            chosen = &source
        PyObject_GetBuffer(records, &view, PyBUF_WRITABLE)
        with nogil:
            took_us = -calls().monotonic_us()
            partition_append(p, <uint8_t*>view.buf, view.len, now_ms, chosen, NULL, &out)
            took_us += calls().monotonic_us()
        PyBuffer_Release(&view)
        if out.status == APPEND_BAD_BATCH:
            raise CorruptRecord("not one whole record batch of format 2")
        return Appended(
            out.status, out.base_offset, out.last_offset, out.timestamp, out.log_start_offset,
            out.error, took_us, out.place.log_id, out.place.truncations, out.place.leader_epoch)

    def read(
        self, int64_t fetch_offset, int64_t max_bytes, int64_t upper_offset, bint whole_first_batch,
        bint may_wait=True,
    ):
        cdef Partition* p = self.partition
        cdef ReadResult out
        with nogil:
            partition_read(
                p, fetch_offset, max_bytes, upper_offset, whole_first_batch, may_wait, &out)
        if out.status == READ_FOUND:
            return new_file_range(out.segment, out.position, out.size, out.next_offset_hint)
        if out.status == READ_NOTHING or out.status == READ_OUT_OF_RANGE:
            return None
        if out.status == READ_OFFLINE:
            raise KafkaStorageError("the log is closed or offline")
        if out.status == READ_CORRUPT:
            raise CorruptRecord(
                f"segment {out.base_offset}: no valid batch header at {out.position}")
        raise os_error(-out.error)

    def flush(self):
        cdef int64_t durable_end
        cdef int failed
        with nogil:
            failed = partition_flush(self.partition, &durable_end)
        if failed == -ESHUTDOWN:
            raise KafkaStorageError(f"the log was closed when it was durable to {durable_end} only")
        if failed:
            raise os_error(failed)
        return durable_end
