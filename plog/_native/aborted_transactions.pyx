"""The aborted transactions of one fetch: which batches of its record set a committed read leaves out.

Owns the state that the protocol leaves to readers (KIP-98): a transaction of the
list begins at its first offset and ends at its producer's abort marker. Batches have
to come in the order of their offsets. Reads no record but those of markers.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free

from plog._native.batch_fields cimport (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BatchFields,
    last_offset,
)
from plog._native.codec_status cimport COMPRESSION_OK
from plog._native.record_view cimport (
    RECORD_OK,
    RecordView,
    compression_fault,
    open_records,
    read_record,
    record_fault,
)
from plog._native.wire cimport be16

from plog.errors import CorruptRecord

cdef enum:
    MOST_CONTROL_BYTES = 65536


cdef class AbortedTransactions:
    """Follows the batches of a fetch; begun in order of the transactions' first offsets."""

    def __init__(self, aborted):
        self.transactions = sorted((first, producer) for producer, first in aborted)
        self.begun = 0
        self.producers = set()

    cdef bint leave_out(self, const uint8_t* p, const BatchFields* batch) except -1:
        self.begin(last_offset(batch))
        if batch.attributes & ATTRIBUTE_CONTROL:
            if is_abort_marker(p, batch):
                self.producers.discard(batch.producer_id)
            return True
        return batch.attributes & ATTRIBUTE_TRANSACTIONAL and batch.producer_id in self.producers

    cdef int begin(self, int64_t offset) except -1:
        cdef int64_t first
        cdef int64_t producer
        while self.begun < len(self.transactions):
            first, producer = self.transactions[self.begun]
            if first > offset:
                break
            self.producers.add(producer)
            self.begun += 1
        return 0


cdef bint is_abort_marker(const uint8_t* p, const BatchFields* batch) except -1:
    # Key of a control record: version, type; type 0 is ABORT. An emptied batch marks nothing.
    cdef const uint8_t* records = NULL
    cdef uint8_t* owned = NULL
    cdef size_t size = 0
    cdef RecordView record
    cdef int fault = RECORD_OK
    cdef int opened
    if batch.records_count == 0:
        return False
    opened = open_records(p, batch, MOST_CONTROL_BYTES, &records, &size, &owned)
    if opened != COMPRESSION_OK:
        raise CorruptRecord(
            compression_fault(opened, batch.attributes & ATTRIBUTE_CODEC, MOST_CONTROL_BYTES))
    try:
        if read_record(records, records + size, &record, &fault) == NULL:
            raise CorruptRecord(record_fault(fault, 0, 0))
        if record.key_size < 4:
            raise CorruptRecord(f"a control record's key has {record.key_size} bytes")
        return be16(record.key + 2) == 0
    finally:
        free(owned)
