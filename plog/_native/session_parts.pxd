# A fetch session: the partitions that it remembers, in the order in which they are read.
from libc.stdint cimport int32_t, int64_t

from plog._native.locks cimport pthread_mutex_t
from plog._native.partition_names cimport PartitionName, Wanted
from plog._native.served cimport Served
from plog._native.siphash cimport SipKey

cdef enum:
    # What a partition counts besides its topic's name: names are as long as clients like, and so are lists of them.
    SESSION_PART_BYTES = 256

# What a session remembers of one partition.
ctypedef struct SessionPart:
    SessionPart* previous        # in the session's line: one with bytes goes to its end
    SessionPart* next
    SessionPart* next_in_bucket
    Wanted wanted                # its names follow the struct
    int64_t known_high_watermark  # in the last response; -1: that had an error
    int64_t known_log_start_offset
    Served* served               # for the reactors, which look it up: a pin, or NULL
    int64_t served_at            # the version of the served table in which it was found

ctypedef struct Session:
    int64_t references           # atomic; the table's own is one
    pthread_mutex_t* lock        # the table's
    const SipKey* key            # of the buckets
    int32_t id
    int32_t epoch                # what its next request must say; 0: it is over
    bint by_id
    int64_t created_ms
    int64_t used_ms
    SessionPart line             # head of the list
    SessionPart** buckets
    int64_t bucket_count         # a power of two
    int64_t count
    int64_t bytes                # what its partitions count
    Session* next_in_bucket
    Session* less_recent         # in the order of use
    Session* more_recent

# One with a pin, for the caller; NULL: no memory.
cdef Session* session_new(
    pthread_mutex_t* lock, const SipKey* key, bint by_id, int64_t now_ms) noexcept nogil
cdef void session_release(Session* session) noexcept nogil
# Take the table's lock to look at a session's line or change it. False, without the lock: its next request has come
# meanwhile, or it is over.
cdef bint session_hold(Session* session, int32_t epoch) noexcept nogil
cdef void session_let_go(Session* session) noexcept nogil

# Held, or in no table yet. Where the partition is linked, or where it would be.
cdef SessionPart** session_place_of(Session* session, const PartitionName* name) noexcept nogil
# Remember the values of a partition; those of the last response stay. False: no memory.
cdef bint session_take_in(Session* session, const Wanted* wanted) noexcept nogil
cdef void session_forget(Session* session, const PartitionName* name) noexcept nogil
# Held: put a partition to the end of the line.
cdef void session_put_last(Session* session, SessionPart* part) noexcept nogil


# Held: whether an answer must name the partition; the client then knows it. After an error the high watermark is
# forgotten, so that the next response names the partition again.
cdef inline bint session_must_name(
        SessionPart* part, bint has_error, bint has_news, int64_t high_watermark,
        int64_t log_start_offset) noexcept nogil:
    cdef bint changed = (
        has_error or has_news or part.known_high_watermark != high_watermark
        or part.known_log_start_offset != log_start_offset)
    part.known_high_watermark = -1 if has_error else high_watermark
    part.known_log_start_offset = log_start_offset
    return changed
