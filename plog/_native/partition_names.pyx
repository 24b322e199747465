"""Partitions as a Fetch names them, and how names are compared.

Owns when two names are one partition's. Never asks whether there is such a partition.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from plog._native.served cimport TOPIC_ID_BYTES
from plog._native.siphash cimport SipKey, siphash_of

cdef enum:
    FEWEST_SLOTS = 8

# Hashes have a secret key. Without it a client could choose many names that share a slot, and each search among them would
# take long.

cdef struct HashedTopic:
    uint64_t name                # its hash, so that all are of one size
    uint8_t topic_id[TOPIC_ID_BYTES]

cdef struct HashedPartition:
    uint64_t topic
    int64_t index


cdef uint64_t topic_hash(const SipKey* key, const PartitionName* name) noexcept nogil:
    cdef HashedTopic hashed
    hashed.name = siphash_of(key, name.topic, name.topic_size)
    memcpy(hashed.topic_id, name.topic_id, TOPIC_ID_BYTES)
    return siphash_of(key, <const uint8_t*>&hashed, sizeof(hashed))


cdef uint64_t partition_hash(const SipKey* key, uint64_t topic, int32_t index) noexcept nogil:
    cdef HashedPartition hashed
    hashed.topic = topic
    hashed.index = index
    return siphash_of(key, <const uint8_t*>&hashed, sizeof(hashed))


cdef bint ascend(const Wanted* asked, int64_t count) noexcept nogil:
    """Whether each is surely named once: they ascend within one topic, as clients mostly send them."""
    cdef const PartitionName* before
    cdef const PartitionName* name
    cdef int64_t number
    for number in range(1, count):
        before = &asked[number - 1].name
        name = &asked[number].name
        # All partitions of an entry point to the same name in the frame.
        if name.topic != before.topic or name.topic_id != before.topic_id or name.index <= before.index:
            return False
    return True


cdef bint name_each_once(const SipKey* key, Wanted* asked, int64_t* count) noexcept nogil:
    cdef int64_t slots = FEWEST_SLOTS
    cdef int32_t* taken          # which of `asked` has the slot, from 1 on; 0: none
    cdef uint64_t topic = 0
    cdef const PartitionName* name
    cdef int64_t kept = 0
    cdef int64_t number
    cdef int64_t at
    if ascend(asked, count[0]):
        return True
    while slots < 2 * count[0]:
        slots *= 2
    taken = <int32_t*>calloc(slots, sizeof(int32_t))
    if taken == NULL:
        return False
    for number in range(count[0]):
        name = &asked[number].name
        if number == 0 or not is_same_topic(name, &asked[number - 1].name):
            topic = topic_hash(key, name)
        at = partition_hash(key, topic, name.index) & (slots - 1)
        while taken[at] != 0 and not is_same_partition(name, &asked[taken[at] - 1].name):
            at = (at + 1) & (slots - 1)
        if taken[at] == 0:
            kept += 1
            taken[at] = <int32_t>kept
        asked[taken[at] - 1] = asked[number]
    free(taken)
    count[0] = kept
    return True
