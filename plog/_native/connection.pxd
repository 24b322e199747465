# One client connection: its receive buffer, the frames in it, and the answers waiting to be sent.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.acceptor cimport ADDRESS_BYTES

cdef enum:
    PREFIX_BYTES = 4  # the size before a frame
    REASON_BYTES = 200

# What `next_frame` found.
cdef enum:
    FRAME_READY = 1
    FRAME_PARTIAL = 2
    FRAME_REFUSED = 3  # `reason` of the connection says why

# What `send_queued` came to.
cdef enum:
    SENT_ALL = 1
    SENT_BLOCKED = 2  # the kernel takes no more for now
    SENT_ENOUGH = 3   # the turn's budget is used up; there is more
    SENT_FAILED = 4   # `reason` of the connection says why

# A place in one of the reactor's lists: doubly linked, circular, alone when linked to itself.
ctypedef struct Link:
    Link* previous
    Link* next
    Connection* owner

# A stretch of an answer: memory (it follows the struct), or a pinned range of a file.
ctypedef struct Piece:
    Piece* next
    int fd              # -1: memory
    int64_t position    # of the next byte to send, in the memory or in the file
    int64_t remaining
    int64_t room        # free bytes of the memory behind them
    int64_t capacity    # of the memory; 0: a file's
    void* pin           # keeps fd open and its bytes in place; given back through `unpin`
    void (*unpin)(void* pin) noexcept nogil

# What requests and receive buffers may take, and take; atomic, shared by all reactors. And what answers may.
ctypedef struct Budget:
    int64_t max_bytes
    int64_t max_answer_bytes
    int64_t frame_bytes
    int64_t buffer_bytes

cdef enum:
    MOST_FREE_BUFFERS = 8
    MOST_HELD_BUFFERS = 16

# A receive buffer that a connection has done with, while requests in it wait to be written.
ctypedef struct HeldBuffer:
    uint8_t* data
    int64_t capacity
    bint borrowed

# Reactor-wide memory that connections use during their turn.
ctypedef struct Scratch:
    uint8_t* free_buffers[MOST_FREE_BUFFERS]  # for receiving; the last used first
    int free_count
    HeldBuffer held[MOST_HELD_BUFFERS]
    int held_count
    uint8_t* send_buffer  # NULL: sendfile
    int64_t send_bytes

# How bytes pass; another table would be TLS. Each returns bytes, or -errno.
ctypedef struct Transport:
    int64_t (*receive)(Connection* c, void* buffer, int64_t size) noexcept nogil
    int64_t (*send)(Connection* c, const void* data, int64_t size, bint more) noexcept nogil
    int64_t (*send_file)(Connection* c, int fd, int64_t position, int64_t size, Scratch* scratch) noexcept nogil

ctypedef struct Connection:
    int kind               # what an epoll event points to begins with it
    int fd
    int listener_id
    int64_t id
    const Transport* transport
    uint8_t address[ADDRESS_BYTES]
    # Reading. The bytes from start to end are not handed over yet.
    uint8_t* buffer        # NULL: none needed now
    int64_t start
    int64_t end
    int64_t capacity
    bint borrowed          # `buffer` is one of the scratch's, until `settle`
    bint reads_large       # the last request was a large one, and so the next may be
    bint readable          # the kernel may have bytes (edge triggered)
    bint peer_closed       # the peer sends no more
    bint gone              # its answers reach no client: they are dropped, and it closes when its requests are done
    int64_t left_to_read   # while `gone`: bytes of the socket that may still be read
    # Writing.
    Piece* first
    Piece* last
    int64_t unsent_bytes
    int64_t answer_bytes   # of memory that the pieces take, sent in part or not
    bint writable
    # State.
    bint handed_over       # a request is out; the next waits for its answer
    bint may_be_fast       # its listener's clients need not say who they are
    void* parked           # the request that waits in the reactor itself; NULL: none. Of Produces there may be
    void* last_parked      # several, chained from the first that came to the last: their answers keep that order
    int64_t parked_count
    int64_t in_work        # of them, those that other threads have in hand, or that are done and wait for such a one
    bint works_alone       # one of these must be done before anything else is read
    int64_t unappended     # of them, Produces that are for Python; their bytes are here already
    int64_t gathered       # Produces of this round that wait to be written
    bint held_up           # the next request in the buffer can only be served once none is parked
    bint closing           # closes once everything is sent
    bint abnormal          # it ends by a broken rule or a failure, not by anyone's wish
    bint dead              # closed; the struct lives to the end of the reactor's round
    int64_t muted_until_us
    int64_t received_us    # when it was last read: when the frames that are whole since then came
    int64_t active_us      # when bytes last passed, or an answer was queued
    int64_t came_on_us     # when its request began or had come on by much, or an answer was queued
    int64_t slow_bytes     # that have come since then
    char reason[REASON_BYTES]
    # What Python hears of its beginning and its end, allocated while there was memory for it.
    void* opened
    void* closed
    # The reactor's lists.
    Link by_activity
    Link ready
    Link answering
    Link waiting           # muted, or short of memory
    Link by_deadline       # with a parked request
    Connection* next_in_bucket

cdef void link_init(Link* link, Connection* owner) noexcept nogil
cdef void link_append(Link* sentinel, Link* link) noexcept nogil
cdef void link_remove(Link* link) noexcept nogil

# NULL: no memory. Takes the descriptor over.
cdef Connection* connection_new(int fd, int64_t id, int listener_id, const uint8_t* address) noexcept nogil
# Close the socket, free buffers, give pins back. The struct stays, for `free`. `scratch` may be NULL if nothing has
# been read.
cdef void connection_shut(Connection* c, Scratch* scratch, Budget* budget) noexcept nogil

# Read once: bytes, 0 at the end of the stream, -errno (-ENOMEM: no memory for the frame that is coming).
# No more than `most`. To be called only after `next_frame` said FRAME_PARTIAL.
cdef int64_t receive(Connection* c, Scratch* scratch, Budget* budget, int64_t most) noexcept nogil
# What has come and is not read yet.
cdef int64_t bytes_in_socket(const Connection* c) noexcept nogil
# Has a whole frame come, read or not? If that cannot be told, it has.
cdef bint holds_whole_frame(const Connection* c) noexcept nogil
# What is unread of the frame at the buffer's start, if it is a small one that has come whole; else 0.
cdef int64_t rest_of_small_frame(const Connection* c) noexcept nogil
# Is a whole frame in the buffer? `size` is its size without the prefix.
cdef int next_frame(Connection* c, int64_t max_request_bytes, int64_t* size) noexcept nogil
# Cut the frame that `next_frame` found: `data` and its size lie in `base`, malloc'ed memory of `capacity` bytes,
# counted as a frame's. -ENOMEM leaves all as it was.
cdef int cut_frame(
    Connection* c, int64_t size, Budget* budget, void** base, uint8_t** data, int64_t* capacity) noexcept nogil
# End of a turn: what is left moves out of the scratch's buffer; an empty buffer is given back. 0, or -ENOMEM.
cdef int settle(Connection* c, Scratch* scratch, Budget* budget) noexcept nogil
# The gathered requests have been written.
cdef void let_go_of_buffers(Scratch* scratch, Budget* budget) noexcept nogil
# It is time to write them.
cdef inline bint is_holding_much(const Scratch* scratch) noexcept nogil:
    return scratch.held_count == MOST_HELD_BUFFERS
cdef void scratch_release(Scratch* scratch) noexcept nogil

# Memory for `size` bytes of an answer (NULL: none); fill `piece_bytes`.
cdef Piece* memory_piece(int64_t size) noexcept nogil
cdef uint8_t* piece_bytes(Piece* piece) noexcept nogil
cdef Piece* file_piece(
    int fd, int64_t position, int64_t size, void* pin, void (*unpin)(void*) noexcept nogil) noexcept nogil
cdef void free_pieces(Piece* first) noexcept nogil
# The frame that `next_frame` found is done with.
cdef void drop_frame(Connection* c, int64_t size) noexcept nogil
# Memory for the next `size` bytes of answers, queued already: fill it now. NULL: none.
cdef uint8_t* answer_room(Connection* c, int64_t size) noexcept nogil
# Free the answers that are queued.
cdef void drop_answers(Connection* c) noexcept nogil
# Append a chain of pieces, `size` bytes in all.
cdef void queue_pieces(Connection* c, Piece* first, Piece* last, int64_t size) noexcept nogil
# Send what is queued, `most` bytes at most (roughly); `sent` grows by what passed.
cdef int send_queued(Connection* c, int64_t most, Scratch* scratch, int64_t* sent) noexcept nogil
