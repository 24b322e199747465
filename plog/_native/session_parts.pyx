"""A fetch session: the partitions that it remembers, in the order in which they are read.

Owns that order, and what a session's memory counts. Never looks at a log, nor at what a partition's name means.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from plog._native.locks cimport add, pthread_mutex_lock, pthread_mutex_unlock
from plog._native.partition_names cimport is_same_partition, partition_hash, topic_hash
from plog._native.served cimport LONGEST_TOPIC, TOPIC_ID_BYTES, served_release

cdef enum:
    FEWEST_BUCKETS = 8
    NOTHING_KNOWN = -1
    NOWHERE = -1                 # no version of the served table


# --- its partitions -------------------------------------------------------------------------------

cdef inline uint64_t hash_of(const Session* session, const PartitionName* name) noexcept nogil:
    return partition_hash(session.key, topic_hash(session.key, name), name.index)


cdef SessionPart** session_place_of(Session* session, const PartitionName* name) noexcept nogil:
    """Where the partition is linked, or where it would be."""
    cdef SessionPart** at = &session.buckets[hash_of(session, name) & (session.bucket_count - 1)]
    while at[0] != NULL and not is_same_partition(&at[0].wanted.name, name):
        at = &at[0].next_in_bucket
    return at


cdef SessionPart* part_new(const Wanted* wanted) noexcept nogil:
    cdef SessionPart* made = <SessionPart*>malloc(
        sizeof(SessionPart) + TOPIC_ID_BYTES + wanted.name.topic_size)
    cdef uint8_t* names
    if made == NULL:
        return NULL
    memset(made, 0, sizeof(SessionPart))
    names = <uint8_t*>(made + 1)
    memcpy(names, wanted.name.topic_id, TOPIC_ID_BYTES)
    memcpy(names + TOPIC_ID_BYTES, wanted.name.topic, wanted.name.topic_size)
    made.wanted = wanted[0]
    made.wanted.name.topic_id = names
    made.wanted.name.topic = names + TOPIC_ID_BYTES
    made.known_high_watermark = made.known_log_start_offset = NOTHING_KNOWN
    made.served_at = NOWHERE
    return made


cdef void part_free(SessionPart* part) noexcept nogil:
    served_release(part.served)
    free(part)


cdef void leave_line(SessionPart* part) noexcept nogil:
    part.previous.next = part.next
    part.next.previous = part.previous


cdef void join_line(Session* session, SessionPart* part) noexcept nogil:
    part.previous = session.line.previous
    part.next = &session.line
    part.previous.next = part
    session.line.previous = part


cdef void session_put_last(Session* session, SessionPart* part) noexcept nogil:
    leave_line(part)
    join_line(session, part)


cdef void grow_session(Session* session) noexcept nogil:
    """More buckets, if there is memory; else the chains grow longer."""
    cdef int64_t count = 2 * session.bucket_count
    cdef SessionPart** fresh = <SessionPart**>calloc(count, sizeof(SessionPart*))
    cdef SessionPart** at
    cdef SessionPart* part
    if fresh == NULL:
        return
    free(session.buckets)
    session.buckets = fresh
    session.bucket_count = count
    part = session.line.next
    while part != &session.line:
        at = &fresh[hash_of(session, &part.wanted.name) & (count - 1)]
        part.next_in_bucket = at[0]
        at[0] = part
        part = part.next


cdef bint session_take_in(Session* session, const Wanted* wanted) noexcept nogil:
    cdef SessionPart** at = session_place_of(session, &wanted.name)
    cdef SessionPart* part = at[0]
    if part != NULL:
        part.wanted.offset = wanted.offset
        part.wanted.max_bytes = wanted.max_bytes
        part.wanted.leader_epoch = wanted.leader_epoch
        part.wanted.last_epoch = wanted.last_epoch
        part.wanted.log_start_offset = wanted.log_start_offset
        return True
    part = part_new(wanted)
    if part == NULL:
        return False
    at[0] = part
    join_line(session, part)
    session.count += 1
    session.bytes += SESSION_PART_BYTES + wanted.name.topic_size
    if session.count > session.bucket_count:
        grow_session(session)
    return True


cdef void session_forget(Session* session, const PartitionName* name) noexcept nogil:
    cdef SessionPart** at
    cdef SessionPart* part
    if name.topic_size > LONGEST_TOPIC:  # no session has it, and the hash of each would take long
        return
    at = session_place_of(session, name)
    part = at[0]
    if part == NULL:
        return
    at[0] = part.next_in_bucket
    leave_line(part)
    session.count -= 1
    session.bytes -= SESSION_PART_BYTES + part.wanted.name.topic_size
    part_free(part)


# --- a session's life -----------------------------------------------------------------------------

cdef Session* session_new(
        pthread_mutex_t* lock, const SipKey* key, bint by_id, int64_t now_ms) noexcept nogil:
    cdef Session* made = <Session*>calloc(1, sizeof(Session))
    if made == NULL:
        return NULL
    made.bucket_count = FEWEST_BUCKETS
    made.buckets = <SessionPart**>calloc(made.bucket_count, sizeof(SessionPart*))
    if made.buckets == NULL:
        free(made)
        return NULL
    made.references = 1
    made.lock = lock
    made.key = key
    made.epoch = 1
    made.by_id = by_id
    made.created_ms = made.used_ms = now_ms
    made.line.previous = made.line.next = &made.line
    return made


cdef void session_release(Session* session) noexcept nogil:
    cdef SessionPart* part
    cdef SessionPart* after
    if session == NULL or add(&session.references, -1) > 0:
        return
    part = session.line.next
    while part != &session.line:
        after = part.next
        part_free(part)
        part = after
    free(session.buckets)
    free(session)


cdef bint session_hold(Session* session, int32_t epoch) noexcept nogil:
    pthread_mutex_lock(session.lock)
    if session.epoch == epoch:
        return True
    pthread_mutex_unlock(session.lock)
    return False


cdef void session_let_go(Session* session) noexcept nogil:
    pthread_mutex_unlock(session.lock)
