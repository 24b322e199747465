"""The partitions of a Fetch: how they are looked up, and the memory of their names.

Owns the names that the response needs of partitions that are not served.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from plog._native.fetch_call cimport FETCH_IDS_SINCE, fetch_part
from plog._native.locks cimport load
from plog._native.part_list cimport part_add
from plog._native.partition_names cimport PartitionName, is_same_topic
from plog._native.request_stages cimport progress_add
from plog._native.served cimport TOPIC_ID_BYTES, served_find, served_find_by_id, served_name, served_release

cdef enum:
    HAS_CHANGED = -1             # a number of changes that no partition has


# --- one partition --------------------------------------------------------------------------------

cdef Served* fetch_find(ServedTable* table, const FetchCall* call, const PartitionName* name) noexcept nogil:
    if call.head.version < FETCH_IDS_SINCE:
        return served_find(table, name.topic, name.topic_size, name.index)
    return served_find_by_id(table, name.topic_id, name.index)


cdef void point_to(FetchPart* part, Served* served) noexcept nogil:
    """The pin is the part's."""
    part.served = served
    part.wakes = True
    part.epoch_then = load(&served.partition.leader_epoch)
    part.name.topic = served_name(served)
    part.name.topic_size = served.name_size
    part.name.topic_id = served.topic_id


cdef FetchPart* fetch_add_part(FetchCall* call, Served* served, const Wanted* wanted) noexcept nogil:
    cdef FetchPart* part = <FetchPart*>part_add(&call.parts, sizeof(FetchPart))
    if part == NULL:
        served_release(served)
        return NULL
    progress_add(call.progress, &part.stage, call.parts.count == 1)
    part.name = wanted.name
    part.offset = wanted.offset
    part.max_bytes = wanted.max_bytes
    part.leader_epoch = wanted.leader_epoch
    part.last_epoch = wanted.last_epoch
    part.log_start_offset = wanted.log_start_offset
    part.is_named = True
    if served != NULL:
        point_to(part, served)
    return part


cdef void fetch_find_again(ServedTable* table, const FetchCall* call, FetchPart* part) noexcept nogil:
    cdef Served* before = part.served
    cdef Served* fresh
    if part.error != 0:  # then the request does not wait
        return
    if before != NULL and load(&before.partition.writable):
        part.epoch_then = load(&before.partition.leader_epoch)
        return
    fresh = fetch_find(table, call, &part.name)
    if fresh == NULL:
        part.wakes = False
        return
    if fresh != before:
        point_to(part, fresh)
        part.changes = HAS_CHANGED
        fresh = before
    served_release(fresh)


# --- names ----------------------------------------------------------------------------------------

cdef int64_t name_bytes(const FetchCall* call) noexcept nogil:
    """Those of partitions that are not served; neighbours of one topic share them."""
    cdef const PartitionName* before = NULL
    cdef const FetchPart* part
    cdef int64_t size = 0
    cdef int64_t number
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if part.served != NULL:
            continue
        if before == NULL or not is_same_topic(&part.name, before):
            size += TOPIC_ID_BYTES + part.name.topic_size
        before = &part.name
    return size


cdef bint fetch_keep_names(FetchCall* call) noexcept nogil:
    cdef PartitionName before
    cdef FetchPart* part
    cdef uint8_t* at
    cdef uint8_t* kept = NULL
    cdef int64_t number
    call.names_bytes = name_bytes(call)
    if call.names_bytes == 0:
        return True
    call.names = at = <uint8_t*>malloc(call.names_bytes)
    if at == NULL:
        return False
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if part.served != NULL:
            continue
        if kept == NULL or not is_same_topic(&part.name, &before):
            kept = at
            memcpy(kept, part.name.topic_id, TOPIC_ID_BYTES)
            memcpy(kept + TOPIC_ID_BYTES, part.name.topic, part.name.topic_size)
            at += TOPIC_ID_BYTES + part.name.topic_size
        before = part.name
        part.name.topic_id = kept
        part.name.topic = kept + TOPIC_ID_BYTES
    return True
