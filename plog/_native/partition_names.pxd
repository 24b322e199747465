# Partitions as a Fetch names them, and how names are compared.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from plog._native.served cimport LONGEST_TOPIC, TOPIC_ID_BYTES
from plog._native.siphash cimport SipKey

# By the topic's name (up to Fetch v12) or by its id (from v13).
ctypedef struct PartitionName:
    const uint8_t* topic
    int32_t topic_size           # 0: by id
    const uint8_t* topic_id      # TOPIC_ID_BYTES; of zeros: by name
    int32_t index

# What a request asks of one partition.
ctypedef struct Wanted:
    PartitionName name           # first: so the code that fills in names takes both structs
    int64_t offset
    int32_t max_bytes
    int32_t leader_epoch         # -1: whichever
    int32_t last_epoch           # of the last record that the reader has; -1: not said
    int64_t log_start_offset     # of a follower's log; -1: not said


cdef inline bint is_same_name(const PartitionName* one, const PartitionName* other) noexcept nogil:
    if one.topic_size != other.topic_size:
        return False
    # A longer one is compared by its place only: for many partitions more would take long, and no topic has it.
    return one.topic == other.topic or (
        one.topic_size <= LONGEST_TOPIC and memcmp(one.topic, other.topic, one.topic_size) == 0)


cdef inline bint is_same_topic(const PartitionName* one, const PartitionName* other) noexcept nogil:
    return is_same_name(one, other) and (
        one.topic_id == other.topic_id or memcmp(one.topic_id, other.topic_id, TOPIC_ID_BYTES) == 0)


cdef inline bint is_same_partition(const PartitionName* one, const PartitionName* other) noexcept nogil:
    return one.index == other.index and is_same_topic(one, other)


# Of a topic's name and id; and with it, of one of its partitions.
cdef uint64_t topic_hash(const SipKey* key, const PartitionName* name) noexcept nogil
cdef uint64_t partition_hash(const SipKey* key, uint64_t topic, int32_t index) noexcept nogil
# Name each partition once, at its first place and with its last values. False: no memory.
cdef bint name_each_once(const SipKey* key, Wanted* asked, int64_t* count) noexcept nogil
