"""Fetch without Python: the ordinary request of a consumer, from its frame to what it came to.

Owns which partitions are ordinary, and the budget of an answer (KIP-74). Reading is
the partition's, what a session remembers the sessions'. Whatever is not ordinary,
and every error, is left to the Python handler: a reader that waits gives its frame
back for that. A request that has been counted in its session before it turned out
unusual is not counted again.
"""

from libc.errno cimport EAGAIN
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.aborted_list cimport AbortedList, AbortedWalk, aborted_count, aborted_next, aborted_release
from plog._native.fetch_call cimport (
    FETCH_ANSWERED, FETCH_BESIDE, FETCH_IDS_SINCE, FETCH_UNUSUAL_FORM, FETCH_UNUSUAL_PARTITION,
    FETCH_UNUSUAL_READ, FETCH_WAITS, FETCH_ZSTD_SINCE, FetchPart, fetch_part)
from plog._native.fetch_request cimport fetch_read_request
from plog._native.fetch_sessions cimport (
    FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION_ID, SESSION_ENDED, SESSION_NEW, SESSION_NEXT, SESSION_NONE,
    PartitionName, SessionOutcome, SessionPart, Wanted, session_hold, session_let_go, session_must_tell,
    session_put_last, session_release, sessions_begin)
from plog._native.files cimport calls
from plog._native.locks cimport load, load_ordered
from plog._native.log_read cimport READ_FAILED, READ_FOUND, READ_NOTHING, ReadResult, partition_read, read_end_offset
from plog._native.part_list cimport part_add, parts_release
from plog._native.partition cimport Partition, partition_has_aborted, partition_pin_aborted
from plog._native.request_stages cimport WAS_READ, part_advance, progress_add
from plog._native.segment_files cimport segment_read_through, segment_release
from plog._native.served cimport Served, served_find, served_find_by_id, served_release, served_retain

cdef enum:
    NO_EPOCH = -1
    # An int32 states the size of an answer, with all that stands around its records.
    LARGEST_ANSWER_BYTES = 0x7FFFFFFF - 64 * 1024 * 1024
    MOST_UNSORTED_PARTS = 1000
    PAGE_BYTES = 4096
    MOST_READS = 3  # of one partition, while its list of aborted transactions changes beneath them
    MOST_ABORTED_TOLD = 16384  # in one answer: 270 KB of its memory


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
    part.aborted.among = NULL
    part.aborted_count = 0


cdef void fetch_unpin(FetchCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        unpin(fetch_part(call, number))


cdef void fetch_clear(FetchCall* call) noexcept nogil:
    cdef int64_t number
    fetch_unpin(call)
    for number in range(call.parts.count):
        served_release(fetch_part(call, number).served)
    session_release(call.session)
    call.session = NULL
    call.tells_changes_only = False
    call.queue = NULL
    call.asked.count = call.forgotten.count = call.parts.count = 0


cdef void fetch_release(FetchCall* call) noexcept nogil:
    fetch_clear(call)
    parts_release(&call.asked)
    parts_release(&call.forgotten)
    parts_release(&call.parts)


# --- what is to be read ---------------------------------------------------------------------------

cdef Served* find_served(ServedTable* table, const PartitionName* name) noexcept nogil:
    if name.topic_size > 0:
        return served_find(table, name.topic, name.topic_size, name.index)
    return served_find_by_id(table, name.topic_id, name.index)


cdef FetchOutcome take_part(FetchCall* call, Served* served, const Wanted* wanted) noexcept nogil:
    """Read this too. The caller's pin goes along, whatever comes of it."""
    cdef FetchPart* part
    if served == NULL:
        return FETCH_UNUSUAL_PARTITION
    if served.produce_is_pythons and call.head.version < FETCH_ZSTD_SINCE:
        served_release(served)  # its codec may be one that this version does not have
        return FETCH_UNUSUAL_PARTITION
    part = <FetchPart*>part_add(&call.parts, sizeof(FetchPart))
    if part == NULL:
        served_release(served)
        return FETCH_UNUSUAL_FORM
    progress_add(call.progress, &part.stage, call.parts.count == 1)
    part.served = served
    part.offset = wanted.offset
    part.max_bytes = wanted.max_bytes
    part.leader_epoch = wanted.leader_epoch
    part.epoch_then = load(&served.partition.leader_epoch)
    part.told = True
    # A reader of the epoch that writes now cannot have parted from this log.
    if wanted.last_epoch > NO_EPOCH and wanted.last_epoch != part.epoch_then:
        return FETCH_UNUSUAL_PARTITION
    return FETCH_ANSWERED


cdef bint is_named_before(const FetchCall* call, int64_t until) noexcept nogil:
    """To be asked where partitions do not ascend within one topic; of very many, nobody looks."""
    cdef const Served* served = fetch_part(call, until).served
    cdef int64_t number
    if until > MOST_UNSORTED_PARTS:
        return True
    for number in range(until):
        if fetch_part(call, number).served == served:
            return True
    return False


cdef FetchOutcome take_asked(ServedTable* table, FetchCall* call) noexcept nogil:
    """Outside sessions: what is asked for, and nothing else."""
    cdef const Wanted* asked = <const Wanted*>call.asked.items
    cdef const Wanted* wanted
    cdef const uint8_t* first_topic = NULL  # of the frame's, where a topic begins
    cdef const uint8_t* topic
    cdef bint is_later_topic = False
    cdef int32_t before = -1
    cdef int64_t number
    cdef FetchOutcome outcome
    if call.asked.count == 0 or call.forgotten.count > 0:
        return FETCH_UNUSUAL_FORM
    for number in range(call.asked.count):
        wanted = &asked[number]
        outcome = take_part(call, find_served(table, &wanted.name), wanted)
        if outcome != FETCH_ANSWERED:
            return outcome
        topic = wanted.name.topic if wanted.name.topic_size > 0 else wanted.name.topic_id
        if topic != first_topic:
            is_later_topic = first_topic != NULL  # perhaps of one that was named before
            first_topic = topic
            before = -1
        # One that is named twice is answered once.
        if (wanted.name.index <= before or is_later_topic) and is_named_before(call, number):
            return FETCH_UNUSUAL_FORM
        before = max(before, wanted.name.index)
    return FETCH_ANSWERED


cdef FetchOutcome take_session(
        ServedTable* table, SessionTable* sessions, FetchCall* call) noexcept nogil:
    """What the session remembers, once this request is counted in it."""
    cdef const Wanted* asked = <const Wanted*>call.asked.items
    cdef Served* served
    cdef SessionOutcome outcome
    cdef int64_t number
    if call.session_epoch < INITIAL_EPOCH or call.session_epoch == INITIAL_EPOCH and (
            call.session_id != NO_SESSION_ID or call.asked.count == 0):
        return FETCH_UNUSUAL_FORM
    # Nothing of a request that is Python's from the start gets into a session here.
    for number in range(call.asked.count):
        served = find_served(table, &asked[number].name)
        if served == NULL:
            return FETCH_UNUSUAL_PARTITION
        served_release(served)
    outcome = sessions_begin(
        sessions, call.session_id, call.session_epoch, asked, call.asked.count,
        <const PartitionName*>call.forgotten.items, call.forgotten.count, call.head.version >= FETCH_IDS_SINCE,
        calls().monotonic_us() // 1000, &call.session, &call.session_until)
    if outcome == SESSION_NONE:
        return take_asked(table, call)
    if outcome == SESSION_ENDED:
        return FETCH_ANSWERED
    if outcome != SESSION_NEW and outcome != SESSION_NEXT:
        return FETCH_UNUSUAL_FORM
    call.tells_changes_only = outcome == SESSION_NEXT
    return take_remembered(table, call)


cdef FetchOutcome take_remembered(ServedTable* table, FetchCall* call) noexcept nogil:
    cdef SessionPart* remembered
    cdef FetchOutcome outcome = FETCH_ANSWERED
    cdef int64_t version
    if not session_hold(call.session, call.session_until):
        return FETCH_UNUSUAL_FORM
    version = load(&table.version)
    remembered = call.session.line.next
    while remembered != &call.session.line and outcome == FETCH_ANSWERED:
        if remembered.served == NULL or remembered.served_at != version:
            served_release(remembered.served)
            remembered.served = find_served(table, &remembered.wanted.name)
            remembered.served_at = version
        if remembered.served != NULL:
            served_retain(remembered.served)
        outcome = take_part(call, remembered.served, &remembered.wanted)
        if outcome == FETCH_ANSWERED:
            fetch_part(call, call.parts.count - 1).remembered = remembered
        remembered = remembered.next
    session_let_go(call.session)
    return outcome


# --- reading the log ------------------------------------------------------------------------------

cdef FetchOutcome choose_aborted(FetchPart* part, int64_t upper) noexcept nogil:
    """Which of the pinned list go with what was read below `upper`."""
    cdef AbortedWalk walk
    cdef int64_t end
    if part.aborted.among == NULL:
        return FETCH_ANSWERED
    if part.offset < part.aborted.among.known_from:
        return FETCH_UNUSUAL_READ
    part.aborted.fetch_offset = part.offset
    part.aborted.upper_offset = upper
    part.aborted.number = 0
    walk = part.aborted
    # For most readers all that was aborted lies behind them: where their bytes end need not be looked up.
    if aborted_next(&walk) != NULL:
        if read_end_offset(&part.read, &end) < 0:
            return FETCH_UNUSUAL_READ
        part.aborted.upper_offset = min(end, upper)
        part.aborted_count = aborted_count(part.aborted)
    if part.aborted_count == 0:
        forget_aborted(part)
    return FETCH_ANSWERED


cdef FetchOutcome read_committed(
        FetchPart* part, int64_t max_bytes, bint whole_first_batch, bint may_wait) noexcept nogil:
    """Read below the last stable offset, and find what was aborted there."""
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
            return FETCH_ANSWERED
        # Or compaction has taken markers away meanwhile, without which what their producers committed later would be
        # taken for aborted.
        if partition_has_aborted(partition, part.aborted.among):
            return choose_aborted(part, upper)
        unpin(part)
    return FETCH_UNUSUAL_READ


cdef FetchOutcome read_part(
        const FetchCall* call, FetchPart* part, int64_t budget, bint whole_first_batch, bint may_wait) noexcept nogil:
    cdef Partition* partition = part.served.partition
    cdef int64_t max_bytes = min(<int64_t>max(part.max_bytes, 0), budget)
    if call.read_committed:
        return read_committed(part, max_bytes, whole_first_batch, may_wait)
    partition_read(
        partition, part.offset, max_bytes, load(&partition.high_watermark), whole_first_batch, may_wait, &part.read)
    return FETCH_ANSWERED


cdef FetchOutcome fetch_read(FetchCall* call, bint may_wait) noexcept nogil:
    cdef FetchPart* part
    cdef Partition* partition
    cdef int64_t budget = max(call.max_bytes, <int64_t>0)
    cdef int64_t found_bytes = 0
    cdef int64_t aborted = 0
    cdef int64_t epoch
    cdef FetchOutcome outcome
    cdef int64_t number
    fetch_unpin(call)
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        partition = part.served.partition
        part.changes = load(&partition.changes)
        epoch = load(&partition.leader_epoch)
        if part.leader_epoch != NO_EPOCH and part.leader_epoch != epoch:
            return FETCH_UNUSUAL_READ
        # It has another role by now, or is about to.
        if part.epoch_then != epoch or not load(&partition.writable):
            return FETCH_UNUSUAL_READ
        # The first bytes of an answer are never refused for their size, or one large batch would
        # stop its consumer for ever (KIP-74).
        outcome = read_part(call, part, budget, found_bytes == 0, may_wait)
        aborted += part.aborted_count
        if outcome != FETCH_ANSWERED or aborted > MOST_ABORTED_TOLD:
            return FETCH_UNUSUAL_READ
        if part.read.status == READ_FOUND:
            found_bytes += part.read.size
            budget = max(budget - part.read.size, <int64_t>0)
        elif part.read.status == READ_FAILED and part.read.error == EAGAIN:
            call.queue = part.served.disk
            return FETCH_BESIDE
        elif part.read.status != READ_NOTHING:
            return FETCH_UNUSUAL_READ
        part_advance(call.progress, &part.stage, WAS_READ)
    return FETCH_ANSWERED if found_bytes >= call.min_bytes else FETCH_WAITS


cdef FetchOutcome fetch_serve(
        ServedTable* table, SessionTable* sessions, FetchCall* call, const uint8_t* p,
        const uint8_t* end) noexcept nogil:
    cdef int64_t largest_bytes = min(load(&table.fetch_max_bytes), <int64_t>LARGEST_ANSWER_BYTES)
    cdef FetchOutcome outcome
    if not fetch_read_request(call, largest_bytes, p, end):
        return FETCH_UNUSUAL_FORM
    if call.session_id == NO_SESSION_ID and call.session_epoch == FINAL_EPOCH:
        outcome = take_asked(table, call)
    else:
        outcome = take_session(table, sessions, call)
    if outcome == FETCH_ANSWERED and call.parts.count > 0:
        outcome = fetch_read(call, False)
        find_cold(call)
        if call.queue != NULL:
            return FETCH_BESIDE
    if outcome == FETCH_WAITS and call.max_wait_ms <= 0:
        return FETCH_ANSWERED
    return outcome


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


cdef FetchOutcome fetch_read_slowly(FetchCall* call) noexcept nogil:
    cdef FetchPart* part
    cdef FetchOutcome outcome = fetch_read(call, True)
    cdef int64_t number
    for number in range(call.parts.count):
        part = fetch_part(call, number)
        if part.read.size > 0:
            segment_read_through(part.read.segment, part.read.position, part.read.size)
    return outcome


cdef bint fetch_is_stale(const FetchCall* call) noexcept nogil:
    cdef int64_t number
    for number in range(call.parts.count):
        if load_ordered(&fetch_part(call, number).served.partition.changes) != fetch_part(call, number).changes:
            return True
    return False


# --- what is told ---------------------------------------------------------------------------------

cdef bint fetch_settle(FetchCall* call) noexcept nogil:
    cdef FetchPart* part
    cdef bint has_records
    cdef bint changed
    cdef int64_t number
    if call.session != NULL:
        if not session_hold(call.session, call.session_until):
            return False
        for number in range(call.parts.count):
            part = fetch_part(call, number)
            has_records = part.read.size > 0
            changed = session_must_tell(
                part.remembered, False, has_records, part.read.high_watermark, part.read.log_start_offset)
            part.told = changed or not call.tells_changes_only
            # Whoever got bytes goes to the end of the line, or the first partitions would take the whole
            # budget every time.
            if has_records:
                session_put_last(call.session, part.remembered)
        session_let_go(call.session)
    return True
