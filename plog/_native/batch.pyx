"""Record batches v2 as Python sees them: headers as named tuples, record sets, restamping.

Owns the way between a buffer and the fields that `batch_fields` reads and writes in
it. Looks into no record (`records` and `columns` do), and judges no produced batch
(`validation` does). Never changes a byte but in the restamping functions.
"""

from typing import NamedTuple

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t

# Functions there bear the same names, without a Python object.
from plog._native cimport batch_fields
from plog._native.batch_fields cimport (
    BATCH_BAD_STRUCTURE,
    BATCH_CUT,
    BATCH_HEADER_BYTES,
    BATCH_OK,
    WORTH_RELEASING,
    BatchFields,
    batch_fault,
    check_position,
    last_offset,
    offsets_make_sense,
    size_of,
)

from plog.errors import CorruptRecord

HEADER_BYTES = BATCH_HEADER_BYTES

cdef object _new_tuple = tuple.__new__


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, with what follows from them."""

    position: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self):
        return self.batch_length + 12

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self):
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self):
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self):
        return self.attributes & 0x07

    @property
    def is_log_append_time(self):
        return self.attributes & 0x08 != 0

    @property
    def is_transactional(self):
        return self.attributes & 0x10 != 0

    @property
    def is_control(self):
        return self.attributes & 0x20 != 0

    @property
    def has_delete_horizon(self):
        return self.attributes & 0x40 != 0


cdef object header_tuple(Py_ssize_t pos, const BatchFields* fields):
    return _new_tuple(BatchHeader, (
        pos,
        fields.base_offset,
        fields.batch_length,
        fields.partition_leader_epoch,
        fields.magic,
        fields.crc,
        fields.attributes,
        fields.last_offset_delta,
        fields.base_timestamp,
        fields.max_timestamp,
        fields.producer_id,
        fields.producer_epoch,
        fields.base_sequence,
        fields.records_count,
    ))


# -- reading ---------------------------------------------------------------------------------------

cdef int check_unlocked(const uint8_t* p, const uint8_t* end, BatchFields* out):
    cdef int status
    if end - p < WORTH_RELEASING:
        return batch_fields.check_batch(p, end, out)
    with nogil:
        status = batch_fields.check_batch(p, end, out)
    return status


cdef object look(data, Py_ssize_t pos, bint whole):
    cdef Py_buffer view
    cdef BatchFields fields
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        check_position(pos, view.len)
        p = <const uint8_t*>view.buf + pos
        end = <const uint8_t*>view.buf + view.len
        if whole:
            status = check_unlocked(p, end, &fields)
        else:
            status = batch_fields.read_header(p, end, &fields)
        if status != BATCH_OK:
            raise CorruptRecord(batch_fault(status, p, end, pos))
    finally:
        PyBuffer_Release(&view)
    return header_tuple(pos, &fields)


def read_header(data, Py_ssize_t pos=0):
    """Header of the batch at `pos`; neither the CRC nor the rest of the batch is looked at."""
    return look(data, pos, False)


def check_batch(data, Py_ssize_t pos=0):
    """Header, bounds and CRC of the batch at `pos`."""
    return look(data, pos, True)


def scan(data):
    """Every batch of a record set, each with its CRC checked; a cut tail is CorruptRecord."""
    cdef Py_buffer view
    cdef BatchFields fields
    cdef const uint8_t* start
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int status
    cdef list found = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*>view.buf
        p = start
        end = start + view.len
        while p < end:
            status = check_unlocked(p, end, &fields)
            if status != BATCH_OK:
                raise CorruptRecord(batch_fault(status, p, end, p - start))
            found.append(header_tuple(p - start, &fields))
            p += size_of(p)
    finally:
        PyBuffer_Release(&view)
    return found


def whole(data, int64_t offset):
    """Where the last batch that is there whole ends, and the offset after it or after `offset`."""
    cdef Py_buffer view
    cdef BatchFields fields
    cdef const uint8_t* start
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int status
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*>view.buf
        p = start
        end = start + view.len
        while end - p >= BATCH_HEADER_BYTES:
            status = batch_fields.read_header(p, end, &fields)
            if status == BATCH_OK and not offsets_make_sense(&fields):
                status = BATCH_BAD_STRUCTURE
            if status != BATCH_OK:
                raise CorruptRecord(batch_fault(status, p, end, p - start))
            if end - p < size_of(p):
                break
            offset = max(offset, last_offset(&fields) + 1)
            p += size_of(p)
        return p - start, offset
    finally:
        PyBuffer_Release(&view)


# -- restamping ------------------------------------------------------------------------------------

cdef uint8_t* writable_batch(Py_buffer* view, Py_ssize_t pos) except NULL:
    # The whole batch has to be there: its CRC is computed over what batch_length says.
    cdef BatchFields fields
    cdef uint8_t* p
    cdef uint8_t* end
    cdef int status
    check_position(pos, view.len)
    p = <uint8_t*>view.buf + pos
    end = <uint8_t*>view.buf + view.len
    status = batch_fields.read_header(p, end, &fields)
    if status == BATCH_OK and end - p < size_of(p):
        status = BATCH_CUT
    if status != BATCH_OK:
        raise CorruptRecord(batch_fault(status, p, end, pos))
    return p


def restamp_offsets(buffer, int64_t base_offset, int32_t leader_epoch, Py_ssize_t pos=0):
    """Write base_offset and partition_leader_epoch, which the CRC does not cover."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        batch_fields.restamp_offsets(writable_batch(&view, pos), base_offset, leader_epoch)
    finally:
        PyBuffer_Release(&view)


def restamp_append_time(buffer, int64_t timestamp_ms, Py_ssize_t pos=0):
    """Set the LogAppendTime bit and max_timestamp, and the CRC they change."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        batch_fields.restamp_append_time(writable_batch(&view, pos), timestamp_ms)
    finally:
        PyBuffer_Release(&view)


def restamp_max_timestamp(buffer, int64_t timestamp_ms, Py_ssize_t pos=0):
    """Set max_timestamp, and the CRC it changes."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        batch_fields.restamp_max_timestamp(writable_batch(&view, pos), timestamp_ms)
    finally:
        PyBuffer_Release(&view)
