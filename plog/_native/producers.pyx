"""The producers of one partition, as the data path must know them.

Owns the table by producer id, the five remembered batches, the order of the open transactions, and
the rule of the ordinary next batch. Never decides what becomes of a batch that is not ordinary, and
never locks: the partition's writers do.

Source: KIP-98 and KIP-360; five batches because a client has at most so many in flight.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from typing import NamedTuple

cdef enum:
    FIRST_CAPACITY = 8


class SequencedBatch(NamedTuple):
    """What is remembered of one of a producer's last five batches."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class ProducerEntry(NamedTuple):
    """State of one producer id in one partition; `version` changes at every change of the entry."""

    producer_id: int
    producer_epoch: int
    batches: tuple
    last_timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int
    version: int = 0


# --- the table ------------------------------------------------------------------------------------

cdef inline int64_t home_of(const ProducerTable* table, int64_t producer_id) noexcept nogil:
    # Ids come in blocks of consecutive numbers; the multiplication spreads them.
    return <int64_t>(((<uint64_t>producer_id * <uint64_t>0x9E3779B97F4A7C15) >> 32)
                     & <uint64_t>(table.capacity - 1))


cdef int producers_init(ProducerTable* table) noexcept nogil:
    table.slots = <Producer**>calloc(FIRST_CAPACITY, sizeof(Producer*))
    if table.slots == NULL:
        return -ENOMEM
    table.capacity = FIRST_CAPACITY
    table.count = 0
    table.last_version = 0
    table.first_open = NULL
    table.last_open = NULL
    return 0


cdef void producers_free(ProducerTable* table) noexcept nogil:
    cdef int64_t slot
    if table.slots == NULL:
        return
    for slot in range(table.capacity):
        free(table.slots[slot])
    free(table.slots)
    table.slots = NULL
    table.capacity = table.count = 0
    table.first_open = table.last_open = NULL


cdef int64_t slot_of(const ProducerTable* table, int64_t producer_id) noexcept nogil:
    """The slot that holds the id, or the free one where it would go."""
    cdef int64_t slot = home_of(table, producer_id)
    while table.slots[slot] != NULL and table.slots[slot].producer_id != producer_id:
        slot = (slot + 1) & (table.capacity - 1)
    return slot


cdef Producer* producers_find(const ProducerTable* table, int64_t producer_id) noexcept nogil:
    return table.slots[slot_of(table, producer_id)]


cdef int grow(ProducerTable* table) noexcept nogil:
    cdef Producer** old = table.slots
    cdef int64_t old_capacity = table.capacity
    cdef Producer** fresh = <Producer**>calloc(old_capacity * 2, sizeof(Producer*))
    cdef int64_t slot
    if fresh == NULL:
        return -ENOMEM
    table.slots = fresh
    table.capacity = old_capacity * 2
    for slot in range(old_capacity):
        if old[slot] != NULL:
            fresh[slot_of(table, old[slot].producer_id)] = old[slot]
    free(old)
    return 0


cdef Producer* producers_obtain(ProducerTable* table, int64_t producer_id) noexcept nogil:
    cdef Producer* entry = producers_find(table, producer_id)
    if entry != NULL:
        return entry
    # A quarter stays free, so that searches stay short and always end.
    if (table.count + 1) * 4 > table.capacity * 3 and grow(table) != 0:
        return NULL
    entry = <Producer*>calloc(1, sizeof(Producer))
    if entry == NULL:
        return NULL
    entry.producer_id = producer_id
    entry.producer_epoch = -1
    entry.coordinator_epoch = -1
    entry.last_timestamp = -1
    entry.current_txn_first_offset = NO_TRANSACTION
    table.slots[slot_of(table, producer_id)] = entry
    table.count += 1
    return entry


cdef void producers_remove(ProducerTable* table, int64_t producer_id) noexcept nogil:
    cdef int64_t hole = slot_of(table, producer_id)
    cdef int64_t slot, home
    cdef int64_t mask = table.capacity - 1
    if table.slots[hole] == NULL:
        return
    producers_set_transaction(table, table.slots[hole], NO_TRANSACTION)
    free(table.slots[hole])
    table.slots[hole] = NULL
    table.count -= 1
    # Those behind move up, where their own search would otherwise stop at the hole.
    slot = (hole + 1) & mask
    while table.slots[slot] != NULL:
        home = home_of(table, table.slots[slot].producer_id)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            table.slots[hole] = table.slots[slot]
            table.slots[slot] = NULL
            hole = slot
        slot = (slot + 1) & mask


cdef void producers_assign(
        ProducerTable* table, Producer* entry, const Producer* source) noexcept nogil:
    cdef int32_t number
    entry.producer_epoch = source.producer_epoch
    entry.coordinator_epoch = source.coordinator_epoch
    entry.last_timestamp = source.last_timestamp
    entry.batch_count = source.batch_count
    for number in range(source.batch_count):
        entry.batches[number] = source.batches[number]
    producers_set_transaction(table, entry, source.current_txn_first_offset)
    table.last_version += 1
    entry.version = table.last_version


# --- transactions ---------------------------------------------------------------------------------

cdef void producers_set_transaction(
        ProducerTable* table, Producer* entry, int64_t first_offset) noexcept nogil:
    cdef Producer* before
    if entry.current_txn_first_offset == first_offset:
        return
    if entry.current_txn_first_offset != NO_TRANSACTION:
        if entry.opened_before != NULL:
            entry.opened_before.opened_after = entry.opened_after
        else:
            table.first_open = entry.opened_after
        if entry.opened_after != NULL:
            entry.opened_after.opened_before = entry.opened_before
        else:
            table.last_open = entry.opened_before
    entry.current_txn_first_offset = first_offset
    entry.opened_before = entry.opened_after = NULL
    if first_offset == NO_TRANSACTION:
        return
    # Transactions open at the end of the log, so the place is nearly always the last one.
    before = table.last_open
    while before != NULL and before.current_txn_first_offset > first_offset:
        before = before.opened_before
    entry.opened_before = before
    if before != NULL:
        entry.opened_after = before.opened_after
        before.opened_after = entry
    else:
        entry.opened_after = table.first_open
        table.first_open = entry
    if entry.opened_after != NULL:
        entry.opened_after.opened_before = entry
    else:
        table.last_open = entry


cdef int64_t producers_first_open(const ProducerTable* table) noexcept nogil:
    return INT64_MAX if table.first_open == NULL else table.first_open.current_txn_first_offset


# --- sequences ------------------------------------------------------------------------------------

cdef Judgement producers_judge(
        const Producer* entry, int16_t producer_epoch, int32_t first_sequence,
        int32_t last_sequence, bint transactional, const ProducerBatch** repeated) noexcept nogil:
    cdef int32_t number
    cdef bint begins
    if entry == NULL or entry.producer_epoch != producer_epoch or first_sequence < 0:
        return UNUSUAL
    for number in range(entry.batch_count):
        if (entry.batches[number].first_sequence == first_sequence
                and entry.batches[number].last_sequence == last_sequence):
            repeated[0] = &entry.batches[number]
            return REPEATED
    # One that forgets that it is in a transaction is for Python.
    if not transactional and entry.current_txn_first_offset != NO_TRANSACTION:
        return UNUSUAL
    begins = transactional and entry.current_txn_first_offset == NO_TRANSACTION
    # Where nothing is known any sequence may come, but Python has more to say of what begins a transaction then.
    if entry.batch_count == 0:
        return UNUSUAL if begins else ORDINARY
    # After 2147483647 comes 0.
    if first_sequence != ((<int64_t>entry.batches[entry.batch_count - 1].last_sequence + 1) & 0x7FFFFFFF):
        return UNUSUAL
    return BEGINNING if begins else ORDINARY


cdef void producers_note(
        ProducerTable* table, Producer* entry, const ProducerBatch* batch) noexcept nogil:
    if entry.batch_count == REMEMBERED_BATCHES:
        memmove(&entry.batches[0], &entry.batches[1],
                (REMEMBERED_BATCHES - 1) * sizeof(ProducerBatch))
        entry.batch_count -= 1
    entry.batches[entry.batch_count] = batch[0]
    entry.batch_count += 1
    entry.last_timestamp = batch.timestamp
    table.last_version += 1
    entry.version = table.last_version


# --- for Python -----------------------------------------------------------------------------------

cdef object producer_entry(const Producer* source):
    cdef int32_t number
    cdef list batches = []
    for number in range(source.batch_count):
        batches.append(SequencedBatch(
            source.batches[number].first_sequence, source.batches[number].last_sequence,
            source.batches[number].last_offset, source.batches[number].offset_delta,
            source.batches[number].timestamp))
    return ProducerEntry(
        source.producer_id, source.producer_epoch, tuple(batches), source.last_timestamp,
        source.coordinator_epoch, source.current_txn_first_offset, source.version)


cdef int read_producer_entry(object entry, Producer* out) except -1:
    """Fill `out` from a ProducerEntry. Raises ValueError and OverflowError."""
    cdef int32_t number = 0
    batches = entry.batches
    if len(batches) > REMEMBERED_BATCHES:
        raise ValueError(f"producer {entry.producer_id}: {len(batches)} batches, "
                         f"at most {REMEMBERED_BATCHES} are remembered")
    if entry.producer_id < 0:
        raise ValueError(f"{entry.producer_id} is not a producer id")
    if entry.current_txn_first_offset < NO_TRANSACTION:
        raise ValueError(f"producer {entry.producer_id}: a transaction cannot begin at "
                         f"{entry.current_txn_first_offset}")
    out.producer_id = entry.producer_id
    out.producer_epoch = entry.producer_epoch
    out.coordinator_epoch = entry.coordinator_epoch
    out.last_timestamp = entry.last_timestamp
    out.current_txn_first_offset = entry.current_txn_first_offset
    out.version = entry.version
    out.opened_before = out.opened_after = NULL
    out.batch_count = len(batches)
    for batch in batches:
        out.batches[number].first_sequence = batch.first_sequence
        out.batches[number].last_sequence = batch.last_sequence
        out.batches[number].last_offset = batch.last_offset
        out.batches[number].offset_delta = batch.offset_delta
        out.batches[number].timestamp = batch.timestamp
        number += 1
    return 0
