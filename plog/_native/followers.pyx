"""The followers of a partition, as its leader knows them.

Owns the rule for the high watermark: the smallest position in the maximal in-sync set (KIP-497). A leader that
proposes a new member counts it at once, and one that it wants to remove counts until the controller has agreed.
With fewer members than min.insync.replicas nothing more is committed (KIP-966). Never decides who is in sync.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free


cdef Follower* find(const Followers* followers, int32_t broker_id, int64_t broker_epoch) noexcept nogil:
    cdef int64_t number
    for number in range(followers.count):
        if followers.items[number].broker_id == broker_id:
            return &followers.items[number] if followers.items[number].broker_epoch == broker_epoch else NULL
    return NULL


cdef bint followers_set(
        Followers* followers, const Follower* fresh, int64_t count, int64_t least_in_sync) noexcept nogil:
    cdef Follower* made = <Follower*>calloc(count + 1, sizeof(Follower))
    cdef Follower* before
    cdef int64_t number
    if made == NULL:
        return False
    for number in range(count):
        made[number] = fresh[number]
        before = find(followers, made[number].broker_id, made[number].broker_epoch)
        made[number].position = UNKNOWN_POSITION if before == NULL else before.position
    free(followers.items)
    followers.items = made
    followers.count = count
    followers.least_in_sync = least_in_sync
    return True


cdef bint followers_note(
        Followers* followers, int32_t broker_id, int64_t broker_epoch, int64_t position) noexcept nogil:
    cdef Follower* found = find(followers, broker_id, broker_epoch)
    if found == NULL:
        return False
    found.position = position
    return True


cdef int64_t followers_commit(
        const Followers* followers, int64_t log_end_offset, int64_t high_watermark) noexcept nogil:
    cdef int64_t smallest = log_end_offset
    cdef int64_t in_sync = 1  # this broker
    cdef int64_t number
    if followers.count == 0:
        return high_watermark
    for number in range(followers.count):
        if followers.items[number].is_counted:
            smallest = min(smallest, followers.items[number].position)
            in_sync += 1
    return max(smallest, high_watermark) if in_sync >= followers.least_in_sync else high_watermark


cdef void followers_clear(Followers* followers) noexcept nogil:
    free(followers.items)
    followers.items = NULL
    followers.count = 0
