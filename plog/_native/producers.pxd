# The producers of one partition: a hash table by id, the last five batches of each, the open transactions in order.
# Nothing here locks; the partition's writers do.
from libc.stdint cimport int16_t, int32_t, int64_t

cdef enum:
    REMEMBERED_BATCHES = 5
    NO_TRANSACTION = -1

ctypedef struct ProducerBatch:
    int32_t first_sequence
    int32_t last_sequence
    int32_t offset_delta
    int64_t last_offset
    int64_t timestamp

ctypedef struct Producer:
    int64_t producer_id
    int16_t producer_epoch
    int32_t coordinator_epoch
    int32_t batch_count
    ProducerBatch batches[REMEMBERED_BATCHES]  # oldest first
    int64_t last_timestamp
    int64_t current_txn_first_offset           # changed by producers_set_transaction only
    int64_t version
    # Neighbours among the open transactions.
    Producer* opened_before
    Producer* opened_after

ctypedef struct ProducerTable:
    Producer** slots
    int64_t capacity     # a power of two
    int64_t count
    int64_t last_version
    # Open transactions by ascending first offset.
    Producer* first_open
    Producer* last_open

cdef enum Judgement:
    ORDINARY = 0
    REPEATED = 1
    UNUSUAL = 2
    BEGINNING = 3                # ordinary, but for the transaction that it begins: with leave only

cdef int producers_init(ProducerTable* table) noexcept nogil     # 0 or -ENOMEM
cdef void producers_free(ProducerTable* table) noexcept nogil
cdef Producer* producers_find(const ProducerTable* table, int64_t producer_id) noexcept nogil
# Finds or makes the entry; NULL when memory is out.
cdef Producer* producers_obtain(ProducerTable* table, int64_t producer_id) noexcept nogil
cdef void producers_remove(ProducerTable* table, int64_t producer_id) noexcept nogil
# Everything of `source` but the id and the links; a new version.
cdef void producers_assign(
    ProducerTable* table, Producer* entry, const Producer* source) noexcept nogil
cdef void producers_set_transaction(
    ProducerTable* table, Producer* entry, int64_t first_offset) noexcept nogil
# First offset of the earliest open transaction, INT64_MAX when none is open.
cdef int64_t producers_first_open(const ProducerTable* table) noexcept nogil

# What the rule of the ordinary next batch says; *repeated is set with REPEATED.
cdef Judgement producers_judge(
    const Producer* entry, int16_t producer_epoch, int32_t first_sequence, int32_t last_sequence,
    bint transactional, const ProducerBatch** repeated) noexcept nogil
# Remembers an appended batch; a new version.
cdef void producers_note(
    ProducerTable* table, Producer* entry, const ProducerBatch* batch) noexcept nogil

cdef object producer_entry(const Producer* source)               # -> ProducerEntry
cdef int read_producer_entry(object entry, Producer* out) except -1
