"""The aborted transactions that readers of committed records are told of.

Owns which of a list overlap what is read: those that the handler tells, in its order
(`storage/transaction_index.py` is the truth). Never decides how many a list has, or when
another takes its place.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from plog._native.locks cimport add
from plog._native.wire cimport be64

cdef enum:
    # Version (i16), producer id, first offset, last offset, last stable offset.
    ENTRY_BYTES = 34
    AT_PRODUCER_ID = 2


cdef void aborted_retain(AbortedList* pinned) noexcept nogil:
    add(&pinned.references, 1)


cdef void aborted_release(AbortedList* pinned) noexcept nogil:
    if pinned != NULL and add(&pinned.references, -1) == 0:
        free(pinned)


cdef AbortedList* list_new(int64_t count) noexcept nogil:
    """One pin; `count` entries, not yet filled. NULL: no memory."""
    cdef AbortedList* made = <AbortedList*>malloc(sizeof(AbortedList) + count * sizeof(Aborted))
    if made != NULL:
        made.references = 1
        made.count = count
        made.entries = <Aborted*>(made + 1)
    return made


cdef void decode_entry(const uint8_t* p, Aborted* entry) noexcept nogil:
    p += AT_PRODUCER_ID
    entry.producer_id = <int64_t>be64(p)
    entry.first_offset = <int64_t>be64(p + 8)
    entry.last_offset = <int64_t>be64(p + 16)
    entry.last_stable_offset = <int64_t>be64(p + 24)


cdef int64_t first_ended_from(const AbortedList* among, int64_t offset) noexcept nogil:
    """Number of the first whose marker lies at an offset or past it."""
    cdef int64_t low = among.ending
    cdef int64_t high = among.count
    cdef int64_t middle
    while low < high:
        middle = (low + high) // 2
        if among.entries[middle].last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef const Aborted* aborted_next(AbortedWalk* walk) noexcept nogil:
    cdef const AbortedList* among = walk.among
    cdef const Aborted* entry
    while walk.number < among.ending:
        entry = &among.entries[walk.number]
        walk.number += 1
        if entry.first_offset < walk.upper_offset:
            return entry
    if walk.number == among.ending:
        walk.number = first_ended_from(among, walk.fetch_offset)
    while walk.number < among.count:
        entry = &among.entries[walk.number]
        walk.number += 1
        if entry.last_stable_offset >= walk.upper_offset:
            walk.number = among.count  # what was still open then, and all that came later, begins past it
        if entry.first_offset < walk.upper_offset:
            return entry
    return NULL


cdef int64_t aborted_count(AbortedWalk walk) noexcept nogil:
    cdef int64_t count = 0
    while aborted_next(&walk) != NULL:
        count += 1
    return count


cdef class PublishedAborted:
    """Aborted transactions, as both planes share them: to be published to a partition.

    Args:
        ended: entries of a transaction index, in the order of their markers.
        ending: producer id and first offset of each whose marker is being written.
        known_from: who reads from below it may meet others.

    Raises:
        ValueError: `ended` ends within an entry.
    """

    def __cinit__(self, bytes ended not None, ending, int64_t known_from):
        cdef const uint8_t* p = ended
        cdef int64_t size = len(ended)
        cdef int64_t number = len(ending)
        if size % ENTRY_BYTES:
            raise ValueError(f"{size} bytes of transaction index entries")
        self.pinned = list_new(number + size // ENTRY_BYTES)
        if self.pinned == NULL:
            raise MemoryError
        self.pinned.known_from = known_from
        self.pinned.ending = number
        for number, (producer_id, first_offset) in enumerate(ending):
            self.pinned.entries[number] = Aborted(producer_id, first_offset, INT64_MAX, INT64_MAX)
        for number in range(self.pinned.ending, self.pinned.count):
            decode_entry(p, &self.pinned.entries[number])
            p += ENTRY_BYTES

    def __dealloc__(self):
        aborted_release(self.pinned)

    def __len__(self):
        return self.pinned.count

    @property
    def known_from(self):
        return self.pinned.known_from

    def overlapping(self, int64_t fetch_offset, int64_t upper_offset):
        """Return producer ids and first offsets of those with records or their marker in a range, as readers are told."""
        cdef AbortedWalk walk = AbortedWalk(self.pinned, fetch_offset, upper_offset, 0)
        cdef const Aborted* entry = aborted_next(&walk)
        found = []
        while entry != NULL:
            found.append((entry.producer_id, entry.first_offset))
            entry = aborted_next(&walk)
        return found
