# Building batches of records: who has rows adds them to a builder without the interpreter lock.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    ADD_OK = 0
    ADD_FULL             # it has records, and would pass its limit
    ADD_TOO_LARGE        # no batch can hold so much
    ADD_TOO_MANY
    ADD_TOO_FAR          # the timestamp, from the first one
    ADD_NO_MEMORY

ctypedef struct Building:    # the records of a batch so far
    uint8_t* records
    int64_t size
    int64_t capacity
    int32_t count
    int64_t base_timestamp
    int64_t max_timestamp

# Write a record up to its headers, for which room is left at `at`; it counts once `end_record` is told where
# they end. A size of -1 is null. Only its first record takes a batch beyond `limit_bytes`, uncompressed.
cdef int start_record(
    Building* batch, int64_t timestamp, const uint8_t* key, int64_t key_size, const uint8_t* value,
    int64_t value_size, int64_t headers_size, int64_t limit_bytes, uint8_t** at) noexcept nogil
cdef void end_record(Building* batch, int64_t timestamp, const uint8_t* end) noexcept nogil
# Raise what a status of start_record means.
cdef int refuse_record(int status, const Building* batch, int64_t timestamp, int64_t size) except -1


# Of a length, which zigzag doubles.
cdef inline int32_t varint_size(uint32_t value) noexcept nogil:
    value <<= 1
    if value < 0x80:
        return 1
    if value < 0x4000:
        return 2
    if value < 0x200000:
        return 3
    return 4 if value < 0x10000000 else 5


cdef class BatchBuilder:
    cdef Building batch
    cdef int64_t producer_id
    cdef int16_t producer_epoch
    cdef int32_t base_sequence
    cdef int16_t attributes
    cdef int level
    cdef bint busy               # a thread compresses or adds rows, without the interpreter lock

    cpdef object set_producer(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence)
    cdef int add(self, int64_t timestamp, const char* key, Py_ssize_t key_size, const char* value,
                 Py_ssize_t value_size, headers) except -1
    cdef bytes assemble(self, const uint8_t* records, size_t size, int64_t base_offset, int32_t leader_epoch)
