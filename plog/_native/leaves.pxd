# Leave to begin a transaction in one partition, given before the first write of it comes. Nothing here locks: the
# partition's `lock` guards it.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.part_list cimport PartList

cdef enum:
    MOST_LEAVES = 256            # who looks for one looks at all of them; more writers ask Python

# Who writes: what a request tells of it, and the connection that it came by.
ctypedef struct Writer:
    int64_t connection
    const uint8_t* transactional_id
    int32_t transactional_id_size

ctypedef struct Leave:
    int64_t producer_id
    int16_t producer_epoch
    int64_t connection
    uint8_t* transactional_id    # owned
    int32_t transactional_id_size

# At most one for each producer, in no order.
ctypedef struct Leaves:
    PartList given               # of Leave

# In place of the producer's last one. False: no memory, or too many.
cdef bint leaves_give(
    Leaves* leaves, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil
# Whether there is one for just this writer; it is used up by that.
cdef bint leaves_use(
    Leaves* leaves, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil
# Take the producer's away, if it has one.
cdef void leaves_end(Leaves* leaves, int64_t producer_id) noexcept nogil
# Take all away, and give their memory back.
cdef void leaves_release(Leaves* leaves) noexcept nogil
