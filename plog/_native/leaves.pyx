"""Leave to begin a transaction in one partition, given before the first write of it comes.

Owns who has leave, and that each is used once, by the writer that it was given to: the producer, its
epoch, its transactional id, and the connection by which its partition joined the transaction. On one
connection requests are taken in their order, so that no write from before that can use it. Never
decides who is given leave, nor when it ends: the transaction's coordinator and the markers do.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from plog._native.part_list cimport part_add, parts_release


cdef inline Leave* leave_at(const Leaves* leaves, int64_t number) noexcept nogil:
    return &(<Leave*>leaves.given.items)[number]


cdef Leave* leave_of(const Leaves* leaves, int64_t producer_id) noexcept nogil:
    cdef int64_t number
    for number in range(leaves.given.count):
        if leave_at(leaves, number).producer_id == producer_id:
            return leave_at(leaves, number)
    return NULL


cdef void remove(Leaves* leaves, Leave* leave) noexcept nogil:
    free(leave.transactional_id)
    leaves.given.count -= 1
    leave[0] = leave_at(leaves, leaves.given.count)[0]


cdef bint leaves_give(
        Leaves* leaves, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil:
    cdef Leave* leave
    cdef uint8_t* name
    leaves_end(leaves, producer_id)
    if leaves.given.count == MOST_LEAVES or writer.transactional_id_size <= 0:
        return False
    name = <uint8_t*>malloc(writer.transactional_id_size)
    if name == NULL:
        return False
    leave = <Leave*>part_add(&leaves.given, sizeof(Leave))
    if leave == NULL:
        free(name)
        return False
    memcpy(name, writer.transactional_id, writer.transactional_id_size)
    leave.producer_id = producer_id
    leave.producer_epoch = producer_epoch
    leave.connection = writer.connection
    leave.transactional_id = name
    leave.transactional_id_size = writer.transactional_id_size
    return True


cdef bint leaves_use(
        Leaves* leaves, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil:
    cdef Leave* leave = leave_of(leaves, producer_id)
    if (leave == NULL or leave.producer_epoch != producer_epoch or leave.connection != writer.connection
            or leave.transactional_id_size != writer.transactional_id_size
            or memcmp(leave.transactional_id, writer.transactional_id, leave.transactional_id_size) != 0):
        return False  # it stays: who has it may still come
    remove(leaves, leave)
    return True


cdef void leaves_end(Leaves* leaves, int64_t producer_id) noexcept nogil:
    cdef Leave* leave = leave_of(leaves, producer_id)
    if leave != NULL:
        remove(leaves, leave)


cdef void leaves_release(Leaves* leaves) noexcept nogil:
    cdef int64_t number
    for number in range(leaves.given.count):
        free(leave_at(leaves, number).transactional_id)
    parts_release(&leaves.given)
