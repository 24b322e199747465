# The aborted transactions of one fetch.
from libc.stdint cimport int64_t, uint8_t

from plog._native.batch_fields cimport BatchFields


cdef class AbortedTransactions:
    cdef list transactions       # (first offset, producer id)
    cdef Py_ssize_t begun
    cdef set producers           # those whose data is left out until their marker

    # Whether the batch at p, checked and the next one of the fetch, gives no rows: a marker, or aborted data.
    # CorruptRecord: a marker that cannot be read.
    cdef bint leave_out(self, const uint8_t* p, const BatchFields* batch) except -1
    cdef int begin(self, int64_t offset) except -1
