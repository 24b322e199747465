"""One thread of the reactor: waits, gives connections their turns, obeys, keeps time.

Owns its connections, lists and timers. Never takes the interpreter lock: after each round the mailbox
of events holds the news for Python, and the loop's inbox the orders of Python.
"""

from libc.errno cimport ENOMEM, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from posix.unistd cimport close

from plog._native.closing cimport begin_close, finish_close, let_go
from plog._native.connection cimport free_pieces, holds_whole_frame, queue_pieces, scratch_release
from plog._native.connections cimport adopt, count_up, discard, find, touch, watch
from plog._native.epoll cimport EPOLL_CLOEXEC, EPOLLIN, epoll_create1, epoll_event, epoll_wait
from plog._native.fetch_turn cimport fetch_came_back
from plog._native.files cimport calls
from plog._native.gather cimport gather_release
from plog._native.links cimport link_init, link_remove
from plog._native.listeners cimport close_listeners, listen_on, welcome
from plog._native.locks cimport exchange, load as atomic_load
from plog._native.mailbox cimport Letter, mailbox_open, mailbox_release, mailbox_take
from plog._native.memory_waits cimport (
    answers_beyond, feed_small, feed_starved, find_hoarder, find_stalled, wait_no_more,
)
from plog._native.notes cimport post_notes
from plog._native.produce_turn cimport produce_came_back
from plog._native.reactor_types cimport (
    ASK_ADOPT, ASK_CLOSE, ASK_FINISH, ASK_LISTEN, ASK_MUTE, ASK_RECHECK, KIND_PRODUCE, NO_MEMORY, REASON_BYTES,
    SOURCE_CONNECTION, SOURCE_INBOX, SOURCE_LISTENER, TICK_US, Command, Connection, Done, Link, Listener, Loop,
    Request, Shared)
from plog._native.request_line cimport line_has_appended, request_advance, request_is_aside
from plog._native.request_stages cimport ANSWERED, ASKED
from plog._native.requests cimport request_count_memory, request_end, request_free, requests_release
from plog._native.turn cimport (
    close_when_written, keeps_its_client_waiting, on_event, send_answers, serve, serve_waiting)

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


# --- what the inbox asks --------------------------------------------------------------------------

cdef void free_command(Shared* shared, Command* command) noexcept nogil:
    if command.connection != NULL:
        discard(shared, command.connection)
    if command.listener != NULL:
        close(command.listener.fd)
        free(command.listener)
    free_pieces(command.first)
    free(command)


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
        close_when_written(loop, c, command.reason)
    elif c.line.first != NULL and c.line.first.stage == ASKED and not request_is_aside(c.line.first):
        touch(loop, c)
        if command.first != NULL:
            count_up(&loop.responses, 1)
            queue_pieces(c, command.first, command.last, command.size)
            command.first = NULL
        request_advance(&c.line, c.line.first, ANSWERED)
        request_end(c.line.first)
        serve(loop, c)


cdef void read_inbox(Loop* loop) noexcept nogil:
    cdef Letter* letter = mailbox_take(&loop.inbox, INT64_MAX)
    cdef Command* command
    while letter != NULL:
        command = <Command*>letter
        letter = letter.next
        if command.ask == ASK_RECHECK:
            recheck(loop, <Request*>command)
        elif command.ask == ASK_FINISH:
            finish(loop, <Request*>command)
        else:
            obey(loop, command)
            free_command(loop.shared, command)


cdef void recheck(Loop* loop, Request* request) noexcept nogil:
    """A partition has changed."""
    if request.over:
        request_free(request)
        return
    # From here on a change posts it anew. An exchange and no store, which the loads that follow would overtake:
    # a change between the two would find the letter posted, and be seen by nobody.
    exchange(&request.posted, 0)
    serve_waiting(loop, request, False)


cdef void finish(Loop* loop, Request* request) noexcept nogil:
    """Another thread has worked on it."""
    cdef Connection* c = request.connection
    cdef Done done
    if request.over:
        request_free(request)
        return
    request.posted = 0
    request_count_memory(request)
    done = produce_came_back(request) if request.kind == KIND_PRODUCE else fetch_came_back(request)
    if done == NO_MEMORY:
        finish_close(loop, c, b"out of memory for a request")
    else:
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


cdef void expire_waiting(Loop* loop) noexcept nogil:
    cdef Connection* c
    while loop.by_deadline.next != &loop.by_deadline:
        c = loop.by_deadline.next.owner
        if c.line.first.deadline_us > loop.now_us:
            return
        serve_waiting(loop, c.line.first, True)


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
        elif not line_has_appended(&c.line):
            # The client of a Produce that waits should hear that it is appended.
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
        until = min(until, loop.by_deadline.next.owner.line.first.deadline_us)
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
        expire_waiting(loop)
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
            request_free(<Request*>command)
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
    requests_release(loop)
    free(loop.buckets)
    scratch_release(&loop.scratch)
