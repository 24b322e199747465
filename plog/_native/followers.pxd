# The followers of a partition, as its leader knows them, and the offset below which the in-sync replicas have all.
# Its user holds a lock. Times are in ms, of a clock that goes on in a suspended host.
from libc.stdint cimport int32_t, int64_t

cdef enum:
    UNKNOWN_POSITION = -1
    UNKNOWN_BROKER_EPOCH = -1
    NEVER = -1

ctypedef struct Follower:
    int32_t broker_id
    bint is_counted              # in the maximal in-sync set: those in sync, and those about to be
    int64_t broker_epoch         # of the broker's registration: one that has restarted may have lost records
    int64_t position             # its log has all below it; UNKNOWN_POSITION: it has not fetched from this leader
    int64_t log_start_offset     # of its log; UNKNOWN_POSITION as well
    int64_t end_before           # the leader's log end when its last fetch came
    int64_t fetched_ms           # when its last fetch came
    int64_t caught_up_ms         # when it last had all that the leader had
    int64_t confirmed_ms         # it followed this leader then, or later: see `plog.cluster.replication.isr`
    bint is_reported             # a note for Python says that it may join, and lies there untaken

ctypedef struct Followers:
    Follower* items              # owned
    int64_t count
    int64_t least_in_sync        # with fewer replicas in the maximal in-sync set, nothing more is committed

# Replace them: of `fresh` only ids and `is_counted` matter. Those that stay keep all else. False: no memory, and
# nothing has changed.
cdef bint followers_set(
    Followers* followers, const Follower* fresh, int64_t count, int64_t least_in_sync, int64_t now_ms) noexcept nogil
# A fetch of a follower has come, from `position` on. NULL: there is none of this id, or it has registered again since.
cdef const Follower* followers_note(
    Followers* followers, int32_t broker_id, int64_t broker_epoch, int64_t position, int64_t log_start_offset,
    int64_t log_end_offset, int64_t now_ms) noexcept nogil
# Where its log starts; UNKNOWN_POSITION: it has not said, or there is none of this id.
cdef int64_t followers_start_of(Followers* followers, int32_t broker_id) noexcept nogil
# Whether it has all that is or was ever committed: that is below the high watermark and the start of this leader epoch.
cdef bint follower_may_join(const Follower* follower, int64_t high_watermark, int64_t epoch_start) noexcept nogil
# From now on a follower counts. False: there is none of this id, or it may not join.
cdef bint followers_count_in(
    Followers* followers, int32_t broker_id, int64_t high_watermark, int64_t epoch_start) noexcept nogil
# False: there is none of this id, or it is marked like this already.
cdef bint followers_mark_reported(Followers* followers, int32_t broker_id, bint is_reported) noexcept nogil
# Whether so many count that more may be committed.
cdef bint followers_are_enough(const Followers* followers) noexcept nogil
# The high watermark: it never goes back. Without followers it stays; other rules move it.
cdef int64_t followers_commit(
    const Followers* followers, int64_t log_end_offset, int64_t high_watermark) noexcept nogil
cdef void followers_clear(Followers* followers) noexcept nogil
