"""The requests that a reactor answers itself, without Python and without the interpreter lock.

Decides which requests the reactor answers itself, which it offloads to other threads, and what a parked request
waits for: acks=all for safety, Fetch for bytes, each request for those before it. `produce_path` and `fetch_path` know
what a request means. Requests that the fast path does not support go to Python, counted by reason.
"""

from libc.stdint cimport int16_t, int64_t, uint8_t, uint64_t

from plog._native.connection cimport answer_room, cut_frame, drop_frame
from plog._native.fetch_answer cimport fetch_answer
from plog._native.fetch_call cimport (
    FETCH_ANSWERED, FETCH_BESIDE, FETCH_KEY, FETCH_SINCE, FETCH_UNTIL, FETCH_UNUSUAL_FORM,
    FETCH_UNUSUAL_PARTITION, FETCH_UNUSUAL_READ, FETCH_WAITS, FetchCall, FetchOutcome)
from plog._native.fetch_path cimport (
    fetch_clear, fetch_init, fetch_is_stale, fetch_read, fetch_read_slowly, fetch_serve, fetch_settle, fetch_unpin)
from plog._native.fetch_sessions cimport NO_SESSION_ID
from plog._native.files cimport calls
from plog._native.gather cimport gather_add
from plog._native.histogram cimport Times, times_note
from plog._native.locks cimport store
from plog._native.mailbox cimport mailbox_put
from plog._native.produce_path cimport (
    PRODUCE_ANSWERED, PRODUCE_BESIDE, PRODUCE_KEY, PRODUCE_SINCE, PRODUCE_UNTIL,
    PRODUCE_UNUSUAL_APPEND, PRODUCE_UNUSUAL_BATCH, PRODUCE_UNUSUAL_FORM, PRODUCE_UNUSUAL_PARTITION, PRODUCE_WAITS,
    ProduceCall, ProduceOutcome, produce_answer_size, produce_check, produce_clear, produce_conclude,
    produce_encode_answer, produce_expire, produce_init, produce_is_settled, produce_is_stale, produce_part,
    produce_release, produce_slow_disk)
from plog._native.reactor_types cimport (
    ASK_FINISH, PARKED_DONE, PARKED_GATHERED, PARKED_IN_WORK, PARKED_WAITS, PASSED_APPEND, PASSED_BATCH, PASSED_FORM,
    PASSED_OTHER_API, PASSED_PARTITION, PASSED_READ, PASSED_SWITCHED_OFF, PREFIX_BYTES, RESPONSE_ERRORS, Connection,
    Frame, Gathered, Loop, Parked, ParkedStage)
from plog._native.request cimport RequestHead, read_head
from plog._native.waiting cimport (
    parked_count_memory, parked_end, parked_free, parked_free_frame, parked_keep_frame, parked_listen, parked_new,
    parked_wake)
from plog._native.work_queue cimport Task, WorkQueue, work_ask

cdef enum:
    ACKS_ALL = -1
    ACKS_NONE = 0
    # A Fetch that waits keeps its frame.
    LARGEST_PARKED_BYTES = 64 * 1024


cdef inline void count(int64_t* number) noexcept nogil:
    store(number, number[0] + 1)


cdef inline void note_time(Times* times, const RequestHead* head) noexcept nogil:
    times_note(times, calls().monotonic_us() - head.received_us)


cdef FastOutcome pass_on(Loop* loop, int reason) noexcept nogil:
    count(&loop.passed[reason])
    return FAST_PASSED


cdef inline FastOutcome hold_up(Connection* c) noexcept nogil:
    c.held_up = True
    return FAST_WAITS


cdef FastOutcome use_up(Loop* loop, Connection* c, int64_t size, FastOutcome outcome) noexcept nogil:
    drop_frame(c, size)
    count(&loop.requests)
    count(&loop.fast_requests)
    return outcome


cdef FastOutcome fast_answer(Loop* loop, Connection* c, int64_t size) noexcept nogil:
    cdef const uint8_t* frame = c.buffer + c.start + PREFIX_BYTES
    cdef const uint8_t* end = frame + size
    cdef RequestHead head
    cdef const uint8_t* p
    produce_clear(&loop.produce)
    loop.session_id = NO_SESSION_ID
    if loop.shared.served == NULL or not c.may_be_fast:
        return pass_on(loop, PASSED_SWITCHED_OFF)
    p = read_head(frame, end, &head)
    head.received_us = c.received_us
    head.connection = c.id
    if c.unappended > 0:
        return hold_up(c)  # it must not be appended before them
    if p != NULL and head.api_key == PRODUCE_KEY and PRODUCE_SINCE <= head.version <= PRODUCE_UNTIL:
        loop.produce.head = head
        return try_produce(loop, c, size, p, end)
    # Answers keep the order of their requests: while Produces wait, only further ones go on.
    if c.gathered > 0:
        return FAST_AFTER_WRITE
    if c.parked != NULL:
        return hold_up(c)
    if p != NULL and head.api_key == FETCH_KEY and FETCH_SINCE <= head.version <= FETCH_UNTIL:
        loop.fetch.head = head
        return try_fetch(loop, c, size, p, end)
    return pass_on(loop, PASSED_OTHER_API)


# --- Produce --------------------------------------------------------------------------------------

cdef void count_errors(Loop* loop, const ProduceCall* call) noexcept nogil:
    """Count the response once for each error in it."""
    cdef uint64_t seen = 0
    cdef int64_t number
    cdef int code
    for number in range(call.parts.count):
        seen |= <uint64_t>1 << produce_part(call, number).error
    if seen <= 1:
        count(&loop.produce_responses[0])
        return
    for code in range(RESPONSE_ERRORS):
        if seen >> code & 1:
            count(&loop.produce_responses[code])


cdef bint answer_produce(Loop* loop, Connection* c, const ProduceCall* call) noexcept nogil:
    cdef uint8_t* room
    note_time(&loop.produce_times, &call.head)
    if call.acks == ACKS_NONE:
        return True
    room = answer_room(c, produce_answer_size(call))
    if room == NULL:
        return False
    produce_encode_answer(call, room)
    count(&loop.responses)
    count_errors(loop, call)
    return True


cdef FastOutcome try_produce(
        Loop* loop, Connection* c, int64_t size, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int64_t now_ms = calls().now_ms()
    cdef ProduceOutcome outcome
    if c.in_work > 0:
        # It must not be appended before them; whoever checks it meanwhile saves time.
        return put_beside(loop, c, size, PRODUCE_KEY, loop.shared.served.compute)
    outcome = produce_check(loop.shared.served, &loop.produce, p, end, now_ms, True)
    if outcome == PRODUCE_ANSWERED:
        gather_add(&loop.gather, c, &loop.produce, c.buffer + c.start + PREFIX_BYTES, size, NULL, now_ms)
        # The next request need not wait for this one: writes and flushes are shared, and so is the time they take.
        return use_up(loop, c, size, FAST_GATHERED)
    if c.gathered > 0:
        return FAST_AFTER_WRITE
    if outcome == PRODUCE_BESIDE:
        return put_beside(loop, c, size, PRODUCE_KEY, loop.produce.queue)
    if c.parked != NULL:
        return hold_up(c)  # not its turn yet
    return pass_on(loop, reason_of_produce(outcome))


cdef FastOutcome fast_conclude(Loop* loop, Gathered* gathered, int64_t now_ms, Frame* frame) noexcept nogil:
    cdef Connection* c = gathered.connection
    cdef ProduceCall* call = &gathered.call
    cdef Parked* parked = gathered.parked
    cdef ProduceOutcome outcome = produce_conclude(call, now_ms, not c.handed_over and c.unappended == 0, True)
    cdef bint is_first = (c.parked == NULL or c.parked == parked) and not c.handed_over
    cdef bint was_parked = parked != NULL
    c.gathered -= 1
    if c.closing:
        return FAST_WAITS  # the memory for one before it was wanting
    if was_parked:
        parked.stage = PARKED_WAITS
    # What was just read has been counted already.
    if outcome == PRODUCE_UNUSUAL_APPEND and not was_parked:
        store(&loop.fast_requests, loop.fast_requests - 1)
    elif outcome != PRODUCE_UNUSUAL_APPEND and was_parked:
        count(&loop.fast_requests)
    if outcome != PRODUCE_UNUSUAL_APPEND and call.acks == ACKS_NONE and (is_first or not was_parked):
        note_time(&loop.produce_times, &call.head)
        if was_parked:
            parked_end(c)
        return FAST_WAITS
    if outcome == PRODUCE_ANSWERED and is_first:
        if not answer_produce(loop, c, call):
            return FAST_NO_MEMORY
        if was_parked:
            parked_end(c)
        return FAST_ANSWERED
    if not was_parked:
        parked = parked_new(loop, c, PRODUCE_KEY)
        if parked == NULL:
            return FAST_NO_MEMORY
    return conclude_later(loop, gathered, parked, outcome, is_first, frame)


cdef FastOutcome conclude_later(
        Loop* loop, Gathered* gathered, Parked* parked, ProduceOutcome outcome, bint is_first,
        Frame* frame) noexcept nogil:
    """It waits: for safety, for those before it, or for its turn to go to Python."""
    cdef Connection* c = gathered.connection
    cdef ProduceCall spare = parked.produce
    if outcome != PRODUCE_UNUSUAL_APPEND:
        parked_free_frame(parked)
    elif parked.frame.base == NULL and not parked_keep_frame(parked, gathered.frame, gathered.size):
        return FAST_NO_MEMORY
    parked.produce = gathered.call
    gathered.call = spare
    parked_count_memory(parked)
    set_deadline(parked)
    if outcome == PRODUCE_UNUSUAL_APPEND:
        c.unappended += 1
        parked.passed = PASSED_APPEND
        if is_first:
            pass_parked(loop, c, frame)
            return FAST_PASSED
    elif is_first:
        wait_for_safety(loop, parked)
    return FAST_WAITS


cdef inline void set_deadline(Parked* parked) noexcept nogil:
    parked.deadline_us = calls().monotonic_us() + 1000 * <int64_t>max(parked.produce.timeout_ms, 0)


cdef void pass_parked(Loop* loop, Connection* c, Frame* frame) noexcept nogil:
    """The first of the connection's requests is for Python."""
    cdef Parked* parked = c.parked
    count(&loop.passed[parked.passed])
    c.unappended -= 1
    pass_frame(loop, parked, frame)
    parked_end(c)
    c.handed_over = True


cdef int reason_of_produce(ProduceOutcome outcome) noexcept nogil:
    if outcome == PRODUCE_UNUSUAL_FORM:
        return PASSED_FORM
    if outcome == PRODUCE_UNUSUAL_PARTITION:
        return PASSED_PARTITION
    if outcome == PRODUCE_UNUSUAL_BATCH:
        return PASSED_BATCH
    return PASSED_APPEND


cdef void wait_for_safety(Loop* loop, Parked* parked) noexcept nogil:
    """Of the first on its connection; it may do so already."""
    if parked.listens:
        return
    parked_listen(loop, parked)
    if produce_is_stale(&parked.produce):
        parked_wake(parked)


# --- Fetch ----------------------------------------------------------------------------------------

cdef bint answer_fetch(Loop* loop, Connection* c, FetchCall* call) noexcept nogil:
    if not fetch_answer(call, c):
        return False
    note_time(&loop.fetch_times, &call.head)
    count(&loop.responses)
    count(&loop.fetch_responses)
    return True


cdef FastOutcome try_fetch(
        Loop* loop, Connection* c, int64_t size, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef FetchCall* call = &loop.fetch
    cdef FetchOutcome outcome = fetch_serve(loop.shared.served, loop.shared.sessions, call, p, end)
    cdef FastOutcome became
    cdef bint answered
    if outcome == FETCH_ANSWERED and not fetch_settle(call):
        outcome = FETCH_UNUSUAL_READ
    if outcome == FETCH_ANSWERED:
        answered = answer_fetch(loop, c, call)
        fetch_clear(call)
        return use_up(loop, c, size, FAST_ANSWERED) if answered else FAST_NO_MEMORY
    note_session(loop, call)
    if outcome == FETCH_BESIDE:
        became = put_beside(loop, c, size, FETCH_KEY, call.queue)
    elif outcome == FETCH_WAITS:
        became = park_fetch(loop, c, size)
    else:
        became = pass_on(loop, reason_of_fetch(outcome))
    fetch_clear(call)
    return became


cdef int reason_of_fetch(FetchOutcome outcome) noexcept nogil:
    if outcome == FETCH_UNUSUAL_FORM:
        return PASSED_FORM
    if outcome == FETCH_UNUSUAL_PARTITION:
        return PASSED_PARTITION
    return PASSED_READ


cdef void note_session(Loop* loop, const FetchCall* call) noexcept nogil:
    """For Python, lest it counts the request in its session once more."""
    loop.session_id = NO_SESSION_ID if call.session == NULL else call.session.id
    loop.session_epoch = call.session_until


cdef FastOutcome park_fetch(Loop* loop, Connection* c, int64_t size) noexcept nogil:
    cdef Parked* parked
    if size > LARGEST_PARKED_BYTES:
        return pass_on(loop, PASSED_FORM)
    parked = parked_new(loop, c, FETCH_KEY)
    if parked == NULL:
        return FAST_NO_MEMORY
    if not parked_keep_frame(parked, c.buffer + c.start + PREFIX_BYTES, size):
        return FAST_NO_MEMORY
    parked.fetch = loop.fetch
    fetch_init(&loop.fetch)
    parked_count_memory(parked)
    wait_for_bytes(loop, parked)
    return use_up(loop, c, size, FAST_WAITS)


cdef void wait_for_bytes(Loop* loop, Parked* parked) noexcept nogil:
    parked.connection.held_up = True
    fetch_unpin(&parked.fetch)  # segments may be deleted while it waits
    parked.deadline_us = calls().monotonic_us() + 1000 * <int64_t>max(parked.fetch.max_wait_ms, 0)
    parked_listen(loop, parked)
    if fetch_is_stale(&parked.fetch):
        parked_wake(parked)


# --- beside the reactor ---------------------------------------------------------------------------

cdef FastOutcome put_beside(
        Loop* loop, Connection* c, int64_t size, int16_t api_key, WorkQueue* queue) noexcept nogil:
    """Have another thread work on the request. Those before it may still wait; those after it are not read yet."""
    cdef Parked* parked = parked_new(loop, c, api_key)
    if parked == NULL:
        return FAST_NO_MEMORY
    if cut_frame(c, size, &loop.shared.budget, &parked.frame.base, &parked.frame.data, &parked.frame.capacity) < 0:
        return FAST_NO_MEMORY
    parked.frame.size = size
    parked.task.ask = ASK_FINISH
    parked.task.work = work_on
    parked.produce.head.received_us = parked.frame.received_us
    parked.produce.head.connection = c.id
    parked.served = loop.shared.served
    # Who only computes must not meet a disk, nor who waits for one, or all directories would wait with it.
    parked.appends = queue != parked.served.compute
    c.in_work += 1
    c.works_alone = parked.appends
    if api_key == FETCH_KEY:
        parked.fetch = loop.fetch
        fetch_init(&loop.fetch)
    parked_count_memory(parked)
    count(&loop.requests)
    ask_thread(parked, queue)
    return FAST_BESIDE


cdef void ask_thread(Parked* parked, WorkQueue* queue) noexcept nogil:
    """It owns `produce` or `fetch` until its letter comes."""
    parked.stage = PARKED_IN_WORK
    parked.posted = 1
    if not work_ask(queue, &parked.task):  # the broker is stopping
        parked.outcome = <int>FETCH_UNUSUAL_FORM if parked.api_key == FETCH_KEY else <int>PRODUCE_UNUSUAL_FORM
        parked.appends = True
        mailbox_put(parked.inbox, &parked.task.letter, &parked.task.letter, 1)


cdef void work_on(Task* task) noexcept nogil:
    """In another thread."""
    cdef Parked* parked = <Parked*>task
    if parked.api_key == PRODUCE_KEY:
        work_on_produce(parked)
    else:
        parked.outcome = fetch_read_slowly(&parked.fetch)
    if not mailbox_put(parked.inbox, &parked.task.letter, &parked.task.letter, 1):
        parked_free(parked)  # the loop has ended, and the connection with it


cdef void work_on_produce(Parked* parked) noexcept nogil:
    cdef const uint8_t* end = parked.frame.data + parked.frame.size
    cdef const uint8_t* p
    cdef int64_t now_ms = calls().now_ms()
    if not parked.checked:
        p = read_head(parked.frame.data, end, &parked.produce.head)
        parked.outcome = produce_check(parked.served, &parked.produce, p, end, now_ms, False)
        parked.checked = True
    if parked.appends and parked.outcome == PRODUCE_ANSWERED:
        parked.outcome = produce_conclude(&parked.produce, now_ms, True, False)


cdef void fast_done(Parked* parked) noexcept nogil:
    parked.posted = 0
    parked.stage = PARKED_DONE
    parked_count_memory(parked)


cdef Parked* fast_next_done(const Connection* c) noexcept nogil:
    cdef Parked* parked = c.parked
    # What Python has in hand, or is to have, is appended first.
    if c.in_work == 0 or c.handed_over or c.unappended > 0:
        return NULL
    while parked.stage != PARKED_IN_WORK and parked.stage != PARKED_DONE:
        parked = parked.after
    return parked if parked.stage == PARKED_DONE else NULL


cdef FastOutcome fast_finish(Loop* loop, Parked* parked, Frame* frame) noexcept nogil:
    cdef Connection* c = parked.connection
    cdef FastOutcome became
    if parked.api_key == PRODUCE_KEY and parked.outcome == PRODUCE_ANSWERED and not parked.appends:
        return append_checked(loop, c, parked)
    if c.gathered > 0:
        return FAST_AFTER_WRITE  # whether it is the first of those that wait shows then
    leave_work(c, parked, PARKED_WAITS)
    became = finish_produce(loop, c, parked) if parked.api_key == PRODUCE_KEY else finish_fetch(loop, c, parked)
    if became != FAST_PASSED:
        count(&loop.fast_requests)
    elif c.parked != parked:
        c.unappended += 1
        return FAST_WAITS
    else:
        count(&loop.passed[parked.passed])
        pass_frame(loop, parked, frame)
    if became != FAST_WAITS:
        parked_end(c)
        c.handed_over = became == FAST_PASSED
    return became


cdef inline void leave_work(Connection* c, Parked* parked, ParkedStage stage) noexcept nogil:
    parked.stage = stage
    c.in_work -= 1
    c.works_alone = False


cdef FastOutcome append_checked(Loop* loop, Connection* c, Parked* parked) noexcept nogil:
    """With what is gathered, or in the thread of its disk while that is slow."""
    cdef WorkQueue* disk = produce_slow_disk(&parked.produce)
    if disk != NULL and c.gathered > 0:
        return FAST_AFTER_WRITE
    if disk != NULL:
        parked.appends = c.works_alone = True
        ask_thread(parked, disk)
        return FAST_WAITS
    leave_work(c, parked, PARKED_GATHERED)
    gather_add(
        &loop.gather, c, &parked.produce, parked.frame.data, parked.frame.size, parked, calls().now_ms())
    return FAST_GATHERED


cdef FastOutcome finish_produce(Loop* loop, Connection* c, Parked* parked) noexcept nogil:
    if parked.outcome != PRODUCE_ANSWERED and parked.outcome != PRODUCE_WAITS:
        parked.passed = reason_of_produce(<ProduceOutcome>parked.outcome)
        return FAST_PASSED
    parked_free_frame(parked)
    set_deadline(parked)
    if c.parked != parked:
        return FAST_WAITS  # for its turn to be answered
    if parked.outcome == PRODUCE_WAITS:
        wait_for_safety(loop, parked)
        return FAST_WAITS
    return FAST_ANSWERED if answer_produce(loop, c, &parked.produce) else FAST_NO_MEMORY


cdef FastOutcome finish_fetch(Loop* loop, Connection* c, Parked* parked) noexcept nogil:
    if parked.outcome == FETCH_WAITS and parked.fetch.max_wait_ms > 0:
        wait_for_bytes(loop, parked)
        return FAST_WAITS
    if parked.outcome > FETCH_WAITS or not fetch_settle(&parked.fetch):
        parked.passed = PASSED_READ
        return FAST_PASSED
    return FAST_ANSWERED if answer_fetch(loop, c, &parked.fetch) else FAST_NO_MEMORY


cdef void pass_frame(Loop* loop, Parked* parked, Frame* frame) noexcept nogil:
    """The caller's now; what has been done of the request is noted in `loop`."""
    produce_release(&loop.produce)
    loop.produce = parked.produce
    produce_init(&parked.produce)
    note_session(loop, &parked.fetch)
    frame[0] = parked.frame
    parked.frame.base = NULL


# --- looking again --------------------------------------------------------------------------------

cdef bint fast_look_again(Loop* loop, Connection* c, bint expired, Frame* frame) noexcept nogil:
    if c.parked.api_key == PRODUCE_KEY:
        return look_at_produces(loop, c, expired, frame)
    return look_at_fetch(loop, c, expired, frame)


cdef bint look_at_produces(Loop* loop, Connection* c, bint expired, Frame* frame) noexcept nogil:
    """Answer from the first on, up to one that still waits."""
    cdef Parked* parked = c.parked
    cdef bint answered = False
    while parked != NULL:
        if parked.stage != PARKED_WAITS:
            return answered
        if parked.frame.base != NULL:  # its turn to go to Python
            pass_parked(loop, c, frame)
            return answered
        if parked.produce.acks == ACKS_ALL and not produce_is_settled(&parked.produce):
            if not expired:
                wait_for_safety(loop, parked)
                return answered
            produce_expire(&parked.produce)
        expired = False  # the next has a time of its own
        if not answer_produce(loop, c, &parked.produce):
            c.closing = c.abnormal = True
            return True  # nor are those behind it answered
        answered = True
        parked_end(c)
        parked = c.parked
    return answered


cdef bint look_at_fetch(Loop* loop, Connection* c, bint expired, Frame* frame) noexcept nogil:
    cdef Parked* parked = c.parked
    cdef FetchOutcome outcome = fetch_read(&parked.fetch, True)  # what wakes it has just been written
    cdef bint answered
    if outcome == FETCH_WAITS and not expired:
        fetch_unpin(&parked.fetch)
        return False
    if (outcome != FETCH_ANSWERED and outcome != FETCH_WAITS) or not fetch_settle(&parked.fetch):
        count(&loop.passed[PASSED_READ])
        store(&loop.fast_requests, loop.fast_requests - 1)
        pass_frame(loop, parked, frame)
        parked_end(c)
        c.handed_over = True
        return False
    answered = answer_fetch(loop, c, &parked.fetch)
    parked_end(c)
    if not answered:
        c.closing = True
        c.abnormal = True
    return True


cdef inline bint serves_its_client_only(const Parked* parked) noexcept nogil:
    # The frame of a Produce is kept until it is appended.
    return parked.stage == PARKED_WAITS and (parked.api_key == FETCH_KEY or parked.frame.base == NULL)


cdef bint fast_give_up(Connection* c) noexcept nogil:
    cdef bint ended = False
    while c.parked != NULL and serves_its_client_only(c.parked):
        parked_end(c)
        ended = True
    return ended and c.parked == NULL


cdef void fast_drop(Connection* c) noexcept nogil:
    while c.parked != NULL:
        parked_end(c)
    c.in_work = c.unappended = 0


cdef void fast_discard(Parked* parked) noexcept nogil:
    if parked.over:
        parked_free(parked)
