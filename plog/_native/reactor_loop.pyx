"""One thread of the reactor: waits, gives connections their turns, obeys, keeps time.

Owns its connections, lists and timers. Never takes the interpreter lock: what
Python should know lies in the mailbox of events after each round, and what
Python wants comes through the loop's inbox. Loop 0 accepts for all.
"""

from libc.errno cimport ENOMEM, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from posix.unistd cimport close

from plog._native.acceptor cimport (
    DOOR_EXHAUSTED, DOOR_NOBODY, DOOR_REFUSED, Guest, door_admit, door_leave,
)
from plog._native.connection cimport (
    connection_new, free_pieces, holds_whole_frame, link_init, link_remove, queue_pieces, scratch_release)
from plog._native.fast_turn cimport (
    FAST_AFTER_WRITE, FAST_ANSWERED, FAST_NO_MEMORY, FAST_PASSED, FastOutcome, fast_discard, fast_done, fast_finish,
    fast_look_again, fast_next_done,
)
from plog._native.fetch_call cimport FETCH_KEY
from plog._native.fetch_path cimport fetch_init, fetch_release
from plog._native.files cimport calls
from plog._native.gather cimport gather_release
from plog._native.locks cimport exchange, load as atomic_load
from plog._native.mailbox cimport (
    Letter, mailbox_count, mailbox_open, mailbox_put, mailbox_release, mailbox_take)
from plog._native.memory_waits cimport (
    answers_beyond, feed_small, feed_starved, find_hoarder, find_stalled, wait_no_more,
)
from plog._native.notes cimport add_note, note_new, note_text, post_notes
from plog._native.produce_path cimport produce_init, produce_release
from plog._native.reactor_types cimport (
    ASK_ADOPT, ASK_CLOSE, ASK_FINISH, ASK_LISTEN, ASK_MUTE, ASK_RECHECK, EVENT_CLOSED, EVENT_OPENED, EVENT_REFUSED,
    REASON_BYTES, SOURCE_CONNECTION, SOURCE_INBOX, SOURCE_LISTENER, Command, Connection, Frame, Link, Listener, Loop,
    Note, Parked, Shared)
from plog._native.turn cimport (
    begin_close, count_up, discard, enter, find, finish_close, hand_over_frame, keeps_its_client_waiting, let_go, on_event,
    send_answers, serve, touch, watch, write_gathered,
)

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int op, int fd, epoll_event* event)
    int epoll_wait(int epoll_fd, epoll_event* events, int most, int timeout_ms)
    enum:
        EPOLL_CLOEXEC
        EPOLL_CTL_DEL
        EPOLLIN
        EPOLLOUT
        EPOLLRDHUP
        EPOLLET

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t* set)
    int pthread_sigmask(int how, const sigset_t* set, sigset_t* old)
    enum:
        SIG_BLOCK

cdef enum:
    MAX_EVENTS = 256
    SEND_BYTES = 1024 * 1024
    ACCEPTS_PER_TURN = 64
    # So many events not yet taken by Python: let further clients wait in the backlog.
    NOTES_TO_STOP_ACCEPTING = 65536
    TICK_US = 1000000


# --- accepting ------------------------------------------------------------------------------------

cdef void note_refusal(Loop* loop, Listener* listener, const Guest* guest) noexcept nogil:
    """One note a second: a flood must not fill Python's mailbox. The count is in the statistics."""
    cdef Note* note
    cdef int64_t most = sizeof(guest.peer) + sizeof(guest.reason) + 4
    if loop.now_us < loop.next_refusal_us:
        return
    loop.next_refusal_us = loop.now_us + TICK_US
    note = note_new(EVENT_REFUSED, NULL, most)
    if note != NULL:
        note.listener_id = listener.id
        # Peer and reason in one text, apart by a NUL; `size` is where the reason starts.
        note.size = snprintf(note_text(note), most, "%s", guest.peer) + 1
        snprintf(note_text(note) + note.size, most - note.size, "%s", guest.reason)
        add_note(loop, note)


cdef void park(Loop* loop, Listener* listener) noexcept nogil:
    epoll_ctl(loop.epoll_fd, EPOLL_CTL_DEL, listener.fd, NULL)
    listener.parked = True


cdef void welcome(Loop* loop, Listener* listener) noexcept nogil:
    cdef Shared* shared = loop.shared
    cdef Guest guest
    cdef Connection* c
    cdef Command* command
    cdef Loop* owner
    cdef int outcome
    cdef int64_t id
    cdef int i
    if mailbox_count(&shared.events) > NOTES_TO_STOP_ACCEPTING:
        park(loop, listener)
        return
    for i in range(ACCEPTS_PER_TURN):
        outcome = door_admit(&shared.door, listener.fd, listener.id, &guest)
        if outcome == DOOR_NOBODY:
            return
        if outcome == DOOR_EXHAUSTED:
            park(loop, listener)
            return
        if outcome == DOOR_REFUSED:
            note_refusal(loop, listener, &guest)
            continue
        id = shared.next_id
        shared.next_id += 1
        c = connection_new(guest.fd, id, listener.id, guest.address)
        if c == NULL:
            close(guest.fd)
            door_leave(&shared.door, listener.id, guest.address)
            continue
        c.may_be_fast = listener.may_be_fast
        c.opened = note_new(EVENT_OPENED, c, sizeof(guest.peer))
        c.closed = note_new(EVENT_CLOSED, c, REASON_BYTES)
        command = <Command*>calloc(1, sizeof(Command))
        if c.opened == NULL or c.closed == NULL or command == NULL:
            free(command)
            discard(shared, c)
            continue
        snprintf(note_text(c.opened), sizeof(guest.peer), "%s", guest.peer)
        owner = &shared.loops[id % shared.threads]
        if owner == loop:
            free(command)
            adopt(loop, c)
            continue
        command.ask = ASK_ADOPT
        command.connection = c
        if not mailbox_put(&owner.inbox, &command.letter, &command.letter, 1):
            free(command)
            discard(shared, c)


cdef void listen_on(Loop* loop, Listener* listener) noexcept nogil:
    listener.parked = not watch(loop, listener.fd, EPOLLIN, listener)


cdef void close_listeners(Loop* loop) noexcept nogil:
    cdef Listener* listener
    while loop.listeners != NULL:
        listener = loop.listeners
        loop.listeners = listener.next
        close(listener.fd)
        free(listener)


# --- what the inbox asks --------------------------------------------------------------------------

cdef void free_command(Shared* shared, Command* command) noexcept nogil:
    if command.connection != NULL:
        discard(shared, command.connection)
    if command.listener != NULL:
        close(command.listener.fd)
        free(command.listener)
    free_pieces(command.first)
    free(command)


cdef void adopt(Loop* loop, Connection* c) noexcept nogil:
    c.kind = SOURCE_CONNECTION
    c.writable = True
    if not watch(loop, c.fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | <uint32_t>EPOLLET, c):
        discard(loop.shared, c)
        return
    enter(loop, c)
    touch(loop, c)
    add_note(loop, c.opened)
    c.opened = NULL


cdef void obey(Loop* loop, Command* command) noexcept nogil:
    cdef Connection* c
    if command.ask == ASK_ADOPT:
        adopt(loop, command.connection)
        command.connection = NULL
        return
    if command.ask == ASK_LISTEN:
        command.listener.next = loop.listeners
        loop.listeners = command.listener
        command.listener = NULL
        listen_on(loop, loop.listeners)
        return
    c = find(loop, command.connection_id)
    if c == NULL or c.closing:
        return
    if command.ask == ASK_MUTE:
        c.muted_until_us = loop.now_us + 1000 * command.size
    elif command.ask == ASK_CLOSE:
        begin_close(loop, c, command.reason)
    elif c.handed_over:
        c.handed_over = False
        touch(loop, c)
        if command.first != NULL:
            count_up(&loop.responses, 1)
            queue_pieces(c, command.first, command.last, command.size)
            command.first = NULL
        if c.parked != NULL:
            look_again(loop, c, False)  # Produces that came after it
        go_on(loop, c)


cdef void read_inbox(Loop* loop) noexcept nogil:
    cdef Letter* letter = mailbox_take(&loop.inbox, INT64_MAX)
    cdef Command* command
    while letter != NULL:
        command = <Command*>letter
        letter = letter.next
        if command.ask == ASK_RECHECK:
            recheck(loop, <Parked*>command)
        elif command.ask == ASK_FINISH:
            finish(loop, <Parked*>command)
        else:
            obey(loop, command)
            free_command(loop.shared, command)


cdef void recheck(Loop* loop, Parked* parked) noexcept nogil:
    if parked.over:
        fast_discard(parked)
        return
    # From here on a change posts it anew. An exchange and no store, which the loads that follow would overtake:
    # a change between the two would find the letter posted, and be seen by nobody.
    exchange(&parked.posted, 0)
    look_again(loop, parked.connection, False)


cdef void look_again(Loop* loop, Connection* c, bint expired) noexcept nogil:
    """At a request that waits."""
    cdef Frame frame
    cdef bint answered
    frame.base = NULL
    answered = fast_look_again(loop, c, expired, &frame)
    if frame.base != NULL and not hand_over_frame(loop, c, &frame):
        finish_close(loop, c, b"out of memory for a request")
    elif answered:
        touch(loop, c)
        serve(loop, c)


cdef void finish(Loop* loop, Parked* parked) noexcept nogil:
    cdef Connection* c = parked.connection
    if parked.over:
        fast_discard(parked)
        return
    fast_done(parked)
    go_on(loop, c)


cdef void go_on(Loop* loop, Connection* c) noexcept nogil:
    """With what other threads have worked on, in the order in which it came; then serve it."""
    cdef Parked* parked = fast_next_done(c)
    cdef Frame frame
    cdef FastOutcome outcome
    while parked != NULL:
        outcome = fast_finish(loop, parked, &frame)
        if outcome == FAST_NO_MEMORY or (outcome == FAST_PASSED and not hand_over_frame(loop, c, &frame)):
            finish_close(loop, c, b"out of memory for a request")
            return
        if outcome == FAST_AFTER_WRITE or loop.gather.is_full:
            write_gathered(loop)
        if outcome == FAST_ANSWERED:
            touch(loop, c)
        parked = fast_next_done(c)
    serve(loop, c)


# --- a round --------------------------------------------------------------------------------------

cdef void serve_ready(Loop* loop) noexcept nogil:
    """A turn for each connection that is ready now; those that become ready meanwhile wait for the next round."""
    cdef Link* last = loop.ready.previous
    cdef Link* link
    while loop.ready.next != &loop.ready:
        link = loop.ready.next
        link_remove(link)
        serve(loop, link.owner)
        if link == last:
            return


cdef void expire_parked(Loop* loop) noexcept nogil:
    cdef Connection* c
    while loop.by_deadline.next != &loop.by_deadline:
        c = loop.by_deadline.next.owner
        if c.parked.deadline_us > loop.now_us:
            return
        look_again(loop, c, True)


cdef void unmute(Loop* loop) noexcept nogil:
    cdef Link* link = loop.muted.next
    cdef Connection* c
    loop.next_unmute_us = INT64_MAX
    while link != &loop.muted:
        c = link.owner
        link = link.next
        if c.muted_until_us > loop.now_us:
            loop.next_unmute_us = min(loop.next_unmute_us, c.muted_until_us)
        else:
            touch(loop, c)
            wait_no_more(loop, c)


cdef void close_idle(Loop* loop) noexcept nogil:
    cdef Connection* c
    while loop.by_activity.next != &loop.by_activity:
        c = loop.by_activity.next.owner
        if c.active_us + loop.shared.idle_timeout_us > loop.now_us:
            return
        if keeps_its_client_waiting(c):
            touch(loop, c)
        else:
            # An idle client is normal; one that stops in the middle of a request is not, unless the request waits for
            # memory.
            c.abnormal = c.first == NULL and c.end > c.start and c.waiting.next == &c.waiting
            snprintf(c.reason, REASON_BYTES, "idle for longer than %lld ms%s",
                     <long long>(loop.shared.idle_timeout_us // 1000),
                     <const char*>b" without reading its response" if c.first != NULL
                     else <const char*>b" in the middle of a request" if c.abnormal else <const char*>b"")
            if c.gone or not holds_whole_frame(c):
                finish_close(loop, c, NULL)
            else:
                let_go(loop, c, NULL)
                if not c.dead:
                    touch(loop, c)  # the next round serves it


cdef void close_stalled(Loop* loop) noexcept nogil:
    cdef Link* at = loop.by_activity.next
    cdef Connection* c = find_stalled(loop, &at)
    while c != NULL:
        c.abnormal = True
        finish_close(loop, c, b"request memory exhausted (queued.max.request.bytes); "
                              b"request incomplete for 10 s")
        c = find_stalled(loop, &at)


cdef void close_hoarders(Loop* loop) noexcept nogil:
    cdef int64_t beyond = answers_beyond(loop)
    cdef Connection* c
    while beyond > 0:
        c = find_hoarder(loop)
        if c == NULL:
            return
        beyond -= c.answer_bytes
        c.abnormal = True
        let_go(loop, c, b"response memory exhausted (queued.max.request.bytes); closing the slowest reader")


cdef void tick(Loop* loop) noexcept nogil:
    cdef Listener* listener = loop.listeners
    loop.next_tick_us = loop.now_us + loop.tick_us
    if loop.shared.idle_timeout_us > 0:
        close_idle(loop)
    if atomic_load(&loop.shared.starving) > 0:
        close_stalled(loop)
    if loop.starving:
        feed_small(loop)
    close_hoarders(loop)
    while listener != NULL:
        if listener.parked:
            listen_on(loop, listener)
        listener = listener.next


cdef bint wind_down(Loop* loop) noexcept nogil:
    """Stop accepting and reading; close what has nothing to send. True: all is closed."""
    cdef Link* link = loop.by_activity.next
    cdef Connection* c
    cdef bint overdue = loop.now_us >= loop.shared.drain_until_us
    loop.winding_down = True
    close_listeners(loop)
    while link != &loop.by_activity:
        c = link.owner
        link = link.next
        if overdue:
            finish_close(loop, c, b"the broker is stopping")
        elif c.parked == NULL or c.unappended > 0 or c.parked.api_key == FETCH_KEY:
            # Of a Produce that waits the records are appended, but for those: its client should hear of it.
            begin_close(loop, c, b"the broker is stopping")
    return loop.connections == 0


cdef int patience_ms(Loop* loop) noexcept nogil:
    """How long epoll may wait."""
    cdef int64_t until = loop.next_unmute_us
    if loop.ready.next != &loop.ready:
        return 0
    # Its knock may have been taken along with letters that came before it.
    if not loop.winding_down and atomic_load(&loop.shared.stopping) != 0:
        return 0
    if loop.connections > 0 or loop.listeners != NULL and loop.listeners.parked:
        until = min(until, loop.next_tick_us)
    if loop.by_deadline.next != &loop.by_deadline:
        until = min(until, loop.by_deadline.next.owner.parked.deadline_us)
    if loop.winding_down:
        until = min(until, loop.shared.drain_until_us)
    if until == INT64_MAX:
        return -1
    if until <= loop.now_us:
        return 0
    return <int>min((until - loop.now_us + 999) // 1000, 60000)


cdef void bury(Loop* loop) noexcept nogil:
    """Free the structs of this round's closed connections, to which epoll's events may have pointed until now."""
    cdef Connection* c = loop.grave
    cdef Connection* next_c
    loop.grave = NULL
    while c != NULL:
        next_c = c.next_in_bucket
        free(c)
        c = next_c


cdef void loop_run(Loop* loop) noexcept nogil:
    cdef epoll_event events[MAX_EVENTS]
    cdef sigset_t all_signals
    cdef bint stopping
    cdef bint letters
    cdef int n
    cdef int i
    cdef int kind
    # Signals are the main thread's.
    sigfillset(&all_signals)
    pthread_sigmask(SIG_BLOCK, &all_signals, NULL)
    while True:
        n = epoll_wait(loop.epoll_fd, events, MAX_EVENTS, patience_ms(loop))
        loop.now_us = calls().monotonic_us()
        count_up(&loop.turns, 1)
        # Before the inbox: an answer given before stop was called is then found there.
        stopping = atomic_load(&loop.shared.stopping) != 0
        letters = stopping
        for i in range(n):
            kind = (<int*>events[i].data.ptr)[0]
            if kind == SOURCE_CONNECTION:
                on_event(loop, <Connection*>events[i].data.ptr, events[i].events)
            elif kind == SOURCE_LISTENER:
                welcome(loop, <Listener*>events[i].data.ptr)
            else:
                letters = True
        if letters:
            read_inbox(loop)
        serve_ready(loop)
        expire_parked(loop)
        send_answers(loop)
        if loop.now_us >= loop.next_unmute_us:
            unmute(loop)
        if loop.now_us >= loop.next_tick_us:
            tick(loop)
        if loop.starving:
            feed_starved(loop)
        if stopping and wind_down(loop):
            break
        post_notes(loop)
        bury(loop)
    post_notes(loop)
    bury(loop)


# --- beginning and end ----------------------------------------------------------------------------

cdef int loop_open(Loop* loop, Shared* shared, int index) noexcept nogil:
    """0, or -errno; `loop_release` frees what there is either way."""
    cdef int error
    memset(loop, 0, sizeof(Loop))
    loop.source = SOURCE_INBOX
    loop.shared = shared
    loop.index = index
    loop.epoll_fd = -1
    loop.inbox.wake_fd = -1
    link_init(&loop.by_activity, NULL)
    link_init(&loop.ready, NULL)
    link_init(&loop.answering, NULL)
    link_init(&loop.muted, NULL)
    link_init(&loop.starved, NULL)
    link_init(&loop.starved_half, NULL)
    link_init(&loop.by_deadline, NULL)
    produce_init(&loop.produce)
    fetch_init(&loop.fetch)
    loop.next_unmute_us = INT64_MAX
    loop.tick_us = TICK_US
    if shared.idle_timeout_us > 0:
        loop.tick_us = max(10000, min(TICK_US, shared.idle_timeout_us // 4))
    loop.bucket_count = 64
    loop.buckets = <Connection**>calloc(loop.bucket_count, sizeof(Connection*))
    if loop.buckets == NULL:
        return -ENOMEM
    if not shared.use_sendfile:
        loop.scratch.send_bytes = SEND_BYTES
        loop.scratch.send_buffer = <uint8_t*>malloc(SEND_BYTES)
        if loop.scratch.send_buffer == NULL:
            return -ENOMEM
    error = mailbox_open(&loop.inbox)
    if error < 0:
        return error
    loop.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
    if loop.epoll_fd < 0 or not watch(loop, loop.inbox.wake_fd, EPOLLIN, loop):
        return -errno
    return 0


cdef void loop_discard_letters(Loop* loop) noexcept nogil:
    cdef Letter* letter = mailbox_take(&loop.inbox, INT64_MAX)
    cdef Command* command
    while letter != NULL:
        command = <Command*>letter
        letter = letter.next
        if command.ask == ASK_RECHECK or command.ask == ASK_FINISH:
            fast_discard(<Parked*>command)
        else:
            free_command(loop.shared, command)


cdef void loop_release(Loop* loop) noexcept nogil:
    if loop.inbox.wake_fd >= 0:
        loop_discard_letters(loop)
        mailbox_release(&loop.inbox)
    close_listeners(loop)
    if loop.epoll_fd >= 0:
        close(loop.epoll_fd)
    gather_release(&loop.gather)
    produce_release(&loop.produce)
    fetch_release(&loop.fetch)
    free(loop.buckets)
    scratch_release(&loop.scratch)
