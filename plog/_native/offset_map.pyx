"""The last offset of each key of a log, as far as one pass of compaction has read it.

Owns the table: open addressing over slots of 24 bytes, 16 of them a hash in place of the key, as
in Kafka's. Two keys of one hash would cost the older one its record; with 128 bits under a
secret key nobody lives to see it. Never decides what is dropped.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from plog._native.batch_fields cimport BATCH_OK, BatchFields, batch_fault, read_header, size_of
from plog._native.codec_status cimport COMPRESSION_OK
from plog._native.record_view cimport (
    RECORD_OK,
    RecordView,
    compression_fault,
    open_records,
    read_record,
    record_fault,
)
from plog._native.siphash cimport sip_key, siphash_of

from plog._native.records import DECOMPRESSED_LIMIT
from plog.errors import CorruptRecord

cdef size_t _LIMIT = DECOMPRESSED_LIMIT

BYTES_PER_KEY = sizeof(KeySlot)


cdef class OffsetMap:
    def __cinit__(self, size_t memory_bytes, double load_factor=0.9):
        self.size = memory_bytes // sizeof(KeySlot)
        self.capacity = <int64_t>(self.size * load_factor)
        if not 0 < load_factor < 1 or self.capacity < 1:
            raise ValueError(f"{memory_bytes} bytes at a load of {load_factor} hold no key")
        # Pages that no key comes to take no memory.
        self.slots = <KeySlot*>calloc(self.size, sizeof(KeySlot))
        if self.slots == NULL:
            raise MemoryError
        self.low_key = sip_key(os.urandom(16))
        self.high_key = sip_key(os.urandom(16))

    def __dealloc__(self):
        free(self.slots)

    cdef KeySlot* slot_of(self, const uint8_t* key, size_t size) noexcept nogil:
        cdef uint64_t low = siphash_of(&self.low_key, key, size)
        cdef uint64_t high = siphash_of(&self.high_key, key, size)
        cdef uint64_t at = low % self.size
        cdef KeySlot* slot = &self.slots[at]
        while slot.after != 0 and (slot.low != low or slot.high != high):
            at = at + 1 if at + 1 < self.size else 0
            slot = &self.slots[at]
        if slot.after == 0:
            # Read by nobody until `after` says that it is somebody's.
            slot.low = low
            slot.high = high
        return slot

    # RECORD_OK, the fault of a record, or -1 when the map is full.
    cdef int take(self, const uint8_t* p, const uint8_t* end, const BatchFields* batch, int64_t from_offset,
                  int32_t* index) noexcept nogil:
        cdef RecordView record
        cdef KeySlot* slot
        cdef int fault = RECORD_OK
        cdef int64_t offset
        index[0] = 0
        while index[0] < batch.records_count:
            p = read_record(p, end, &record, &fault)
            if p == NULL:
                return fault
            offset = batch.base_offset + record.offset_delta
            if record.key_size >= 0 and offset >= from_offset:
                slot = self.slot_of(record.key, record.key_size)
                if slot.after == 0:
                    if self.count == self.capacity:
                        return -1
                    self.count += 1
                if slot.after <= offset:
                    slot.after = offset + 1
            index[0] += 1
        return RECORD_OK

    def add_batch(self, batch not None, int64_t from_offset=0):
        cdef Py_buffer view
        cdef BatchFields fields
        cdef const uint8_t* p
        cdef const uint8_t* records
        cdef uint8_t* owned = NULL
        cdef size_t size
        cdef int32_t index
        cdef int status
        cdef int found
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            p = <const uint8_t*>view.buf
            status = read_header(p, p + view.len, &fields)
            if status != BATCH_OK or size_of(p) != view.len:
                raise CorruptRecord(batch_fault(status, p, p + view.len, 0) if status != BATCH_OK
                                    else f"{view.len} bytes where a batch takes {size_of(p)}")
            with nogil:
                status = open_records(p, &fields, _LIMIT, &records, &size, &owned)
                found = RECORD_OK
                if status == COMPRESSION_OK:
                    found = self.take(records, records + size, &fields, from_offset, &index)
            if status != COMPRESSION_OK:
                raise CorruptRecord(compression_fault(status, fields.attributes & 7, _LIMIT))
            if found > RECORD_OK:
                raise CorruptRecord(record_fault(found, index, 0))
            return found == RECORD_OK
        finally:
            free(owned)
            PyBuffer_Release(&view)

    def latest(self, key not None):
        cdef Py_buffer view
        PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
        try:
            return self.slot_of(<const uint8_t*>view.buf, view.len).after - 1
        finally:
            PyBuffer_Release(&view)
