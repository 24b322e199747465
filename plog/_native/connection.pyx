"""One client connection: bytes into frames, answers into bytes.

Owns the receive buffer, the queue of answers and the socket. Never waits, knows
no other connection, and never takes the interpreter lock. A frame's memory grows
with the bytes that have really come, not with what its length field says.
"""

from libc.errno cimport EAGAIN, ECONNRESET, EINTR, ENOMEM, EPIPE, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.unistd cimport close

from plog._native.acceptor cimport ADDRESS_BYTES
from plog._native.links cimport link_init
from plog._native.locks cimport add as atomic_add
from plog._native.plain_transport cimport plain_transport
from plog._native.reactor_types cimport (
    MOST_FREE_BUFFERS, PREFIX_BYTES, REASON_BYTES, Budget, Connection, HeldBuffer, Piece, Scratch)
from plog._native.request_line cimport line_count
from plog._native.request_stages cimport GATHERED
from plog._native.wire cimport be32

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    enum:
        MSG_DONTWAIT
        MSG_PEEK

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)
    enum:
        FIONREAD

cdef extern from "<string.h>" nogil:
    char* strerror_r(int error, char* text, size_t size)  # GNU's, which returns the text

cdef enum:
    SMALLEST_BUFFER_BYTES = 512
    # Several requests of most kinds at once, and Java's largest whole.
    RECEIVE_BYTES = 1024 * 1024 + 64 * 1024
    # Sooner moved than received into a buffer of their own.
    FEW_BYTES = 16 * 1024
    # Requests of such a size are read one by one, each with the beginning of the next: more of that would be moved.
    LARGE_REQUEST_BYTES = 128 * 1024
    # A socket that has never held more takes such a request whole.
    SMALL_REQUEST_BYTES = 32 * 1024
    AHEAD_BYTES = 4096
    # A request that is partly there has a buffer of no more than so many times what has come.
    MOST_SPACIOUS = 4
    SHARED_ANSWER_BYTES = 2048


# --- life -----------------------------------------------------------------------------------------

cdef Connection* connection_new(int fd, int64_t id, int listener_id, const uint8_t* address) noexcept nogil:
    cdef Connection* c = <Connection*>calloc(1, sizeof(Connection))
    if c == NULL:
        return NULL
    c.fd = fd
    c.id = id
    c.listener_id = listener_id
    c.transport = plain_transport()
    memcpy(c.address, address, ADDRESS_BYTES)
    link_init(&c.by_activity, c)
    link_init(&c.ready, c)
    link_init(&c.answering, c)
    link_init(&c.waiting, c)
    link_init(&c.by_deadline, c)
    return c


cdef void connection_shut(Connection* c, Scratch* scratch, Budget* budget) noexcept nogil:
    close(c.fd)
    c.fd = -1
    drop_buffer(c, scratch, budget)
    drop_answers(c)


# --- reading --------------------------------------------------------------------------------------

cdef inline int64_t bytes_needed(const Connection* c) noexcept nogil:
    """What the frame at `start` takes in all, or the prefix alone while that is not there. Its size was checked."""
    if c.end - c.start < PREFIX_BYTES:
        return PREFIX_BYTES
    return PREFIX_BYTES + <int64_t>be32(c.buffer + c.start)


cdef void give_back(Scratch* scratch, uint8_t* data, int64_t capacity, bint borrowed, Budget* budget) noexcept nogil:
    if not borrowed:
        atomic_add(&budget.buffer_bytes, -capacity)
    if capacity == RECEIVE_BYTES and scratch.free_count < MOST_FREE_BUFFERS:
        scratch.free_buffers[scratch.free_count] = data
        scratch.free_count += 1
    else:
        free(data)


cdef void part_with(
        Connection* c, Scratch* scratch, uint8_t* data, int64_t capacity, bint borrowed, Budget* budget) noexcept nogil:
    """A buffer that the connection does not use any more."""
    cdef HeldBuffer* held
    if line_count(&c.line, GATHERED) == 0:
        give_back(scratch, data, capacity, borrowed, budget)
        return
    held = &scratch.held[scratch.held_count]
    held.data = data
    held.capacity = capacity
    held.borrowed = borrowed
    scratch.held_count += 1


cdef void let_go_of_buffers(Scratch* scratch, Budget* budget) noexcept nogil:
    while scratch.held_count > 0:
        scratch.held_count -= 1
        give_back(scratch, scratch.held[scratch.held_count].data, scratch.held[scratch.held_count].capacity,
                  scratch.held[scratch.held_count].borrowed, budget)


cdef void scratch_release(Scratch* scratch) noexcept nogil:
    while scratch.free_count > 0:
        scratch.free_count -= 1
        free(scratch.free_buffers[scratch.free_count])
    free(scratch.send_buffer)


cdef void drop_buffer(Connection* c, Scratch* scratch, Budget* budget) noexcept nogil:
    if c.buffer != NULL:
        part_with(c, scratch, c.buffer, c.capacity, c.borrowed, budget)
    c.buffer = NULL
    c.borrowed = False
    c.start = 0
    c.end = 0
    c.capacity = 0


cdef int borrow(Connection* c, Scratch* scratch, Budget* budget) noexcept nogil:
    """Let the connection read into a buffer of the scratch's. The few bytes that it has move there."""
    cdef int64_t rest = c.end - c.start
    cdef uint8_t* data
    if scratch.free_count > 0:
        scratch.free_count -= 1
        data = scratch.free_buffers[scratch.free_count]
    else:
        data = <uint8_t*>malloc(RECEIVE_BYTES)
        if data == NULL:
            return -ENOMEM
    if rest > 0:
        memcpy(data, c.buffer + c.start, rest)
    drop_buffer(c, scratch, budget)
    c.buffer = data
    c.capacity = RECEIVE_BYTES
    c.borrowed = True
    c.end = rest
    return 0


cdef int own_rest(Connection* c, int64_t capacity, Budget* budget) noexcept nogil:
    """Move the bytes from start to end into a buffer of the connection's own; the old one stays with the caller."""
    cdef int64_t rest = c.end - c.start
    cdef uint8_t* fresh = <uint8_t*>malloc(capacity)
    if fresh == NULL:
        return -ENOMEM
    memcpy(fresh, c.buffer + c.start, rest)
    atomic_add(&budget.buffer_bytes, capacity)
    c.buffer = fresh
    c.borrowed = False
    c.start = 0
    c.end = rest
    c.capacity = capacity
    return 0


cdef void move_to_front(Connection* c) noexcept nogil:
    memmove(c.buffer, c.buffer + c.start, c.end - c.start)
    c.end -= c.start
    c.start = 0


cdef int make_room(Connection* c, Scratch* scratch, Budget* budget) noexcept nogil:
    """Let the buffer, which is full, take at least one byte more of the frame at its start."""
    cdef int64_t capacity
    cdef uint8_t* grown = c.buffer
    if c.start > 0:
        move_to_front(c)
        return 0
    # Twice what has come, but no more than the frame takes.
    capacity = min(bytes_needed(c), 2 * c.capacity)
    if c.borrowed:
        if own_rest(c, capacity, budget) < 0:
            return -ENOMEM
        give_back(scratch, grown, RECEIVE_BYTES, True, budget)
        return 0
    grown = <uint8_t*>realloc(c.buffer, capacity)
    if grown == NULL:
        return -ENOMEM
    atomic_add(&budget.buffer_bytes, capacity - c.capacity)
    c.buffer = grown
    c.capacity = capacity
    return 0


cdef int64_t worth_asking(Connection* c) noexcept nogil:
    cdef int64_t room = c.capacity - c.end
    cdef int64_t needed = bytes_needed(c)
    if c.end - c.start < PREFIX_BYTES:
        return min(room, <int64_t>AHEAD_BYTES) if c.reads_large else room
    c.reads_large = needed >= LARGE_REQUEST_BYTES
    return min(room, c.start + needed - c.end + AHEAD_BYTES) if c.reads_large else room


cdef int64_t receive(Connection* c, Scratch* scratch, Budget* budget, int64_t most) noexcept nogil:
    cdef int64_t asked
    cdef int64_t n
    # Most requests come whole and leave at once: they pass through memory that is shared and warm.
    if c.buffer == NULL or (not c.borrowed and c.end - c.start <= FEW_BYTES):
        if borrow(c, scratch, budget) < 0:
            return -ENOMEM
    elif c.end - c.start <= FEW_BYTES and bytes_needed(c) > c.capacity - c.start:
        move_to_front(c)
    elif c.end == c.capacity and make_room(c, scratch, budget) < 0:
        return -ENOMEM
    asked = min(worth_asking(c), most)
    n = c.transport.receive(c, c.buffer + c.end, asked)
    if n > 0:
        c.end += n
        # A short read has emptied the kernel's queue: what comes later is a new edge. The end of the stream,
        # once announced, is not.
        if n < asked and not c.peer_closed:
            c.readable = False
    elif n == -EAGAIN:
        c.readable = False
    return n


cdef int64_t bytes_in_socket(const Connection* c) noexcept nogil:
    cdef int unread = 0
    return unread if ioctl(c.fd, FIONREAD, &unread) == 0 else 0


cdef bint holds_whole_frame(const Connection* c) noexcept nogil:
    cdef int64_t come = c.end - c.start + bytes_in_socket(c)
    cdef uint8_t[PREFIX_BYTES] prefix
    if come < PREFIX_BYTES:
        return False
    if c.start == c.end:
        if recv(c.fd, prefix, PREFIX_BYTES, MSG_PEEK | MSG_DONTWAIT) < PREFIX_BYTES:
            return True
        return come >= PREFIX_BYTES + <int64_t>be32(prefix)
    return c.end - c.start < PREFIX_BYTES or come >= bytes_needed(c)


cdef int64_t rest_of_small_frame(const Connection* c) noexcept nogil:
    cdef int64_t come = c.end - c.start
    cdef int64_t needed
    cdef uint8_t[PREFIX_BYTES] prefix
    if come >= PREFIX_BYTES:
        needed = bytes_needed(c)
    elif come == 0 and recv(c.fd, prefix, PREFIX_BYTES, MSG_PEEK | MSG_DONTWAIT) == PREFIX_BYTES:
        needed = PREFIX_BYTES + <int64_t>be32(prefix)
    else:
        return 0
    return needed - come if needed <= SMALL_REQUEST_BYTES and bytes_in_socket(c) >= needed - come else 0


cdef int next_frame(Connection* c, int64_t max_request_bytes, int64_t* size) noexcept nogil:
    cdef const uint8_t* p
    cdef int32_t asked
    cdef const char* guess = ""
    if c.end - c.start < PREFIX_BYTES:
        return FRAME_PARTIAL
    p = c.buffer + c.start
    asked = <int32_t>be32(p)
    if asked < 0 or asked > max_request_bytes:
        if p[0] == 0x16 and p[1] == 3:
            guess = " (looks like TLS)"
        elif b"A"[0] <= p[0] <= b"Z"[0] and b"A"[0] <= p[1] <= b"Z"[0] and b"A"[0] <= p[2] <= b"Z"[0]:
            guess = " (looks like HTTP)"
        if asked < 0:
            snprintf(c.reason, REASON_BYTES, "request of negative size %d%s", asked, guess)
        else:
            snprintf(c.reason, REASON_BYTES, "request of %d bytes exceeds socket.request.max.bytes %lld%s",
                     asked, <long long>max_request_bytes, guess)
        c.abnormal = True
        return FRAME_REFUSED
    if c.end - c.start - PREFIX_BYTES < asked:
        return FRAME_PARTIAL
    size[0] = asked
    return FRAME_READY


cdef int cut_frame(
        Connection* c, int64_t size, Budget* budget, void** base, uint8_t** data, int64_t* capacity) noexcept nogil:
    cdef int64_t total = PREFIX_BYTES + size
    cdef int64_t rest = c.end - c.start - total
    cdef uint8_t* whole = c.buffer
    cdef uint8_t* copy
    data[0] = c.buffer + c.start + PREFIX_BYTES
    if not c.borrowed and total >= c.capacity - c.capacity // 4:
        # The frame is nearly the whole buffer: it takes the buffer along, and the few bytes behind it move.
        capacity[0] = c.capacity
        c.start += total
        if rest > 0:
            if own_rest(c, rest, budget) < 0:
                c.start -= total
                return -ENOMEM
        else:
            c.buffer = NULL
            c.start = 0
            c.end = 0
            c.capacity = 0
        base[0] = whole
        atomic_add(&budget.frame_bytes, capacity[0])
        atomic_add(&budget.buffer_bytes, -capacity[0])
        return 0
    capacity[0] = size if size > 0 else 1
    copy = <uint8_t*>malloc(capacity[0])
    if copy == NULL:
        return -ENOMEM
    memcpy(copy, data[0], size)
    base[0] = copy
    data[0] = copy
    c.start += total
    atomic_add(&budget.frame_bytes, capacity[0])
    return 0


cdef void drop_frame(Connection* c, int64_t size) noexcept nogil:
    c.start += PREFIX_BYTES + size
    if c.start == c.end:
        c.start = 0
        c.end = 0


cdef int settle(Connection* c, Scratch* scratch, Budget* budget) noexcept nogil:
    cdef int64_t rest = c.end - c.start
    cdef int64_t needed
    cdef uint8_t* data = c.buffer
    if rest == 0:
        drop_buffer(c, scratch, budget)
        return 0
    if not c.borrowed:
        return 0
    needed = bytes_needed(c)
    if rest < needed <= c.capacity - c.start and MOST_SPACIOUS * rest >= c.capacity and line_count(&c.line, GATHERED) == 0:
        c.borrowed = False
        atomic_add(&budget.buffer_bytes, c.capacity)
        return 0
    if own_rest(c, rest if needed <= rest else min(needed, max(2 * rest, SMALLEST_BUFFER_BYTES)), budget) < 0:
        return -ENOMEM
    part_with(c, scratch, data, RECEIVE_BYTES, True, budget)
    return 0


# --- writing --------------------------------------------------------------------------------------

cdef Piece* memory_piece(int64_t size) noexcept nogil:
    cdef Piece* piece = <Piece*>malloc(sizeof(Piece) + size)
    if piece == NULL:
        return NULL
    piece.next = NULL
    piece.fd = -1
    piece.position = 0
    piece.remaining = piece.capacity = size
    piece.room = 0
    piece.pin = NULL
    piece.unpin = NULL
    return piece


cdef uint8_t* piece_bytes(Piece* piece) noexcept nogil:
    return <uint8_t*>(piece + 1)


cdef Piece* file_piece(
        int fd, int64_t position, int64_t size, void* pin, void (*unpin)(void*) noexcept nogil) noexcept nogil:
    cdef Piece* piece = memory_piece(0)
    if piece == NULL:
        return NULL
    piece.fd = fd
    piece.position = position
    piece.remaining = size
    piece.pin = pin
    piece.unpin = unpin
    return piece


cdef inline Piece* free_piece(Piece* piece) noexcept nogil:
    cdef Piece* next_piece = piece.next
    if piece.unpin != NULL:
        piece.unpin(piece.pin)
    free(piece)
    return next_piece


cdef void free_pieces(Piece* first) noexcept nogil:
    while first != NULL:
        first = free_piece(first)


cdef void drop_answers(Connection* c) noexcept nogil:
    free_pieces(c.first)
    c.first = NULL
    c.last = NULL
    c.unsent_bytes = c.answer_bytes = 0


cdef void queue_pieces(Connection* c, Piece* first, Piece* last, int64_t size) noexcept nogil:
    if c.first == NULL:
        c.first = first
    else:
        c.last.next = first
    c.last = last
    c.unsent_bytes += size
    while first != NULL:
        c.answer_bytes += first.capacity
        first = first.next


cdef uint8_t* answer_room(Connection* c, int64_t size) noexcept nogil:
    # Small answers share their memory, and leave by one call.
    cdef Piece* piece = c.last if c.first != NULL else NULL
    cdef uint8_t* at
    if piece == NULL or piece.fd >= 0 or piece.room < size:
        piece = memory_piece(max(size, SHARED_ANSWER_BYTES))
        if piece == NULL:
            return NULL
        piece.room = piece.remaining
        piece.remaining = 0
        queue_pieces(c, piece, piece, 0)
    at = piece_bytes(piece) + piece.position + piece.remaining
    piece.remaining += size
    piece.room -= size
    c.unsent_bytes += size
    return at


cdef int send_queued(Connection* c, int64_t most, Scratch* scratch, int64_t* sent) noexcept nogil:
    cdef Piece* piece
    cdef int64_t n
    cdef int64_t budget = most
    cdef char text[96]
    while c.first != NULL:
        piece = c.first
        if piece.remaining == 0:
            c.answer_bytes -= piece.capacity
            c.first = free_piece(piece)
            continue
        if budget <= 0:
            return SENT_ENOUGH
        if piece.fd < 0:
            n = c.transport.send(c, piece_bytes(piece) + piece.position, piece.remaining, piece.next != NULL)
        else:
            n = c.transport.send_file(c, piece.fd, piece.position, min(piece.remaining, budget), scratch)
            if n == 0:
                c.abnormal = True
                snprintf(c.reason, REASON_BYTES, "a segment file is %lld bytes shorter than the response",
                         <long long>piece.remaining)
                return SENT_FAILED
        if n == -EINTR:
            continue
        if n == -EAGAIN:
            c.writable = False
            return SENT_BLOCKED
        if n < 0:
            c.abnormal = n != -EPIPE and n != -ECONNRESET
            snprintf(c.reason, REASON_BYTES, "sending failed: %s", strerror_r(<int>-n, text, sizeof(text)))
            return SENT_FAILED
        piece.position += n
        piece.remaining -= n
        c.unsent_bytes -= n
        sent[0] += n
        budget -= n
    c.last = NULL
    return SENT_ALL
