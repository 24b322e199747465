"""The Produces that a reactor has read in one round, written together: one write for each partition.

Owns which partitions are held for the round, and which requests wait for the write. A partition
is held by its write lock, so its offsets are known before it is written; who holds one waits for no
other, as reactors could then wait for each other. Nothing is answered before it is written.
"""

from libc.stdint cimport int64_t

from plog._native.files cimport calls
from plog._native.log_append cimport (
    APPEND_DONE, APPEND_DUPLICATE, GROUP_TRIES, GROUP_WAITS, AppendGroup, group_abandon, group_add, group_close,
    group_open, group_release, group_write)
from plog._native.partition cimport Partition
from plog._native.produce_call cimport ProduceCall, ProducePart, produce_part
from plog._native.produce_path cimport follows_pythons
from plog._native.reactor_types cimport MOST_GATHERED, MOST_GROUPS, Gather, PartitionWrite, Request
from plog._native.request_line cimport parts_advance, parts_advance_from
from plog._native.request_stages cimport CHECKED, TAKEN_IN
from plog._native.served cimport Served
from plog._native.topic_traffic cimport traffic_received
from plog._native.work_queue cimport work_note_time, work_patience_us

cdef enum:
    # More gains nothing, and would keep who was read first, and who else writes to these partitions, waiting.
    ENOUGH_BYTES = 4 * 1024 * 1024
    LONGEST_US = 2000


cdef AppendGroup* group_of(Gather* gather, const Served* served) noexcept nogil:
    """The partition's group. NULL: it cannot be held now."""
    cdef Partition* partition = served.partition
    cdef PartitionWrite* write
    cdef int64_t number
    for number in range(gather.write_count):
        if gather.writes[number].group.partition == partition:
            return &gather.writes[number].group
    # One disk may keep its partitions waiting, but not those of another.
    if gather.write_count == MOST_GROUPS or (gather.write_count > 0 and gather.writes[0].disk != served.disk):
        return NULL
    write = &gather.writes[gather.write_count]
    if not group_open(&write.group, partition, GROUP_TRIES if gather.write_count > 0 else GROUP_WAITS):
        return NULL
    write.disk = served.disk
    write.traffic = served.traffic
    gather.write_count += 1
    return &write.group


cdef bint add_part(Gather* gather, ProduceCall* call, ProducePart* part, int64_t now_ms) noexcept nogil:
    """Take its batch into the group of its partition. False: it is to be written behind that."""
    cdef AppendGroup* group = group_of(gather, part.served)
    if group == NULL:
        return False
    group_add(group, part.records, part.size, now_ms, NULL, &call.writer, &part.result)
    if part.result.status != APPEND_DONE and part.result.status != APPEND_DUPLICATE:
        return False
    part.group = group
    gather.bytes += part.size
    return True


cdef void gather_add(Gather* gather, Request* request, int64_t now_ms) noexcept nogil:
    cdef ProduceCall* call = &request.produce
    cdef ProducePart* part
    cdef int64_t number
    cdef bint all_went_in = True
    if gather.request_count == 0:
        gather.begun_us = calls().monotonic_us()
    for number in range(call.parts.count):
        part = produce_part(call, number)
        if part.stage == CHECKED and all_went_in:
            all_went_in = not follows_pythons(call, part) and add_part(gather, call, part, now_ms)
    # Also those that did not go in: they are written behind the groups.
    if call.parts.count == 0:
        parts_advance(request, TAKEN_IN)
    parts_advance_from(request, CHECKED, TAKEN_IN)
    gather.requests[gather.request_count] = request
    gather.request_count += 1
    gather.is_full = (
        gather.request_count == MOST_GATHERED or gather.bytes >= ENOUGH_BYTES or gather_is_due(gather)
        or not all_went_in)


cdef bint gather_is_due(const Gather* gather) noexcept nogil:
    return gather.request_count > 0 and calls().monotonic_us() - gather.begun_us > LONGEST_US


cdef void gather_write(Gather* gather) noexcept nogil:
    cdef PartitionWrite* write
    cdef int64_t longest_us = 0
    cdef int64_t patience_us, number
    for number in range(gather.write_count):
        write = &gather.writes[number]
        if write.group.batches.count > 0:
            patience_us = work_patience_us(write.disk)
            if longest_us > patience_us:
                group_abandon(&write.group)
            else:
                group_write(&write.group, patience_us)
                longest_us = write.group.longest_us
                if write.group.written:
                    traffic_received(write.traffic, write.group.record_count, write.group.size_bytes)
                work_note_time(write.disk, longest_us)
        group_close(&write.group)
    gather.write_count = 0


cdef void gather_clear(Gather* gather) noexcept nogil:
    gather.request_count = gather.bytes = 0
    gather.is_full = False


cdef void gather_release(Gather* gather) noexcept nogil:
    cdef int64_t number
    for number in range(MOST_GROUPS):
        group_release(&gather.writes[number].group)
