# The broker's table of fetch sessions (KIP-227): what clients are fetching, kept so that they need not say it again.
# One table under one lock, for all reactors; nothing here reads a log.
from libc.stdint cimport int32_t, int64_t, uint64_t

from plog._native.locks cimport pthread_mutex_t
from plog._native.partition_names cimport PartitionName, Wanted
from plog._native.session_parts cimport Session
from plog._native.siphash cimport SipKey

ctypedef struct SessionTable:
    pthread_mutex_t lock
    int64_t slots
    int64_t count
    int64_t most_bytes
    int64_t bytes                # of all sessions in it
    SipKey name_key              # of the buckets of partitions: no client sees it, or a number drawn from it
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


cdef class SessionCache:
    cdef SessionTable table
    cdef Session* _hold(self, int32_t session_id, int32_t epoch) noexcept
