"""Appends of a follower: whole batches as their leader sent them, with its offsets and epochs.

Owns the check of a fetch response, and which batches are appended without asking Python. Never
changes a byte of a batch, never judges a producer, and never moves the high watermark.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memset

from typing import NamedTuple

from plog._native.batch_fields cimport (
    AT_BASE_OFFSET, AT_LEADER_EPOCH, ATTRIBUTE_CONTROL, BATCH_OK, BatchFields, batch_fault, check_batch,
    check_position, last_offset, size_of)
from plog._native.locks cimport load
from plog._native.log_append cimport (
    APPEND_ROLL_NEEDED, GROUP_WAITS, Added, AppendGroup, AppendResult, added_read, group_close, group_open,
    group_release, group_take, group_write)
from plog._native.partition cimport Partition
from plog._native.partition_log cimport PartitionLog
from plog._native.producers cimport Producer, producers_find, read_producer_entry
from plog._native.wire cimport be32, be64

from plog.errors import CorruptRecord

DONE = FETCHED_APPENDED
ROLL_NEEDED = FETCHED_ROLL_NEEDED
UNUSUAL = FETCHED_UNUSUAL
WRITE_FAILED = FETCHED_WRITE_FAILED
NOT_FOLLOWER = FETCHED_NOT_FOLLOWER
OTHER_EPOCH = FETCHED_OTHER_EPOCH


class FetchedAppend(NamedTuple):
    status: int
    position: int
    errno: int


# --- the check ------------------------------------------------------------------------------------

cdef FetchedFault fault_of(const FetchedCheck* check, int32_t leader_epoch) noexcept nogil:
    cdef const BatchFields* batch = &check.batch
    if batch.base_offset < check.end_offset:
        return FETCHED_OUT_OF_ORDER
    # A segment that begins at the end of the log is the last resort.
    if last_offset(batch) - check.end_offset > INT32_MAX:
        return FETCHED_TOO_FAR
    if batch.partition_leader_epoch < check.last_epoch:
        return FETCHED_EPOCH_BACK
    if batch.partition_leader_epoch > leader_epoch:
        return FETCHED_EPOCH_AHEAD
    return FETCHED_SOUND


cdef void fetched_check(
        const uint8_t* data, int64_t size, int32_t leader_epoch, FetchedCheck* check) noexcept nogil:
    cdef const uint8_t* end = data + size
    check.fault = FETCHED_SOUND
    check.position = 0
    check.gaps_end = -1
    while check.position < size:
        check.batch_status = check_batch(data + check.position, end, &check.batch)
        check.fault = FETCHED_NOT_WHOLE if check.batch_status != BATCH_OK else fault_of(check, leader_epoch)
        if check.fault != FETCHED_SOUND:
            return
        if check.batch.base_offset > check.end_offset:
            check.gaps_end = check.batch.base_offset
        check.end_offset = last_offset(&check.batch) + 1
        check.last_epoch = check.batch.partition_leader_epoch
        check.position += size_of(data + check.position)


cdef str fault_text(const FetchedCheck* check, const uint8_t* data, int64_t size, int32_t leader_epoch):
    cdef const BatchFields* batch = &check.batch
    where = f"batch at {check.position} of the fetched ones (offset {batch.base_offset})"
    if check.fault == FETCHED_NOT_WHOLE:
        return batch_fault(check.batch_status, data + check.position, data + size, check.position)
    if check.fault == FETCHED_OUT_OF_ORDER:
        return f"{where}: the log reaches offset {check.end_offset} before it"
    if check.fault == FETCHED_TOO_FAR:
        return f"{where}: more offsets are missing since {check.end_offset} than a segment can hold"
    if check.fault == FETCHED_EPOCH_BACK:
        return f"{where}: leader epoch {batch.partition_leader_epoch} after {check.last_epoch}"
    return f"{where}: leader epoch {batch.partition_leader_epoch}, but the fetch's was {leader_epoch}"


# --- the append -----------------------------------------------------------------------------------

cdef FetchedStatus status_of(Partition* partition, int32_t leader_epoch, int* error) noexcept nogil:
    """Under write_lock, which keeps the role as it is."""
    error[0] = <int>load(&partition.offline_errno)
    if error[0] or load(&partition.closed) or partition.writable or partition.led_since >= 0:
        return FETCHED_NOT_FOLLOWER
    return FETCHED_APPENDED if partition.leader_epoch == leader_epoch else FETCHED_OTHER_EPOCH


cdef bint is_usual(const uint8_t* batch, const Added* added, int32_t latest_epoch) noexcept nogil:
    if <int32_t>be32(batch + AT_LEADER_EPOCH) != latest_epoch or added.attributes & ATTRIBUTE_CONTROL:
        return False
    return added.producer_id < 0 or (
        added.producer != NULL and added.producer.producer_epoch == added.producer_epoch)


cdef bint fits_decision(const Added* added, const Producer* decided) noexcept nogil:
    return decided == NULL or (
        decided.producer_id == added.producer_id
        and decided.version == (0 if added.producer == NULL else added.producer.version))


cdef void add_fetched(
        AppendGroup* group, const uint8_t* data, int64_t size, int64_t now_ms, int32_t latest_epoch,
        bint is_decided, const Producer* decided, FetchedResult* out) noexcept nogil:
    """Take batches into the group: all of them, or those before an unusual one, or the decided one."""
    cdef const uint8_t* batch
    cdef AppendResult result
    cdef Added added
    while out.taken < size:
        batch = data + out.taken
        added_read(batch, <int64_t>be64(batch + AT_BASE_OFFSET), &added)
        added.producer = NULL
        if added.producer_id >= 0:
            added.producer = producers_find(&group.partition.producers, added.producer_id)
        if not (fits_decision(&added, decided) if is_decided else is_usual(batch, &added, latest_epoch)):
            out.status = FETCHED_UNUSUAL
            return
        if is_decided and decided == NULL:
            added.producer_id = -1
        if not group_take(group, batch, &added, now_ms, decided, &result):
            out.status = FETCHED_ROLL_NEEDED if result.status == APPEND_ROLL_NEEDED else FETCHED_WRITE_FAILED
            out.error = result.error
            return
        out.taken += added.size
        if is_decided:
            return


cdef void partition_append_fetched(
        Partition* partition, const uint8_t* data, int64_t size, int64_t now_ms, int32_t leader_epoch,
        int32_t latest_epoch, bint is_decided, const Producer* decided, FetchedResult* out) noexcept nogil:
    cdef AppendGroup group
    memset(&group, 0, sizeof(AppendGroup))
    group_open(&group, partition, GROUP_WAITS)
    out.taken = 0
    out.status = status_of(partition, leader_epoch, &out.error)
    if out.status == FETCHED_APPENDED:
        add_fetched(&group, data, size, now_ms, latest_epoch, is_decided, decided, out)
        if group_write(&group, INT64_MAX):
            out.status = FETCHED_WRITE_FAILED
            out.error = group.error
            out.taken = 0
    group_close(&group)
    group_release(&group)


# --- for Python -----------------------------------------------------------------------------------

def check(batches, *, int64_t log_end_offset, int32_t last_epoch, int32_t leader_epoch):
    cdef Py_buffer view
    cdef FetchedCheck state
    state.end_offset = log_end_offset
    state.last_epoch = last_epoch
    PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            fetched_check(<const uint8_t*>view.buf, view.len, leader_epoch, &state)
        if state.fault != FETCHED_SOUND:
            raise CorruptRecord(fault_text(&state, <const uint8_t*>view.buf, view.len, leader_epoch))
    finally:
        PyBuffer_Release(&view)
    return state.gaps_end


def append(
        PartitionLog log not None, batches, Py_ssize_t position=0, *, int64_t now_ms, int32_t leader_epoch,
        int32_t latest_epoch, bint is_decided=False, decided=None):
    cdef Partition* partition = log.partition
    cdef Py_buffer view
    cdef Producer source
    cdef Producer* chosen = NULL
    cdef FetchedResult out
    if decided is not None:
        read_producer_entry(decided, &source)
        chosen = &source
    PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
    try:
        check_position(position, view.len)
        with nogil:
            partition_append_fetched(
                partition, <const uint8_t*>view.buf + position, view.len - position, now_ms, leader_epoch,
                latest_epoch, is_decided, chosen, &out)
    finally:
        PyBuffer_Release(&view)
    return FetchedAppend(out.status, position + out.taken, out.error)
