"""What a reactor's thread does for one connection: read, cut frames, gather or hand over, send, close.

Owns the rules of who may read: one request out at a time, answers taken before
more is asked, muted ones later; `memory_waits` says who may while memory is short.
Runs in the thread that owns the connection, and never takes the interpreter lock.
What the fast path answers (`fast_turn`) is not handed over.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, ENOMEM
from libc.stdint cimport int64_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc

from plog._native.acceptor cimport door_leave
from plog._native.connection cimport (
    FRAME_READY, FRAME_REFUSED, SENT_ENOUGH, SENT_FAILED, bytes_in_socket, connection_shut, cut_frame, drop_answers,
    holds_whole_frame, is_holding_much, let_go_of_buffers, link_append, link_remove, next_frame, receive, send_queued,
    settle)
from plog._native.files cimport calls
from plog._native.fast_turn cimport (
    FAST_AFTER_WRITE, FAST_ANSWERED, FAST_NO_MEMORY, FAST_PASSED, FAST_WAITS, FastOutcome, fast_answer,
    fast_conclude, fast_drop, fast_give_up,
)
from plog._native.gather cimport gather_clear, gather_is_due, gather_write
from plog._native.locks cimport add as atomic_add
from plog._native.log_append cimport AppendResult
from plog._native.memory_waits cimport COMES_ON_BYTES, may_receive
from plog._native.notes cimport add_note, note_free, note_new, note_text
from plog._native.produce_path cimport ProduceCall, produce_part
from plog._native.reactor_types cimport (
    EVENT_LEFT, EVENT_REQUEST, REASON_BYTES, Connection, Frame, Gather, Loop, Note, Shared)

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_ctl(int epoll_fd, int op, int fd, epoll_event* event)
    enum:
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLRDHUP

cdef extern from "<sys/socket.h>" nogil:
    ctypedef uint32_t socklen_t
    int getsockopt(int fd, int level, int option, void* value, socklen_t* size)
    enum:
        SOL_SOCKET
        SO_ERROR

cdef extern from "<string.h>" nogil:
    char* strerror_r(int error, char* text, size_t size)  # GNU's, which returns the text

cdef enum:
    # Turns are bounded, so that no connection keeps a reactor from the others.
    READS_PER_TURN = 4
    SENT_PER_TURN = 4 * 1024 * 1024
    TURN_US = 2000
    # The next request of a connection waits until its peer has taken the answers before, but for so much.
    UNSENT_BYTES_TO_READ_ON = 256 * 1024
    # Produces of one connection that wait.
    MOST_PARKED = 64
    # Of one connection beside the reactor at once: what Java sends in flight, less the one that is on its way.
    MOST_IN_WORK = 4


# --- connections by id ----------------------------------------------------------------------------

cdef inline Connection** bucket_of(Loop* loop, int64_t id) noexcept nogil:
    # Ids go round robin over the loops, so within one loop these are consecutive.
    return &loop.buckets[(id // loop.shared.threads) & (loop.bucket_count - 1)]


cdef Connection* find(Loop* loop, int64_t id) noexcept nogil:
    cdef Connection* c = bucket_of(loop, id)[0]
    while c != NULL and c.id != id:
        c = c.next_in_bucket
    return c


cdef void enter(Loop* loop, Connection* c) noexcept nogil:
    cdef Connection** at
    cdef Connection** old = loop.buckets
    cdef int64_t old_count = loop.bucket_count
    cdef Connection** fresh
    cdef Connection* moved
    cdef Connection* next_moved
    cdef int64_t i
    if loop.connections >= old_count:
        fresh = <Connection**>calloc(2 * old_count, sizeof(Connection*))
        if fresh != NULL:  # else the chains grow longer
            loop.buckets = fresh
            loop.bucket_count = 2 * old_count
            for i in range(old_count):
                moved = old[i]
                while moved != NULL:
                    next_moved = moved.next_in_bucket
                    at = bucket_of(loop, moved.id)
                    moved.next_in_bucket = at[0]
                    at[0] = moved
                    moved = next_moved
            free(old)
    at = bucket_of(loop, c.id)
    c.next_in_bucket = at[0]
    at[0] = c
    loop.connections += 1


cdef void leave(Loop* loop, Connection* c) noexcept nogil:
    cdef Connection** at = bucket_of(loop, c.id)
    while at[0] != c:
        at = &at[0].next_in_bucket
    at[0] = c.next_in_bucket
    loop.connections -= 1


# --- life and death -------------------------------------------------------------------------------

cdef void note_passing(Loop* loop, Connection* c) noexcept nogil:
    c.active_us = loop.now_us
    link_append(&loop.by_activity, &c.by_activity)


cdef void touch(Loop* loop, Connection* c) noexcept nogil:
    note_passing(loop, c)
    c.came_on_us = loop.now_us
    c.slow_bytes = 0


cdef void note_received(Loop* loop, Connection* c, int64_t size) noexcept nogil:
    c.received_us = loop.now_us
    c.slow_bytes += size
    if c.slow_bytes >= COMES_ON_BYTES or c.end - c.start == size:  # it comes on, or begins
        touch(loop, c)
    else:
        note_passing(loop, c)


cdef bint watch(Loop* loop, int fd, uint32_t events, void* source) noexcept nogil:
    cdef epoll_event event
    event.events = events
    event.data.ptr = source
    return epoll_ctl(loop.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0


cdef void discard(Shared* shared, Connection* c) noexcept nogil:
    atomic_add(&shared.door.refused, 1)
    connection_shut(c, NULL, &shared.budget)
    door_leave(&shared.door, c.listener_id, c.address)
    if c.opened != NULL:
        note_free(c.opened)
    if c.closed != NULL:
        note_free(c.closed)
    free(c)


cdef void finish_close(Loop* loop, Connection* c, const char* reason) noexcept nogil:
    """Close now. `reason` NULL: the connection holds it."""
    cdef Note* note = c.closed
    if c.gathered > 0:
        write_gathered(loop)  # what has come whole is appended
    if c.dead:
        return
    c.dead = True
    fast_drop(c)
    # By hand, since a process forked from this one may hold the socket, and then close alone leaves it watched.
    epoll_ctl(loop.epoll_fd, EPOLL_CTL_DEL, c.fd, NULL)
    leave(loop, c)
    link_remove(&c.by_activity)
    link_remove(&c.ready)
    link_remove(&c.waiting)
    link_remove(&c.answering)
    if loop.privileged == c:
        loop.privileged = NULL
    connection_shut(c, &loop.scratch, &loop.shared.budget)
    door_leave(&loop.shared.door, c.listener_id, c.address)
    note.abnormal = c.abnormal
    snprintf(note_text(note), REASON_BYTES, "%s", reason if reason != NULL else <const char*>c.reason)
    c.closed = NULL
    add_note(loop, note)
    count_up(&loop.closed, 1)
    c.next_in_bucket = loop.grave
    loop.grave = c


cdef void begin_close(Loop* loop, Connection* c, const char* reason) noexcept nogil:
    """Close once what is queued has been sent; read no more. `reason` NULL: the connection holds it."""
    if reason != NULL and not c.closing:
        snprintf(c.reason, REASON_BYTES, "%s", reason)
    if c.gathered > 0:
        write_gathered(loop)
    c.closing = True
    if c.first == NULL:
        finish_close(loop, c, NULL)


cdef void let_go(Loop* loop, Connection* c, const char* reason) noexcept nogil:
    cdef Note* note
    if c.gone:
        return
    if reason != NULL:
        snprintf(c.reason, REASON_BYTES, "%s", reason)
    if c.closing:  # only for its answers to be sent
        finish_close(loop, c, NULL)
        return
    # Linux keeps what came before a reset, and gives it before the error.
    c.gone = c.peer_closed = c.readable = True
    c.left_to_read = bytes_in_socket(c)
    drop_answers(c)
    note = note_new(EVENT_LEFT, c, 0)
    if note != NULL:  # else handlers wait on, in vain
        add_note(loop, note)
    link_append(&loop.ready, &c.ready)


cdef void end_stream(Loop* loop, Connection* c) noexcept nogil:
    """Close: no more will be read. What has been read whole is appended first."""
    if owes_work(c):
        return
    if c.gone:
        begin_close(loop, c, NULL)
    else:
        begin_close(loop, c, b"closed by the peer" if c.start == c.end
                    else b"closed by the peer in the middle of a request")


cdef void close_for_memory(Loop* loop, Connection* c) noexcept nogil:
    c.abnormal = True
    begin_close(loop, c, b"out of memory for a request")


# --- the turn -------------------------------------------------------------------------------------

cdef bint may_read(Loop* loop, Connection* c) noexcept nogil:
    if c.handed_over or c.closing or loop.winding_down or c.unsent_bytes > UNSENT_BYTES_TO_READ_ON:
        return False
    if c.works_alone or c.in_work >= MOST_IN_WORK:
        return False
    # While Produces wait, further ones are read; the end of the stream is found once they are answered.
    if c.parked != NULL and (c.held_up or c.peer_closed or c.parked_count >= MOST_PARKED):
        return False
    if c.muted_until_us > loop.now_us:
        link_append(&loop.muted, &c.waiting)
        loop.next_unmute_us = min(loop.next_unmute_us, c.muted_until_us)
        return False
    return True


cdef bint tell_appended(Note* note, const ProduceCall* call) noexcept nogil:
    """What the fast path has appended of the request is not to be appended again. False: no memory."""
    cdef int64_t number
    if call.appended == 0:
        return True
    note.appended = <AppendResult*>malloc(call.appended * sizeof(AppendResult))
    if note.appended == NULL:
        return False
    for number in range(call.appended):
        note.appended[number] = produce_part(call, number).result
    note.appended_count = call.appended
    return True


cdef bint hand_over(Loop* loop, Connection* c, int64_t size) noexcept nogil:
    """Give the frame at the buffer's start to Python. False: no memory."""
    cdef Frame frame
    if cut_frame(c, size, &loop.shared.budget, &frame.base, &frame.data, &frame.capacity) < 0:
        return False
    frame.size = size
    frame.received_us = c.received_us
    c.handed_over = True
    count_up(&loop.requests, 1)
    return hand_over_frame(loop, c, &frame)


cdef bint hand_over_frame(Loop* loop, Connection* c, Frame* frame) noexcept nogil:
    cdef Note* note = note_new(EVENT_REQUEST, c, 0)
    if note == NULL or not tell_appended(note, &loop.produce):
        atomic_add(&loop.shared.budget.frame_bytes, -frame.capacity)
        free(frame.base)
        free(note)
        return False
    note.base = frame.base
    note.data = frame.data
    note.size = frame.size
    note.capacity = frame.capacity
    note.session_id = loop.session_id
    note.session_epoch = loop.session_epoch
    note.received_us = frame.received_us
    add_note(loop, note)
    return True


cdef bint send_some(Loop* loop, Connection* c) noexcept nogil:
    """Send of what is queued as much as a turn may. False: the connection is closed."""
    cdef int64_t sent = 0
    cdef int found
    if c.gone:
        drop_answers(c)
        return True
    if c.first == NULL or not c.writable:
        return True
    found = send_queued(c, SENT_PER_TURN, &loop.scratch, &sent)
    if sent > 0:
        count_up(&loop.bytes_out, sent)
        note_passing(loop, c)
    if found == SENT_FAILED:
        let_go(loop, c, NULL)
        return not c.dead
    if found == SENT_ENOUGH:
        link_append(&loop.ready, &c.ready)
    return True


cdef void write_gathered(Loop* loop) noexcept nogil:
    cdef Gather* gather = &loop.gather
    cdef Connection* c
    cdef Frame frame
    cdef FastOutcome outcome
    cdef int64_t now_ms
    cdef int64_t number
    cdef bint was_held_up
    if gather.request_count == 0 or loop.is_writing:
        return
    loop.is_writing = True
    gather_write(gather)
    now_ms = calls().now_ms()
    for number in range(gather.request_count):
        c = gather.requests[number].connection
        was_held_up = c.held_up
        outcome = fast_conclude(loop, &gather.requests[number], now_ms, &frame)
        # It was not read on while this one was parked: no event says so again.
        if (c.peer_closed or was_held_up and not c.held_up) and not c.dead:
            link_append(&loop.ready, &c.ready)
        if outcome == FAST_ANSWERED:
            link_append(&loop.answering, &c.answering)
        elif outcome == FAST_NO_MEMORY or (outcome == FAST_PASSED and not hand_over_frame(loop, c, &frame)):
            # Not at once: further requests of it may be among those that are concluded.
            c.closing = c.abnormal = True
            snprintf(c.reason, REASON_BYTES, "out of memory for a request")
            link_append(&loop.answering, &c.answering)
    gather_clear(gather)
    let_go_of_buffers(&loop.scratch, &loop.shared.budget)
    loop.is_writing = False


cdef void read_on(Loop* loop, Connection* c) noexcept nogil:
    """Read, cut and answer, gather or hand over."""
    cdef int64_t size = 0
    cdef int64_t most
    cdef int64_t n
    cdef int reads = 0
    cdef int found
    cdef int64_t begun_us = calls().monotonic_us()
    cdef FastOutcome outcome
    cdef char text[96]
    while may_read(loop, c):
        found = next_frame(c, loop.shared.max_request_bytes, &size)
        if found == FRAME_READY:
            if loop.privileged == c:
                loop.privileged = NULL
            outcome = fast_answer(loop, c, size)
            if outcome == FAST_AFTER_WRITE or loop.gather.is_full:
                write_gathered(loop)
            elif outcome == FAST_NO_MEMORY or (outcome == FAST_PASSED and not hand_over(loop, c, size)):
                close_for_memory(loop, c)
                return
            elif outcome == FAST_WAITS or outcome == FAST_PASSED:
                return
            touch(loop, c)
            if calls().monotonic_us() - begun_us >= TURN_US:
                link_append(&loop.ready, &c.ready)
                return
            continue
        if found == FRAME_REFUSED:
            write_gathered(loop)
            if c.parked != NULL:
                c.held_up = True  # those before it are answered first
            else:
                begin_close(loop, c, NULL)
            return
        if not c.readable:
            return
        # The bytes of requests that are not written yet are in the buffer that would be read into.
        if reads == READS_PER_TURN or c.gathered > 0:
            link_append(&loop.ready, &c.ready)
            return
        if c.gone and c.left_to_read <= 0:
            end_stream(loop, c)
            return
        most = may_receive(loop, c)
        if most == 0:
            return
        if c.gone:
            most = min(most, c.left_to_read)
        n = receive(c, &loop.scratch, &loop.shared.budget, most)
        reads += 1
        if n > 0:
            count_up(&loop.bytes_in, n)
            note_received(loop, c, n)
            c.left_to_read -= n
        elif n == 0:
            c.peer_closed = True  # before the event that says so, perhaps
            end_stream(loop, c)
            return
        elif n == -ENOMEM:
            close_for_memory(loop, c)
            return
        elif c.gone and n != -EINTR:
            c.left_to_read = 0
        elif n != -EAGAIN and n != -EINTR:
            c.abnormal = n != -ECONNRESET
            snprintf(c.reason, REASON_BYTES, "receiving failed: %s", strerror_r(<int>-n, text, sizeof(text)))
            let_go(loop, c, NULL)


cdef bint owes_work(const Connection* c) noexcept nogil:
    """What has come whole is appended, whether or not its client still waits."""
    return c.unappended > 0 or c.in_work > 0 or c.gathered > 0


cdef bint nothing_unread(Connection* c) noexcept nogil:
    if c.gone:
        return not holds_whole_frame(c)
    return c.start == c.end and bytes_in_socket(c) == 0


cdef bint keeps_its_client_waiting(Connection* c) noexcept nogil:
    if c.closing:
        return False
    if not (c.handed_over or c.parked != NULL):
        # Muted, or short of memory: the broker does not read what has come.
        return c.waiting.next != &c.waiting and holds_whole_frame(c)
    # Behind its request one whose peer has closed may hold others, but no half one.
    return not c.peer_closed or owes_work(c) or holds_whole_frame(c)


cdef bint waits_for_nobody(Connection* c) noexcept nogil:
    """Of one whose peer has closed, if only for sending: it is taken to have gone.

    Requests that came before the end of the stream (acks=0) are still handed over, and the end is found when the
    last of them has been read.
    """
    return (c.handed_over or c.parked != NULL) and not owes_work(c) and nothing_unread(c)


cdef void serve(Loop* loop, Connection* c) noexcept nogil:
    if not c.dead and not c.closing:
        read_on(loop, c)
    if c.dead:
        return
    if c.gone and not c.closing and fast_give_up(c):
        link_append(&loop.ready, &c.ready)
    link_append(&loop.answering, &c.answering)
    if settle(c, &loop.scratch, &loop.shared.budget) < 0:
        close_for_memory(loop, c)
    elif c.peer_closed and not c.closing and waits_for_nobody(c):
        begin_close(loop, c, <const char*>NULL if c.gone else <const char*>b"closed by the peer before its response")
    elif is_holding_much(&loop.scratch) or gather_is_due(&loop.gather):
        write_gathered(loop)


cdef void send_answers(Loop* loop) noexcept nogil:
    cdef Connection* c
    cdef bint held_back
    write_gathered(loop)
    while loop.answering.next != &loop.answering:
        c = loop.answering.next.owner
        link_remove(&c.answering)
        held_back = c.unsent_bytes > UNSENT_BYTES_TO_READ_ON
        if not send_some(loop, c):
            continue
        if c.closing and c.first == NULL:
            finish_close(loop, c, NULL)
        elif held_back and c.unsent_bytes <= UNSENT_BYTES_TO_READ_ON:
            # Requests that are here already announce themselves by no event.
            link_append(&loop.ready, &c.ready)


cdef void on_event(Loop* loop, Connection* c, uint32_t events) noexcept nogil:
    cdef int error = 0
    cdef socklen_t size = sizeof(error)
    cdef char text[96]
    if c.dead:
        return
    if events & (EPOLLERR | EPOLLHUP):
        getsockopt(c.fd, SOL_SOCKET, SO_ERROR, &error, &size)
        if error != 0:
            snprintf(c.reason, REASON_BYTES, "%s", strerror_r(error, text, sizeof(text)))
        else:
            snprintf(c.reason, REASON_BYTES, "closed by the peer")
        let_go(loop, c, NULL)
        if c.dead:
            return
    if events & EPOLLRDHUP:
        c.peer_closed = True
        c.readable = True
        if c.gathered > 0:
            write_gathered(loop)
    if events & EPOLLIN:
        c.readable = True
    if events & EPOLLOUT:
        c.writable = True
    serve(loop, c)
