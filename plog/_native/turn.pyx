"""A connection's turn: read, cut frames, take the steps of its requests, send.

Owns how much a connection may do before others have their turn, and the order of work within the thread:
`request_line` decides the next step, `produce_turn`, `fetch_turn` and `python_turn` take it. Never takes the
interpreter lock.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, ENOMEM
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdio cimport snprintf

from plog._native.callout_reasons cimport REASON_OTHER_API
from plog._native.closing cimport begin_close, end_stream, finish_close, let_go
from plog._native.connection cimport (
    FRAME_PARTIAL, FRAME_READY, FRAME_REFUSED, SENT_ENOUGH, SENT_FAILED, bytes_in_socket, drop_answers,
    holds_whole_frame, is_holding_much, next_frame, receive, send_queued, settle)
from plog._native.connections cimport count_up, give_up, note_passing, note_received, touch
from plog._native.epoll cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from plog._native.fetch_call cimport FETCH_KEY, FETCH_SINCE, FETCH_UNTIL
from plog._native.fetch_turn cimport fetch_look_again, fetch_look_at, fetch_respond
from plog._native.files cimport calls
from plog._native.gather cimport gather_is_due
from plog._native.lanes cimport wait_for
from plog._native.links cimport link_append, link_remove
from plog._native.memory_waits cimport may_receive
from plog._native.produce_call cimport PRODUCE_KEY, PRODUCE_SINCE, PRODUCE_UNTIL
from plog._native.produce_turn cimport (
    produce_look_again, produce_look_aside, produce_look_at, produce_respond, produce_take_in, write_gathered)
from plog._native.python_turn cimport python_ask
from plog._native.reactor_types cimport (
    DONE, KIND_FETCH, KIND_PRODUCE, LATER, NO_MEMORY, PREFIX_BYTES, REASON_BYTES, WRITE_FIRST, Done, Link)
from plog._native.request cimport RequestHead, read_head
from plog._native.request_line cimport (
    ANSWER, APPEND, ASK, CHECK, CHECK_ASIDE, CLOSE, DROP, MAX_UNSENT_BYTES, READ_LATER, READ_ON, REST, WAIT, WRITE, Step, line_count,
    line_has_gathered, line_owes_appends, line_step, request_advance)
from plog._native.request_stages cimport (
    ANSWERED, APPENDED, CLIENT_LEFT, FOUND_UNUSUAL, GATHERED, REFUSED, SHORT)
from plog._native.requests cimport request_cut, request_end, request_new, request_set_kind, request_stop_listening

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


# --- steps ----------------------------------------------------------------------------------------

cdef void give_up_broken(Loop* loop, Connection* c) noexcept nogil:
    cdef char text[REASON_BYTES]
    snprintf(text, REASON_BYTES, "internal error: event %d in stage %d of a request (docs/REQUESTS.md)",
             <int>c.line.broken_event, <int>c.line.broken_stage)
    count_up(&loop.broken, 1)
    give_up(loop, c, text)


cdef void give_up_malformed(Loop* loop, Request* request) noexcept nogil:
    cdef char text[REASON_BYTES]
    if request.kind == KIND_PRODUCE and request.produce.has_head:
        snprintf(text, REASON_BYTES, "ProduceRequest v%d: %s", <int>request.produce.head.version, request.produce.fault)
    elif request.kind == KIND_PRODUCE:
        snprintf(text, REASON_BYTES, "request header: %s", request.produce.fault)
    elif request.fetch.has_head:
        snprintf(text, REASON_BYTES, "FetchRequest v%d: %s", <int>request.fetch.head.version, request.fetch.fault)
    else:
        snprintf(text, REASON_BYTES, "request header: %s", request.fetch.fault)
    give_up(loop, request.connection, text)


cdef void look_again(Request* request, bint expired) noexcept nogil:
    if request.kind == KIND_PRODUCE:
        produce_look_again(request, expired)
    else:
        fetch_look_again(request, expired)


cdef Done respond(Loop* loop, Request* request) noexcept nogil:
    cdef Connection* c = request.connection
    cdef Done done = (
        produce_respond(loop, request) if request.kind == KIND_PRODUCE else fetch_respond(loop, request))
    if done != DONE or request.stage < REFUSED:
        return done
    request_advance(&c.line, request, ANSWERED)
    request_end(request)
    touch(loop, c)
    return DONE


cdef Step take_steps(Loop* loop, Connection* c) noexcept nogil:
    cdef Request* request = NULL
    cdef Step step
    cdef Done done = DONE
    while not (c.closing or c.dead):
        if c.line.is_broken:
            give_up_broken(loop, c)
            return REST
        step = line_step(c, loop.now_us, loop.winding_down, &request)
        if step == ANSWER:
            done = respond(loop, request)
        elif step == ASK:
            done = python_ask(loop, request)
        elif step == APPEND:
            done = produce_take_in(loop, request)
        elif step == WAIT:
            if not wait_for(loop, request):
                look_again(request, False)
        elif step == CLOSE:
            give_up_malformed(loop, request)
        elif step == DROP:
            request_advance(&c.line, request, CLIENT_LEFT)
            request_end(request)
        else:
            return step
        if done == WRITE_FIRST or loop.gather.is_full:
            return WRITE
        if done == LATER:
            return REST
        if done == NO_MEMORY:
            give_up(loop, c, b"out of memory for a request")
    return REST


cdef Step look_at_last(Loop* loop, Connection* c, bint aside) noexcept nogil:
    cdef Request* request = c.line.last
    cdef Done done = DONE
    if request.kind == KIND_PRODUCE:
        done = produce_look_aside(request) if aside else produce_look_at(loop, request)
    elif request.kind == KIND_FETCH:
        done = fetch_look_at(loop, request)
    elif request_cut(request):
        request_advance(&c.line, request, FOUND_UNUSUAL)
    else:
        done = NO_MEMORY
    if done == WRITE_FIRST:
        return WRITE
    if done == NO_MEMORY:
        give_up(loop, c, b"out of memory for a request")
        return REST
    count_up(&loop.requests, 1)
    return WRITE if loop.gather.is_full else take_steps(loop, c)


cdef void close_when_written(Loop* loop, Connection* c, const char* reason) noexcept nogil:
    if line_has_gathered(&c.line):
        write_gathered(loop)
        take_steps(loop, c)
    link_append(&loop.answering, &c.answering)
    begin_close(loop, c, reason)


cdef void run_out_of_memory(Loop* loop, Connection* c) noexcept nogil:
    c.abnormal = True
    close_when_written(loop, c, b"out of memory for a request")


# --- reading --------------------------------------------------------------------------------------

cdef bint take_frame(Loop* loop, Connection* c, int64_t size) noexcept nogil:
    """A request has come whole. False: no memory."""
    cdef const uint8_t* frame = c.buffer + c.start + PREFIX_BYTES
    cdef RequestHead head
    cdef const uint8_t* p = read_head(frame, frame + size, &head)
    cdef Request* request = request_new(loop, c)
    if request == NULL:
        return False
    request.size = size
    if loop.privileged == c:
        loop.privileged = NULL
    if p == NULL or loop.shared.served == NULL or not c.may_be_fast:
        request.reason = REASON_OTHER_API
    elif head.api_key == PRODUCE_KEY and PRODUCE_SINCE <= head.version <= PRODUCE_UNTIL:
        request_set_kind(request, KIND_PRODUCE)
    elif head.api_key == FETCH_KEY and FETCH_SINCE <= head.version <= FETCH_UNTIL:
        request_set_kind(request, KIND_FETCH)
    else:
        request.reason = REASON_OTHER_API
    return True


cdef void receive_failed(Loop* loop, Connection* c, int64_t n) noexcept nogil:
    """Nothing was received: the end of the stream, or an error."""
    cdef char text[96]
    if n == 0:
        c.peer_closed = True  # before the event that says so, perhaps
        end_stream(loop, c)
    elif n == -ENOMEM:
        run_out_of_memory(loop, c)
    elif c.gone and n != -EINTR:
        c.left_to_read = 0
    elif n != -EAGAIN and n != -EINTR:
        c.abnormal = n != -ECONNRESET
        snprintf(c.reason, REASON_BYTES, "receiving failed: %s", strerror_r(<int>-n, text, sizeof(text)))
        let_go(loop, c, NULL)


cdef bint receive_some(Loop* loop, Connection* c) noexcept nogil:
    """Read once. False: nothing more may be read in this turn."""
    cdef int64_t most
    cdef int64_t n
    if not c.readable:
        return False
    # The bytes of requests that are not written yet are in the buffer that would be read into.
    if line_count(&c.line, GATHERED) > 0:
        link_append(&loop.ready, &c.ready)
        return False
    if c.gone and c.left_to_read <= 0:
        end_stream(loop, c)
        return False
    most = may_receive(loop, c)
    if most == 0:
        return False
    if c.gone:
        most = min(most, c.left_to_read)
    n = receive(c, &loop.scratch, &loop.shared.budget, most)
    if n > 0:
        count_up(&loop.bytes_in, n)
        note_received(loop, c, n)
        c.left_to_read -= n
        return True
    receive_failed(loop, c, n)
    return n < 0 and n != -ENOMEM and not c.dead and not c.closing


cdef bint read_frame(Loop* loop, Connection* c, int* reads) noexcept nogil:
    """Cut the next request, or read once more. False: not in this turn."""
    cdef int64_t size = 0
    cdef int found = next_frame(c, loop.shared.max_request_bytes, &size)
    if found == FRAME_READY:
        if take_frame(loop, c, size):
            return True
        run_out_of_memory(loop, c)
        return False
    if found == FRAME_REFUSED:
        write_gathered(loop)
        take_steps(loop, c)
        if c.line.first == NULL and not c.dead:
            begin_close(loop, c, NULL)  # else those before it are answered first
        return False
    if reads[0] == READS_PER_TURN:
        link_append(&loop.ready, &c.ready)
        return False
    reads[0] += 1
    return receive_some(loop, c)


cdef void read_on(Loop* loop, Connection* c) noexcept nogil:
    cdef int64_t begun_us = calls().monotonic_us()
    cdef int reads = 0
    cdef Step step = take_steps(loop, c)
    while step != REST and not c.dead:
        if step == WRITE:
            write_gathered(loop)
            step = take_steps(loop, c)
        elif step == CHECK or step == CHECK_ASIDE:
            step = look_at_last(loop, c, step == CHECK_ASIDE)
            touch(loop, c)
            if calls().monotonic_us() - begun_us >= TURN_US:
                link_append(&loop.ready, &c.ready)
                return
        elif step == READ_LATER:
            link_append(&loop.muted, &c.waiting)
            loop.next_unmute_us = min(loop.next_unmute_us, c.muted_until_us)
            return
        else:
            step = take_steps(loop, c) if read_frame(loop, c, &reads) else REST


# --- sending --------------------------------------------------------------------------------------

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


# --- the turn -------------------------------------------------------------------------------------

cdef bint nothing_unread(Connection* c) noexcept nogil:
    if c.gone:
        return not holds_whole_frame(c)
    return c.start == c.end and bytes_in_socket(c) == 0


cdef bint keeps_its_client_waiting(Connection* c) noexcept nogil:
    if c.closing:
        return False
    if c.line.first == NULL:
        # Muted, or short of memory: the broker does not read what has come.
        return c.waiting.next != &c.waiting and holds_whole_frame(c)
    # Behind its request one whose peer has closed may hold others, but no half one.
    return not c.peer_closed or line_owes_appends(&c.line) or holds_whole_frame(c)


cdef bint waits_for_nobody(Connection* c) noexcept nogil:
    """Of one whose peer has closed, if only for sending: it is taken to have gone.

    Requests that came before the end of the stream (acks=0) are still handed over, and the end is found when the
    last of them has been read.
    """
    return c.line.first != NULL and not line_owes_appends(&c.line) and nothing_unread(c)


cdef void serve(Loop* loop, Connection* c) noexcept nogil:
    if not c.dead and not c.closing:
        read_on(loop, c)
    if c.dead:
        return
    link_append(&loop.answering, &c.answering)
    if settle(c, &loop.scratch, &loop.shared.budget) < 0:
        run_out_of_memory(loop, c)
    elif c.peer_closed and not c.closing and waits_for_nobody(c):
        begin_close(loop, c, <const char*>NULL if c.gone else <const char*>b"closed by the peer before its response")
    elif loop.gather.request_count > 0 and (is_holding_much(&loop.scratch) or gather_is_due(&loop.gather)):
        write_gathered(loop)


cdef void serve_waiting(Loop* loop, Request* request, bint expired) noexcept nogil:
    cdef Connection* c = request.connection
    if expired:
        request_stop_listening(request)  # even if it is not answered, as while the connection closes
    # A letter may be late: the wait has ended for another reason, or the connection closes.
    if request.stage == APPENDED or request.stage == SHORT:
        look_again(request, expired)
    serve(loop, c)


cdef bint goes_on(Loop* loop, Connection* c, Step step) noexcept nogil:
    """Whether there is something for this step, though no event says so again."""
    cdef int64_t size = 0
    if step == REST or c.waiting.next != &c.waiting:
        return False
    if step != READ_ON or c.readable or c.peer_closed:
        return True
    return next_frame(c, loop.shared.max_request_bytes, &size) != FRAME_PARTIAL


cdef Step finish_turn(Loop* loop, Connection* c) noexcept nogil:
    """After the write: take the steps that it brings, and send. WRITE: there is more to write first."""
    cdef bint held_back = c.unsent_bytes > MAX_UNSENT_BYTES
    cdef Step step = take_steps(loop, c)
    if step == WRITE:
        link_append(&loop.answering, &c.answering)
        return WRITE
    if goes_on(loop, c, step):
        link_append(&loop.ready, &c.ready)
    if not send_some(loop, c):
        return REST
    if c.closing and c.first == NULL:
        finish_close(loop, c, NULL)
    elif held_back and c.unsent_bytes <= MAX_UNSENT_BYTES:
        # Requests that are here already announce themselves by no event.
        link_append(&loop.ready, &c.ready)
    return REST


cdef void send_answers(Loop* loop) noexcept nogil:
    cdef Link* first
    cdef Step step
    while loop.gather.request_count > 0 or loop.answering.next != &loop.answering:
        if loop.gather.request_count > 0:
            write_gathered(loop)
        step = REST
        while loop.answering.next != &loop.answering and step == REST:
            first = loop.answering.next
            link_remove(first)
            step = finish_turn(loop, first.owner)


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
        if line_count(&c.line, GATHERED) > 0:
            write_gathered(loop)
    if events & EPOLLIN:
        c.readable = True
    if events & EPOLLOUT:
        c.writable = True
    serve(loop, c)
