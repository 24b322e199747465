"""The followers of a partition, as its leader knows them.

Owns the rule for the high watermark: the smallest position in the maximal in-sync set (KIP-497). A leader that
proposes a new member counts it at once, and one that it wants to remove counts until the controller has agreed.
With fewer members than min.insync.replicas nothing more is committed (KIP-966). Also when a follower had all that the
leader had. `plog.cluster.replication.isr` has the same rules, and decides by them who is in sync.
"""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free


cdef Follower* find(const Followers* followers, int32_t broker_id) noexcept nogil:
    cdef int64_t number
    for number in range(followers.count):
        if followers.items[number].broker_id == broker_id:
            return &followers.items[number]
    return NULL


cdef bint followers_set(
        Followers* followers, const Follower* fresh, int64_t count, int64_t least_in_sync, int64_t now_ms) noexcept nogil:
    cdef Follower* made = <Follower*>calloc(count + 1, sizeof(Follower))
    cdef const Follower* before
    cdef int64_t number
    if made == NULL:
        return False
    for number in range(count):
        before = find(followers, fresh[number].broker_id)
        if before != NULL:
            made[number] = before[0]
        else:
            made[number].broker_id = fresh[number].broker_id
            made[number].broker_epoch = UNKNOWN_BROKER_EPOCH
            made[number].position = made[number].log_start_offset = UNKNOWN_POSITION
            made[number].fetched_ms = made[number].caught_up_ms = now_ms
            made[number].confirmed_ms = NEVER
        made[number].is_counted = fresh[number].is_counted
    free(followers.items)
    followers.items = made
    followers.count = count
    followers.least_in_sync = least_in_sync
    return True


cdef const Follower* followers_note(
        Followers* followers, int32_t broker_id, int64_t broker_epoch, int64_t position, int64_t log_start_offset,
        int64_t log_end_offset, int64_t now_ms) noexcept nogil:
    cdef Follower* found = find(followers, broker_id)
    if found == NULL or broker_epoch < found.broker_epoch:
        return NULL
    if position >= log_end_offset:
        found.caught_up_ms = now_ms
    elif position >= found.end_before and broker_epoch == found.broker_epoch:
        # It has all that there was when it asked before.
        found.caught_up_ms = max(found.caught_up_ms, found.fetched_ms)
    if found.position != UNKNOWN_POSITION and broker_epoch == found.broker_epoch:
        found.confirmed_ms = found.fetched_ms
    found.broker_epoch = broker_epoch
    found.position = position
    found.log_start_offset = log_start_offset
    found.end_before = log_end_offset
    found.fetched_ms = now_ms
    return found


cdef int64_t followers_start_of(Followers* followers, int32_t broker_id) noexcept nogil:
    cdef Follower* found = find(followers, broker_id)
    return UNKNOWN_POSITION if found == NULL else found.log_start_offset


cdef bint follower_may_join(const Follower* follower, int64_t high_watermark, int64_t epoch_start) noexcept nogil:
    return not follower.is_counted and follower.position >= max(high_watermark, epoch_start)


cdef bint followers_count_in(
        Followers* followers, int32_t broker_id, int64_t high_watermark, int64_t epoch_start) noexcept nogil:
    cdef Follower* found = find(followers, broker_id)
    if found == NULL or not follower_may_join(found, high_watermark, epoch_start):
        return False
    found.is_counted = True
    return True


cdef bint followers_mark_reported(Followers* followers, int32_t broker_id, bint is_reported) noexcept nogil:
    cdef Follower* found = find(followers, broker_id)
    if found == NULL or found.is_reported == is_reported:
        return False
    found.is_reported = is_reported
    return True


cdef int64_t counted(const Followers* followers) noexcept nogil:
    cdef int64_t number
    cdef int64_t count = 1  # this broker
    for number in range(followers.count):
        count += followers.items[number].is_counted
    return count


cdef bint followers_are_enough(const Followers* followers) noexcept nogil:
    return counted(followers) >= followers.least_in_sync


cdef int64_t followers_commit(
        const Followers* followers, int64_t log_end_offset, int64_t high_watermark) noexcept nogil:
    cdef int64_t smallest = log_end_offset
    cdef int64_t number
    if followers.count == 0 or not followers_are_enough(followers):
        return high_watermark
    for number in range(followers.count):
        if followers.items[number].is_counted:
            smallest = min(smallest, followers.items[number].position)
    return max(smallest, high_watermark)


cdef void followers_clear(Followers* followers) noexcept nogil:
    free(followers.items)
    followers.items = NULL
    followers.count = 0
