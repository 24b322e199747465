# The broker's table of fetch sessions (KIP-227): what clients are fetching, kept so that they need not say it again.
# One table under one lock, for the reactors and the handlers alike; nothing here reads a log.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from plog._native.locks cimport pthread_mutex_t
from plog._native.served cimport Served
from plog._native.siphash cimport SipKey

# A partition as requests name it: by the topic's name (up to Fetch v12) or by its id (from v13).
ctypedef struct PartitionName:
    const uint8_t* topic
    int32_t topic_size           # 0: by id
    const uint8_t* topic_id      # TOPIC_ID_BYTES; of zeros: by name
    int32_t index

# What a request asks of one partition.
ctypedef struct Wanted:
    PartitionName name           # stands first: whoever fills in names need not know the rest
    int64_t offset
    int32_t max_bytes
    int32_t leader_epoch         # -1: whichever
    int32_t last_epoch           # of the last record that the reader has; -1: not told

# What a session remembers of one partition.
ctypedef struct SessionPart:
    SessionPart* previous        # in the session's line: who got bytes goes to its end
    SessionPart* next
    SessionPart* next_in_bucket
    Wanted wanted                # its names follow the struct
    int64_t told_high_watermark  # what the client knows; -1: it was told of an error
    int64_t told_log_start_offset
    Served* served               # for the reactors, which look it up: a pin, or NULL
    int64_t served_at            # the version of the served table in which it was found

ctypedef struct Session:
    int64_t references           # atomic; the table's own is one
    SessionTable* table
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

ctypedef struct SessionTable:
    pthread_mutex_t lock
    int64_t slots
    int64_t count
    int64_t most_bytes
    int64_t bytes                # of all sessions in it
    SipKey name_key              # of the buckets of partitions: never told, nor drawn from what is
    Session** buckets
    int64_t bucket_count         # a power of two
    Session by_use               # head of the circle: more_recent is the one that was unused for longest
    SipKey id_key                # of the ids, which clients see: none tells another
    uint64_t ids_drawn

# What a request came to.
cdef enum SessionOutcome:
    SESSION_NONE = 0             # no session: everything asked for is to be read
    SESSION_NEW = 1              # the same, and it opened a session
    SESSION_NEXT = 2             # read what the session remembers, and tell of what has changed
    SESSION_ENDED = 3            # nothing is left to read: the session is over
    SESSION_UNKNOWN = 4          # these are refused
    SESSION_WRONG_EPOCH = 5
    SESSION_MIXED_NAMES = 6
    SESSION_NO_MEMORY = 7

cdef enum:
    NO_SESSION_ID = 0
    INITIAL_EPOCH = 0            # of a request that wants a new session
    FINAL_EPOCH = -1             # of a request outside any; with a session's id it closes that session

# Turn a request into what is to be read. With SESSION_NEW and SESSION_NEXT, *out is a pin, and *epoch what the session
# says until its next request comes.
cdef SessionOutcome sessions_begin(
    SessionTable* table, int32_t session_id, int32_t session_epoch, const Wanted* asked, int64_t asked_count,
    const PartitionName* forgotten, int64_t forgotten_count, bint by_id, int64_t now_ms,
    Session** out, int32_t* epoch) noexcept nogil
cdef void session_release(Session* session) noexcept nogil
# Take the table's lock to look at a session's line or change it. False, without the lock: its next request has come
# meanwhile, or it is over.
cdef bint session_hold(Session* session, int32_t epoch) noexcept nogil
cdef void session_let_go(Session* session) noexcept nogil

# Held: put a partition to the end of the line.
cdef void session_put_last(Session* session, SessionPart* part) noexcept nogil


# Held: whether an answer must name the partition; the client then knows it. After an error the high watermark is
# forgotten, so that recovery is told too.
cdef inline bint session_must_tell(
        SessionPart* part, bint has_error, bint has_news, int64_t high_watermark,
        int64_t log_start_offset) noexcept nogil:
    cdef bint changed = (
        has_error or has_news or part.told_high_watermark != high_watermark
        or part.told_log_start_offset != log_start_offset)
    part.told_high_watermark = -1 if has_error else high_watermark
    part.told_log_start_offset = log_start_offset
    return changed


cdef class SessionCache:
    cdef SessionTable table
    cdef Session* _hold(self, int32_t session_id, int32_t epoch) noexcept
