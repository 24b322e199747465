# The followers of a partition, as its leader knows them, and the offset below which the in-sync replicas have all.
# Its user holds a lock.
from libc.stdint cimport int32_t, int64_t

cdef enum:
    UNKNOWN_POSITION = -1

ctypedef struct Follower:
    int32_t broker_id
    int64_t broker_epoch         # of the broker's registration: one that has restarted may have lost records
    int64_t position             # its log has all below it; UNKNOWN_POSITION: it has not fetched from this leader
    bint is_counted              # in the maximal in-sync set: those in sync, and those about to be

ctypedef struct Followers:
    Follower* items              # owned
    int64_t count
    int64_t least_in_sync        # with fewer replicas in the maximal in-sync set, nothing more is committed

# Replace them. One whose broker epoch is the same keeps its position. False: no memory, and nothing has changed.
cdef bint followers_set(
    Followers* followers, const Follower* fresh, int64_t count, int64_t least_in_sync) noexcept nogil
# A follower has fetched from `position` on. False: there is none of this id and epoch.
cdef bint followers_note(
    Followers* followers, int32_t broker_id, int64_t broker_epoch, int64_t position) noexcept nogil
# The high watermark: it never goes back. Without followers it stays; other rules move it.
cdef int64_t followers_commit(
    const Followers* followers, int64_t log_end_offset, int64_t high_watermark) noexcept nogil
cdef void followers_clear(Followers* followers) noexcept nogil
