# One client connection: its receive buffer, the frames in it, and the answers waiting to be sent.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.reactor_types cimport MOST_HELD_BUFFERS, Budget, Connection, Piece, Scratch

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
