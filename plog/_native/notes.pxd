# What a reactor tells Python of: notes, which lie in the mailbox of events after each round.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.connection cimport Connection
from plog._native.log_append cimport AppendResult
from plog._native.mailbox cimport Letter
from plog._native.reactor_loop cimport Loop

# What Python hears of.
cdef enum:
    EVENT_OPENED = 1
    EVENT_REQUEST = 2
    EVENT_CLOSED = 3
    EVENT_REFUSED = 4
    EVENT_CHANGED = 5
    EVENT_LEFT = 6

# An event for Python; its text follows the struct.
ctypedef struct Note:
    Letter letter
    int kind
    int listener_id
    bint abnormal
    int64_t connection_id
    int64_t received_us
    void* base
    uint8_t* data
    int64_t size             # EVENT_CHANGED: the partition's number
    int64_t capacity
    AppendResult* appended   # of the request's first partitions, which the fast path has appended
    int64_t appended_count
    int32_t session_id       # of a Fetch that the fast path has counted in its session; 0: it has not
    int32_t session_epoch    # what the session says since

cdef inline char* note_text(Note* note) noexcept nogil:
    return <char*>(note + 1)

# NULL: no memory. `text_bytes` may follow it; `connection` NULL: about none.
cdef Note* note_new(int kind, Connection* c, int64_t text_bytes) noexcept nogil
cdef void note_free(Note* note) noexcept nogil
# Python gets it at the end of the round.
cdef void add_note(Loop* loop, Note* note) noexcept nogil
# The end of the round.
cdef void post_notes(Loop* loop) noexcept nogil
