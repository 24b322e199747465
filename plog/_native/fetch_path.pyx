"""Fetch: which partitions are ordinary, their reads, and the budget of a response (KIP-74).

Owns the rules for an ordinary partition; Python reads every other one, or refuses it. Bytes go to partitions in their
order: Python gets the rest after those before its first, and those behind get the rest after Python. The log itself is
read by `log_read`, sessions belong to `fetch_sessions`, and what followers have to `followers`.
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free

from plog._native.aborted_list cimport AbortedList, AbortedWalk, aborted_count, aborted_next, aborted_release
from plog._native.callout_reasons cimport REASON_NONE, REASON_PARTITION, REASON_READ, REASON_REQUEST, Reason
from plog._native.fetch_call cimport (
    CONSUMER, FETCH_BESIDE, FETCH_IDS_SINCE, FETCH_MALFORMED, FETCH_NO_MEMORY, FETCH_READ, FETCH_ZSTD_SINCE, FetchPart,
    fetch_is_followers, fetch_part)
from plog._native.fetch_parts cimport fetch_add_part, fetch_find, fetch_keep_names
from plog._native.fetch_request cimport fetch_read_request
from plog._native.fetch_sessions cimport (
    FINAL_EPOCH, NO_SESSION_ID, SESSION_MIXED_NAMES, SESSION_NEW, SESSION_NEXT, SESSION_NO_MEMORY, SESSION_NONE,
    SESSION_UNKNOWN, SESSION_WRONG_EPOCH, SessionOutcome, sessions_begin)
from plog._native.files cimport calls
from plog._native.log_flush cimport commit_ask
from plog._native.locks cimport load, load_ordered
from plog._native.log_read cimport READ_FAILED, READ_FOUND, READ_NOTHING, ReadResult, partition_read, read_end_offset
from plog._native.part_list cimport parts_release
from plog._native.partition cimport (
    FOLLOWER_MAY_JOIN, FOLLOWER_UNKNOWN, FollowerStatus, Partition, partition_has_aborted, partition_note_follower,
    partition_pin_aborted)
from plog._native.partition_names cimport PartitionName, Wanted, name_each_once
from plog._native.request_stages cimport FOUND_UNUSUAL, WAS_READ, part_advance
from plog._native.response_fields cimport NO_EPOCH, NO_NODE, NO_OFFSET, texts_release
from plog._native.segment_files cimport segment_read_through, segment_release
from plog._native.served cimport served_release, served_retain
from plog._native.session_parts cimport (
    SessionPart, session_hold, session_let_go, session_must_name, session_put_last, session_release)

cdef enum:
    # An int32 states the size of an answer, with all that stands around its records.
    LARGEST_ANSWER_BYTES = 0x7FFFFFFF - 64 * 1024 * 1024
    PAGE_BYTES = 4096
    MOST_READS = 3  # of one partition, while its list of aborted transactions changes beneath them
    MOST_ABORTED_NAMED = 16384  # in one answer: 270 KB of its memory

# Kafka's error codes of sessions.
cdef enum:
    ERROR_SESSION_UNKNOWN = 70
    ERROR_SESSION_EPOCH = 71
    ERROR_SESSION_NAMES = 106


# --- memory ---------------------------------------------------------------------------------------

cdef void unpin(FetchPart* part) noexcept nogil:
    if part.read.segment != NULL:
        segment_release(part.read.segment)
        part.read.segment = NULL
    # A read that ends early leaves the partitions behind like this: nothing was found there.
    part.read.size = 0
    forget_aborted(part)


cdef void forget_aborted(FetchPart* part) noexcept nogil:
    aborted_release(<AbortedList*>part.aborted.among)
    free(part.aborted_found)
    part.aborted.among = NULL
    part.aborted_found = NULL
    part.aborted_count = 0


cdef void fetch_forget_outcome(FetchPart* part) noexcept nogil:
    """What an earlier look at it came to."""
    unpin(part)
    part.is_pythons = part.records_are_null = part.lists_aborted = False
    part.error = 0
    part.diverging_epoch = part.hint_epoch = NO_EPOCH
    part.diverging_end = NO_OFFSET
    part.leader_id = NO_NODE


cdef void fetch_unpin(FetchCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        unpin(fetch_part(call, number))
    call.aborted_bytes = 0


cdef void fetch_clear(FetchCall* call) noexcept nogil:
    cdef int64_t number
    fetch_unpin(call)
    for number in range(call.parts.count):
        served_release(fetch_part(call, number).served)
    session_release(call.session)
    call.session = NULL
    call.names_changes_only = False
    call.queue = NULL
    call.error = 0
    call.reason = REASON_NONE
    free(call.names)
    texts_release(&call.texts)
    call.names = NULL
    call.names_bytes = 0
    call.asked.count = call.forgotten.count = call.parts.count = 0


cdef void fetch_release(FetchCall* call) noexcept nogil:
    fetch_clear(call)
    parts_release(&call.asked)
    parts_release(&call.forgotten)
    parts_release(&call.parts)


# --- the partitions to read ------------------------------------------------------------------------

cdef bint take_asked(ServedTable* table, SessionTable* sessions, FetchCall* call) noexcept nogil:
    """Outside sessions: those in the request. If it names one twice, the last counts. False: no memory."""
    cdef Wanted* asked = <Wanted*>call.asked.items
    cdef int64_t number
    if not name_each_once(&sessions.name_key, asked, &call.asked.count):
        return False
    for number in range(call.asked.count):
        if fetch_add_part(call, fetch_find(table, call, &asked[number].name), &asked[number]) == NULL:
            return False
    return fetch_keep_names(call)


cdef bint take_remembered(ServedTable* table, FetchCall* call) noexcept nogil:
    """False: no memory."""
    cdef SessionPart* remembered
    cdef FetchPart* part = NULL
    cdef bint is_whole
    cdef int64_t version
    if not session_hold(call.session, call.session_until):
        call.error = ERROR_SESSION_EPOCH  # its next request has come meanwhile
        return True
    version = load(&table.version)
    remembered = call.session.line.next
    while remembered != &call.session.line:
        if remembered.served_at != version:
            served_release(remembered.served)
            remembered.served = fetch_find(table, call, &remembered.wanted.name)
            remembered.served_at = version
        if remembered.served != NULL:
            served_retain(remembered.served)
        part = fetch_add_part(call, remembered.served, &remembered.wanted)
        if part == NULL:
            break
        part.remembered = remembered
        part.known_high_watermark = remembered.known_high_watermark
        remembered = remembered.next
    is_whole = remembered == &call.session.line and fetch_keep_names(call)
    session_let_go(call.session)
    return is_whole


cdef bint take_parts(ServedTable* table, SessionTable* sessions, FetchCall* call) noexcept nogil:
    """Count the request in its session, and fill `parts`; or set the error of the session. False: no memory."""
    cdef SessionOutcome outcome
    if call.session_id == NO_SESSION_ID and call.session_epoch == FINAL_EPOCH:
        return take_asked(table, sessions, call)
    outcome = sessions_begin(
        sessions, call.session_id, call.session_epoch, <const Wanted*>call.asked.items, call.asked.count,
        <const PartitionName*>call.forgotten.items, call.forgotten.count, call.head.version >= FETCH_IDS_SINCE,
        calls().monotonic_us() // 1000, &call.session, &call.session_until)
    call.names_changes_only = outcome == SESSION_NEXT
    if outcome == SESSION_NEW or outcome == SESSION_NEXT:
        return take_remembered(table, call)
    if outcome == SESSION_NONE:
        return take_asked(table, sessions, call)
    if outcome == SESSION_UNKNOWN:
        call.error = ERROR_SESSION_UNKNOWN
    elif outcome == SESSION_WRONG_EPOCH:
        call.error = ERROR_SESSION_EPOCH
    elif outcome == SESSION_MIXED_NAMES:
        call.error = ERROR_SESSION_NAMES
    return outcome != SESSION_NO_MEMORY


# --- reading the log ------------------------------------------------------------------------------

cdef bint choose_aborted(FetchPart* part, int64_t upper) noexcept nogil:
    """Which of the pinned list go with what was read below `upper`. False: Python looks further back."""
    cdef AbortedWalk walk
    cdef int64_t end
    if part.aborted.among == NULL:
        return True
    if part.offset < part.aborted.among.known_from:
        return False
    part.aborted.fetch_offset = part.offset
    part.aborted.upper_offset = upper
    part.aborted.number = 0
    walk = part.aborted
    # For most readers all that was aborted lies behind them: where their bytes end need not be looked up.
    if aborted_next(&walk) != NULL:
        if read_end_offset(&part.read, &end) < 0:
            return False
        part.aborted.upper_offset = min(end, upper)
        part.aborted_count = aborted_count(part.aborted)
    if part.aborted_count == 0:
        forget_aborted(part)
    return True


cdef bint read_committed(FetchPart* part, int64_t max_bytes, bint whole_first_batch, bint may_wait) noexcept nogil:
    """Read below the last stable offset, and find what was aborted there. False: Python does."""
    cdef Partition* partition = part.served.partition
    cdef int64_t upper
    cdef int again
    for again in range(MOST_READS):
        upper = load(&partition.last_stable_offset)
        # Only now: with the last stable offset comes what was aborted below it. And before the read, which may find
        # segments that retention takes away meanwhile, and their transactions with them.
        part.aborted.among = partition_pin_aborted(partition)
        partition_read(partition, part.offset, max_bytes, upper, whole_first_batch, may_wait, &part.read)
        if part.read.status != READ_FOUND:
            forget_aborted(part)
            return True
        # Or compaction has taken markers away meanwhile, without which what their producers committed later would be
        # taken for aborted.
        if partition_has_aborted(partition, part.aborted.among):
            return choose_aborted(part, upper)
        unpin(part)
    return False


cdef inline int64_t shown_to_followers(const FetchPart* part) noexcept nogil:
    """The high watermark of an answer: `plog.cluster.replication.isr` has the rule, and its reason."""
    cdef const Partition* partition = part.served.partition
    cdef int64_t high_watermark = load(&partition.high_watermark)
    return min(high_watermark, load(&partition.durable_end)) if part.served.flush_before_ack else high_watermark


cdef bint read_below(
        const FetchCall* call, FetchPart* part, int64_t max_bytes, bint whole_first_batch, bint may_wait) noexcept nogil:
    """Read what its reader may see. False: Python reads it."""
    cdef Partition* partition = part.served.partition
    if fetch_is_followers(call):
        partition_read(
            partition, part.offset, max_bytes, load(&partition.log_end_offset), whole_first_batch, may_wait, &part.read)
        part.read.high_watermark = shown_to_followers(part)
        return True
    if call.read_committed:
        return read_committed(part, max_bytes, whole_first_batch, may_wait)
    partition_read(
        partition, part.offset, max_bytes, load(&partition.high_watermark), whole_first_batch, may_wait, &part.read)
    return True


cdef bint read_part(
        const FetchCall* call, FetchPart* part, int64_t budget, bint whole_first_batch, bint may_wait) noexcept nogil:
    """False: Python reads it."""
    cdef Partition* partition = part.served.partition
    cdef int64_t max_bytes = min(<int64_t>max(part.max_bytes, 0), budget)
    cdef int64_t truncations = load(&partition.truncations)
    part.lists_aborted = call.read_committed and not fetch_is_followers(call)
    if not read_below(call, part, max_bytes, whole_first_batch, may_wait):
        return False
    # Or the limit of the read, or its epoch, is one of before, and the log has been filled again past it.
    return load(&partition.truncations) == truncations and load(&partition.leader_epoch) == part.epoch_then


cdef Reason why_python(const FetchCall* call, const FetchPart* part) noexcept nogil:
    """Before it is read."""
    cdef Partition* partition
    cdef int64_t epoch
    if call.replica_id != CONSUMER and (not fetch_is_followers(call) or part.leader_epoch == NO_EPOCH):
        return REASON_REQUEST
    if part.served == NULL or part.served.produce_is_pythons and call.head.version < FETCH_ZSTD_SINCE:
        return REASON_PARTITION  # its codec may be one that this version does not have
    # A reader of the epoch that writes now cannot have parted from this log.
    if part.last_epoch != NO_EPOCH and part.last_epoch != part.epoch_then:
        return REASON_PARTITION
    partition = part.served.partition
    epoch = load(&partition.leader_epoch)
    if part.leader_epoch != NO_EPOCH and part.leader_epoch != epoch:
        return REASON_READ
    # It has another role by now, or is about to.
    if part.epoch_then != epoch or not load(&partition.writable):
        return REASON_READ
    return REASON_NONE


cdef void note_position(FetchCall* call, FetchPart* part) noexcept nogil:
    cdef Partition* partition = part.served.partition
    cdef FollowerStatus status
    if part.offset < load(&partition.log_start_offset) or part.offset > load(&partition.log_end_offset):
        return
    status = partition_note_follower(
        partition, part.leader_epoch, call.replica_id, call.replica_epoch, part.offset, part.log_start_offset,
        call.came_ms)
    part.is_noted = status != FOLLOWER_UNKNOWN
    part.may_join = status == FOLLOWER_MAY_JOIN
    # Committed records become durable here, too: answers to followers say no more (`shown_to_followers`).
    if part.is_noted and part.served.flush_before_ack and (
            load(&partition.high_watermark) > load(&partition.durable_end)):
        commit_ask(part.served.commits, partition)
    if part.remembered == NULL:  # no session says what the follower knows
        part.known_high_watermark = shown_to_followers(part)


cdef void note_positions(FetchCall* call) noexcept nogil:
    """Take over what a follower has, before anything is read: the responses have the high watermark that follows.

    Where logs may have parted, Python does so once it has found that they have not.
    """
    cdef int64_t now_us = calls().monotonic_us()
    cdef FetchPart* part
    cdef int64_t number
    # What counts is when the request came. A leader with a slow disk must not take its followers for late (KAFKA-8733).
    call.came_ms = calls().since_boot_ms() - (now_us - call.head.received_us) // 1000
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if why_python(call, part) == REASON_NONE:
            note_position(call, part)


cdef void leave_to_python(FetchCall* call, FetchPart* part, Reason why) noexcept nogil:
    unpin(part)
    part.is_pythons = True
    part_advance(call.progress, &part.stage, FOUND_UNUSUAL)
    if call.reason == REASON_NONE:
        call.reason = why


cdef FetchOutcome fetch_read(FetchCall* call, bint may_wait) noexcept nogil:
    cdef FetchPart* part
    cdef Reason why
    cdef int64_t budget = max(call.max_bytes, <int64_t>0)
    cdef int64_t found_bytes = 0
    cdef int64_t aborted = 0
    cdef bint is_followers = fetch_is_followers(call)
    cdef int64_t number
    call.reason = REASON_NONE
    texts_release(&call.texts)
    call.aborted_bytes = 0
    for number in range(call.parts.count):
        fetch_forget_outcome(fetch_part(call, number))
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        # Before anything is looked at: what changes later is seen to have changed.
        if part.served != NULL:
            part.changes = load(&part.served.partition.changes)
        why = why_python(call, part)
        if why == REASON_NONE and is_followers and not part.is_noted:
            why = REASON_PARTITION  # it is no follower of this partition, or asks for what the log does not have
        # The first bytes of an answer are never refused for their size, or one large batch would
        # stop its consumer for ever (KIP-74).
        if why == REASON_NONE and not read_part(call, part, budget, found_bytes == 0, may_wait):
            why = REASON_READ
        if why == REASON_NONE and part.read.status == READ_FAILED and part.read.error == EAGAIN:
            call.queue = part.served.disk
            return FETCH_BESIDE
        if why == REASON_NONE and (
                part.read.status != READ_FOUND and part.read.status != READ_NOTHING
                or aborted + part.aborted_count > MOST_ABORTED_NAMED):
            why = REASON_READ
        if why != REASON_NONE:
            leave_to_python(call, part, why)
            continue
        if part.read.status == READ_FOUND:
            found_bytes += part.read.size
            budget = max(budget - part.read.size, <int64_t>0)
            aborted += part.aborted_count
        part_advance(call.progress, &part.stage, WAS_READ)
    return FETCH_READ


cdef int64_t fetch_budget(const FetchCall* call, bint* is_first) noexcept nogil:
    """What those before Python's first have left for it, and whether they have found nothing."""
    cdef int64_t found_bytes = 0
    cdef int64_t number = 0
    while number < call.parts.count and not fetch_part(call, number).is_pythons:
        found_bytes += fetch_part(call, number).read.size
        number += 1
    is_first[0] = found_bytes == 0
    return max(max(call.max_bytes, <int64_t>0) - found_bytes, <int64_t>0)


cdef void read_less(FetchCall* call, FetchPart* part, int64_t budget) noexcept nogil:
    """What fits, or nothing: without a wait for the disk, and without Python."""
    cdef ReadResult before = part.read
    unpin(part)
    if budget > 0 and read_part(call, part, budget, False, False) and part.read.status == READ_FOUND:
        return
    unpin(part)
    part.read = before
    part.read.status = READ_NOTHING
    part.read.segment = NULL
    part.read.size = 0


cdef void fetch_fit(FetchCall* call) noexcept nogil:
    cdef FetchPart* part
    cdef int64_t budget = max(call.max_bytes, <int64_t>0)
    cdef int64_t found_bytes = 0
    cdef bint is_behind = False
    cdef int64_t number
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if part.is_pythons:
            is_behind = True
        elif is_behind and found_bytes > 0 and part.read.size > budget - found_bytes:
            read_less(call, part, budget - found_bytes)
        found_bytes += part.read.size


cdef bint fetch_is_enough(const FetchCall* call) noexcept nogil:
    cdef const FetchPart* part
    cdef bint is_followers = fetch_is_followers(call)
    cdef int64_t found_bytes = 0
    cdef int64_t number
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        # A follower may lead next: what it does not know to be committed it would not serve. At a high rate the
        # records of the next round bring the high watermark, so that this costs requests only where they are few.
        if is_followers and part.read.high_watermark > part.known_high_watermark:
            return True
        # What the client must hear now; and nothing wakes a request for a partition that is not served.
        if part.error != 0 or part.diverging_epoch != NO_EPOCH or not part.wakes:
            return True
        found_bytes += part.read.size
    return call.parts.count == 0 or found_bytes >= call.min_bytes or call.max_wait_ms <= 0


cdef FetchOutcome fetch_serve(
        ServedTable* table, SessionTable* sessions, FetchCall* call, const uint8_t* p,
        const uint8_t* end) noexcept nogil:
    cdef int64_t largest_bytes = min(load(&table.fetch_max_bytes), <int64_t>LARGEST_ANSWER_BYTES)
    cdef FetchOutcome outcome = FETCH_READ
    if not fetch_read_request(call, largest_bytes, p, end):
        return FETCH_MALFORMED
    if not take_parts(table, sessions, call):
        return FETCH_NO_MEMORY
    # Their names lie where the request does, which is about to move.
    call.asked.count = call.forgotten.count = 0
    if call.error == 0:
        if fetch_is_followers(call):
            note_positions(call)
        outcome = fetch_read(call, False)
        find_cold(call)
    return FETCH_BESIDE if call.queue != NULL else outcome


cdef inline bint is_looked_at(const ReadResult* read) noexcept nogil:
    """Its only page is that of its first header, which has just been read."""
    return (read.position ^ (read.position + read.size - 1)) < PAGE_BYTES


cdef void find_cold(FetchCall* call) noexcept nogil:
    """Whether the disk must be asked for what was read."""
    cdef FetchPart* part
    cdef int64_t number
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if part.read.size == 0 or is_looked_at(&part.read):
            continue
        if not calls().is_resident(part.read.segment.log_fd, part.read.position, part.read.size):
            call.queue = part.served.disk
            return


cdef void fetch_read_slowly(FetchCall* call) noexcept nogil:
    cdef FetchPart* part
    cdef int64_t number
    fetch_read(call, True)
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if part.read.size > 0:
            segment_read_through(part.read.segment, part.read.position, part.read.size)


cdef bint fetch_is_stale(const FetchCall* call) noexcept nogil:
    cdef const FetchPart* part
    cdef int64_t number
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if load_ordered(&part.served.partition.changes) != part.changes:
            return True
    return False


# --- which partitions the response names ----------------------------------------------------------

cdef void fetch_settle(FetchCall* call) noexcept nogil:
    cdef FetchPart* part
    cdef bint has_records
    cdef bint changed
    cdef int64_t number
    if call.session == NULL or call.error != 0:
        return
    if not session_hold(call.session, call.session_until):
        call.error = ERROR_SESSION_EPOCH
        return
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        has_records = part.read.size > 0
        changed = session_must_name(
            part.remembered, part.error != 0, has_records or part.diverging_epoch != NO_EPOCH,
            part.read.high_watermark, part.read.log_start_offset)
        part.is_named = changed or not call.names_changes_only
        # Whoever got bytes goes to the end of the line, or the first partitions would take the whole
        # budget every time.
        if has_records:
            session_put_last(call.session, part.remembered)
    session_let_go(call.session)
