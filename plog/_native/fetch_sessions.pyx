"""Fetch sessions (KIP-227): one table for all reactors.

Owns the rules of epochs, of room and of eviction. Never looks at a log, nor at what a partition's name
means. `_reference.fetch_sessions` is the readable twin, also of `session_parts`.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

import os
import random

from plog._native.locks cimport (
    add, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock)
from plog._native.part_list cimport MOST_PARTS as MOST_SESSION_PARTS
from plog._native.served cimport LONGEST_TOPIC as LONGEST_TOPIC_BYTES, TOPIC_ID_BYTES
from plog._native.session_parts cimport (
    SESSION_PART_BYTES, SessionPart, session_forget, session_let_go, session_must_name, session_new,
    session_place_of, session_put_last, session_release, session_take_in)
from plog._native.siphash cimport sip_key, siphash_of

cdef enum:
    FEWEST_BUCKETS = 8
    # A full table gives up a session unused for longer; else one that is older than this and smaller than the
    # session that wants its place, so that large fetches gain the most by the table.
    EVICT_AFTER_MS_ = 120000
    # What all sessions may come to: clients list as many partitions as they like.
    MOST_BYTES_ = 256 * 1024 * 1024

cdef int64_t TOO_MANY = 1 << 60  # bytes: more than any room

NONE = SESSION_NONE
NEW = SESSION_NEW
NEXT = SESSION_NEXT
ENDED = SESSION_ENDED
UNKNOWN = SESSION_UNKNOWN
WRONG_EPOCH = SESSION_WRONG_EPOCH
MIXED_NAMES = SESSION_MIXED_NAMES
EVICT_AFTER_MS = EVICT_AFTER_MS_
PART_BYTES = SESSION_PART_BYTES
MOST_BYTES = MOST_BYTES_
LONGEST_TOPIC = LONGEST_TOPIC_BYTES
MOST_PARTS = MOST_SESSION_PARTS


# --- the table; all under `lock` ------------------------------------------------------------------

cdef int table_open(SessionTable* table, int64_t slots, int64_t most_bytes) noexcept nogil:
    table.slots = slots
    table.most_bytes = most_bytes
    table.bucket_count = FEWEST_BUCKETS
    while table.bucket_count < min(slots, <int64_t>(1 << 20)):
        table.bucket_count *= 2
    table.buckets = <Session**>calloc(table.bucket_count, sizeof(Session*))
    if table.buckets == NULL:
        return -ENOMEM
    table.by_use.less_recent = table.by_use.more_recent = &table.by_use
    pthread_mutex_init(&table.lock, NULL)
    return 0


cdef void table_release(SessionTable* table) noexcept nogil:
    if table.buckets == NULL:
        return
    while table.by_use.more_recent != &table.by_use:
        give_up(table, table.by_use.more_recent)
    free(table.buckets)
    table.buckets = NULL
    pthread_mutex_destroy(&table.lock)


cdef Session** place_by_number(SessionTable* table, int32_t session_id) noexcept nogil:
    cdef Session** at = &table.buckets[session_id & (table.bucket_count - 1)]
    while at[0] != NULL and at[0].id != session_id:
        at = &at[0].next_in_bucket
    return at


cdef void note_use(SessionTable* table, Session* session, int64_t now_ms) noexcept nogil:
    """Last in the order of use; it may stand in it already."""
    if session.less_recent != NULL:
        session.less_recent.more_recent = session.more_recent
        session.more_recent.less_recent = session.less_recent
    session.less_recent = table.by_use.less_recent
    session.more_recent = &table.by_use
    session.less_recent.more_recent = session
    table.by_use.less_recent = session
    session.used_ms = now_ms


cdef void give_up(SessionTable* table, Session* session) noexcept nogil:
    place_by_number(table, session.id)[0] = session.next_in_bucket
    session.less_recent.more_recent = session.more_recent
    session.more_recent.less_recent = session.less_recent
    session.epoch = 0  # who holds a pin finds it over
    table.count -= 1
    table.bytes -= session.bytes
    session_release(session)


cdef inline bint is_unused(const Session* session, int64_t now_ms) noexcept nogil:
    return now_ms - session.used_ms > EVICT_AFTER_MS_


cdef inline bint is_worth_less(const Session* session, int64_t size, int64_t now_ms) noexcept nogil:
    return now_ms - session.created_ms > EVICT_AFTER_MS_ and session.count < size


cdef bint has_room(const SessionTable* table, int64_t count, int64_t bytes) noexcept nogil:
    return table.count + count <= table.slots and table.bytes + bytes <= table.most_bytes


cdef bint can_make_room(SessionTable* table, int64_t size, int64_t bytes, int64_t now_ms) noexcept nogil:
    """Whether there is room for a session once all have gone that give way to it."""
    cdef Session* session = table.by_use.more_recent
    cdef bint are_unused = True  # they come first in the order of use
    cdef int64_t gone = 0
    cdef int64_t gone_bytes = 0
    while session != &table.by_use and not has_room(table, 1 - gone, bytes - gone_bytes):
        are_unused = are_unused and is_unused(session, now_ms)
        if are_unused or is_worth_less(session, size, now_ms):
            gone += 1
            gone_bytes += session.bytes
        session = session.more_recent
    return has_room(table, 1 - gone, bytes - gone_bytes)


cdef Session* least_worth(SessionTable* table, int64_t size, int64_t now_ms) noexcept nogil:
    """The session that gives way to one of `size` partitions; NULL: each is worth more."""
    cdef Session* session = table.by_use.more_recent
    cdef Session* found = NULL
    if session != &table.by_use and is_unused(session, now_ms):
        return session
    while session != &table.by_use:
        if is_worth_less(session, size if found == NULL else found.count, now_ms):
            found = session
        session = session.more_recent
    return found


cdef int32_t draw_id(SessionTable* table) noexcept nogil:
    """One from 1 to 2^31 - 1 that is free: a client that knew it could end another's session."""
    cdef int32_t drawn = NO_SESSION_ID
    while drawn == NO_SESSION_ID or place_by_number(table, drawn)[0] != NULL:
        table.ids_drawn += 1
        drawn = <int32_t>(siphash_of(
            &table.id_key, <const uint8_t*>&table.ids_drawn, sizeof(table.ids_drawn)) & INT32_MAX)
    return drawn


# --- a request ------------------------------------------------------------------------------------

cdef int64_t bytes_of(const Wanted* asked, int64_t asked_count) noexcept nogil:
    """Too many, if one has a name that no topic has: nothing would come of remembering it."""
    cdef int64_t bytes = 0
    cdef int64_t number
    for number in range(asked_count):
        if asked[number].name.topic_size > LONGEST_TOPIC_BYTES:
            return TOO_MANY
        bytes += SESSION_PART_BYTES + asked[number].name.topic_size
    return bytes


cdef int64_t bytes_unknown(Session* session, const Wanted* asked, int64_t asked_count) noexcept nogil:
    """What the partitions count that the session does not have; of one that is named twice, twice."""
    cdef int64_t bytes = 0
    cdef int64_t number
    for number in range(asked_count):
        if session_place_of(session, &asked[number].name)[0] == NULL:
            bytes += SESSION_PART_BYTES + asked[number].name.topic_size
    return bytes


cdef SessionOutcome make_session(
        SessionTable* table, const Wanted* asked, int64_t asked_count, bint by_id, int64_t now_ms,
        Session** out) noexcept nogil:
    """Without the lock, which the copying of many names would keep for long: a session of no table yet."""
    cdef Session* made
    cdef int64_t number
    if bytes_of(asked, asked_count) > table.most_bytes:
        return SESSION_NONE
    made = session_new(&table.lock, &table.name_key, by_id, now_ms)
    if made == NULL:
        return SESSION_NO_MEMORY
    for number in range(asked_count):
        if not session_take_in(made, &asked[number]):
            session_release(made)
            return SESSION_NO_MEMORY
    out[0] = made
    return SESSION_NEW


cdef bint open_session(SessionTable* table, Session* fresh, int64_t now_ms) noexcept nogil:
    """False: there is no room for it, and nobody has given way."""
    if not can_make_room(table, fresh.count, fresh.bytes, now_ms):
        return False
    while not has_room(table, 1, fresh.bytes):
        give_up(table, least_worth(table, fresh.count, now_ms))
    fresh.id = draw_id(table)
    place_by_number(table, fresh.id)[0] = fresh
    note_use(table, fresh, now_ms)
    table.count += 1
    table.bytes += fresh.bytes
    return True


cdef SessionOutcome next_of_session(
        SessionTable* table, Session* session, int32_t session_epoch, const Wanted* asked, int64_t asked_count,
        int64_t asked_bytes, const PartitionName* forgotten, int64_t forgotten_count, bint by_id,
        int64_t now_ms) noexcept nogil:
    cdef int64_t number
    cdef int64_t before
    cdef int64_t unknown_bytes
    if session == NULL:
        return SESSION_UNKNOWN
    if session.epoch != session_epoch:
        return SESSION_WRONG_EPOCH
    if session.by_id != by_id:
        return SESSION_MIXED_NAMES
    before = session.bytes
    for number in range(forgotten_count):
        session_forget(session, &forgotten[number])
    table.bytes += session.bytes - before
    # Before anything is copied; which partitions are new is asked only if not all of them have room.
    if table.bytes + asked_bytes > table.most_bytes:
        unknown_bytes = TOO_MANY if asked_bytes == TOO_MANY else bytes_unknown(session, asked, asked_count)
        if unknown_bytes > 0 and table.bytes + unknown_bytes > table.most_bytes:
            give_up(table, session)  # its client begins anew, with a session if there is room for one
            return SESSION_UNKNOWN
    before = session.bytes
    for number in range(asked_count):
        if not session_take_in(session, &asked[number]):
            table.bytes += session.bytes - before
            give_up(table, session)  # it may have forgotten what others of its epoch still read
            return SESSION_NO_MEMORY
    for number in range(forgotten_count if asked_count > 0 else 0):
        session_forget(session, &forgotten[number])  # of those that are asked for as well
    table.bytes += session.bytes - before
    if session.count == 0:
        give_up(table, session)
        return SESSION_ENDED
    if session.count > MOST_SESSION_PARTS:
        give_up(table, session)
        return SESSION_UNKNOWN
    session.epoch = 1 if session.epoch == INT32_MAX else session.epoch + 1
    note_use(table, session, now_ms)
    return SESSION_NEXT


cdef SessionOutcome sessions_begin(
        SessionTable* table, int32_t session_id, int32_t session_epoch, const Wanted* asked, int64_t asked_count,
        const PartitionName* forgotten, int64_t forgotten_count, bint by_id, int64_t now_ms,
        Session** out, int32_t* epoch) noexcept nogil:
    cdef SessionOutcome outcome = SESSION_NONE
    cdef Session* session
    cdef Session* fresh = NULL
    cdef int64_t asked_bytes = bytes_of(asked, asked_count)
    out[0] = NULL
    if session_epoch == INITIAL_EPOCH and asked_count > 0:
        outcome = make_session(table, asked, asked_count, by_id, now_ms, &fresh)
    pthread_mutex_lock(&table.lock)
    session = place_by_number(table, session_id)[0]
    if session_epoch == INITIAL_EPOCH or session_epoch == FINAL_EPOCH:
        if session != NULL:
            give_up(table, session)
        session = fresh
        if fresh != NULL and not open_session(table, fresh, now_ms):
            outcome = SESSION_NONE
    else:
        outcome = next_of_session(
            table, session, session_epoch, asked, asked_count, asked_bytes, forgotten, forgotten_count, by_id, now_ms)
    if outcome == SESSION_NEW or outcome == SESSION_NEXT:
        add(&session.references, 1)
        out[0] = session
        epoch[0] = session.epoch
    pthread_mutex_unlock(&table.lock)
    if outcome == SESSION_NONE:
        session_release(fresh)
    return outcome


# --- for Python, where tests compare it with its twin ---------------------------------------------

cdef int name_of(tuple source, PartitionName* out) except -1:
    """Point into the objects of (topic, topic id, index, ...), which must outlive it."""
    cdef bytes topic = source[0]
    cdef bytes topic_id = source[1]
    if len(topic_id) != TOPIC_ID_BYTES:
        raise ValueError(f"a topic id of {len(topic_id)} bytes")
    out.topic = topic
    out.topic_size = <int32_t>len(topic)
    out.topic_id = topic_id
    out.index = source[2]
    return 0


cdef int wanted_of(tuple source, Wanted* out) except -1:
    name_of(source, &out.name)
    out.offset = source[3]
    out.max_bytes = source[4]
    out.leader_epoch = source[5]
    out.last_epoch = source[6]
    out.log_start_offset = source[7]
    return 0


cdef list parts_of(Session* session):
    """Held: (topic, topic id, index, offset, max bytes, leader epoch, last epoch, start), in the line's order."""
    cdef SessionPart* part = session.line.next
    cdef list found = []
    while part != &session.line:
        found.append((
            <bytes>part.wanted.name.topic[:part.wanted.name.topic_size],
            <bytes>part.wanted.name.topic_id[:TOPIC_ID_BYTES], part.wanted.name.index, part.wanted.offset,
            part.wanted.max_bytes, part.wanted.leader_epoch, part.wanted.last_epoch, part.wanted.log_start_offset))
        part = part.next
    return found


cdef class SessionCache:
    def __cinit__(self):
        self.table.buckets = NULL

    def __init__(self, int64_t slots, *, int64_t most_bytes=MOST_BYTES_, seed=None):
        if self.table.buckets != NULL:
            raise RuntimeError("a SessionCache is initialised once")
        if table_open(&self.table, slots, most_bytes) < 0:
            raise MemoryError
        self.table.name_key = sip_key(os.urandom(16))
        self.table.id_key = sip_key(os.urandom(16) if seed is None else random.Random(seed).randbytes(16))

    def __dealloc__(self):
        table_release(&self.table)

    def __len__(self):
        return self.table.count

    def begin(
        self, int32_t session_id, int32_t session_epoch, list asked, list forgotten, *, bint by_id, int64_t now_ms,
    ):
        cdef Wanted* wanted = <Wanted*>calloc(len(asked) + 1, sizeof(Wanted))
        cdef PartitionName* names = <PartitionName*>calloc(len(forgotten) + 1, sizeof(PartitionName))
        cdef Session* session = NULL
        cdef SessionOutcome outcome
        cdef int32_t epoch = 0
        cdef Py_ssize_t number, asked_count, forgotten_count
        cdef int32_t found_id = NO_SESSION_ID
        try:
            if wanted == NULL or names == NULL:
                raise MemoryError
            for number in range(len(asked)):
                wanted_of(asked[number], &wanted[number])
            for number in range(len(forgotten)):
                name_of(forgotten[number], &names[number])
            asked_count, forgotten_count = len(asked), len(forgotten)
            with nogil:
                outcome = sessions_begin(
                    &self.table, session_id, session_epoch, wanted, asked_count, names, forgotten_count, by_id, now_ms,
                    &session, &epoch)
        finally:
            free(wanted)
            free(names)
        if outcome == SESSION_NO_MEMORY:
            raise MemoryError
        if session != NULL:
            found_id = session.id
            session_release(session)
        return outcome, found_id, epoch

    def partitions(self, int32_t session_id, int32_t epoch):
        cdef Session* session = self._hold(session_id, epoch)
        if session == NULL:
            return None
        try:
            return parts_of(session)
        finally:
            session_let_go(session)

    def tell(self, int32_t session_id, int32_t epoch, list facts):
        cdef Session* session = self._hold(session_id, epoch)
        if session == NULL:
            return None
        try:
            return [tell_one(session, fact) for fact in facts]
        finally:
            session_let_go(session)

    cdef Session* _hold(self, int32_t session_id, int32_t epoch) noexcept:
        """The session, with the table's lock; NULL, without it: it is over, or further on.

        The holder makes objects, so no thread with the interpreter lock may wait here.
        """
        cdef Session* session
        with nogil:
            pthread_mutex_lock(&self.table.lock)
        session = place_by_number(&self.table, session_id)[0]
        if session != NULL and session.epoch == epoch:
            return session
        pthread_mutex_unlock(&self.table.lock)
        return NULL


cdef bint tell_one(Session* session, tuple fact) except -1:
    cdef PartitionName name
    cdef SessionPart* part
    cdef bint is_named
    name_of(fact, &name)
    part = session_place_of(session, &name)[0]
    if part == NULL:
        return False
    is_named = session_must_name(part, fact[3], fact[4] or fact[5], fact[6], fact[7])
    if fact[4]:
        session_put_last(session, part)
    return is_named
