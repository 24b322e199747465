# One thread of the reactor: its connections, its inbox, its round. And what all threads share.
from libc.stdint cimport int32_t, int64_t

from plog._native.acceptor cimport Door
from plog._native.connection cimport REASON_BYTES, Budget, Connection, Link, Piece, Scratch
from plog._native.fetch_call cimport FetchCall
from plog._native.fetch_sessions cimport SessionTable
from plog._native.gather cimport Gather
from plog._native.histogram cimport Times
from plog._native.mailbox cimport Letter, Mailbox
from plog._native.produce_path cimport ProduceCall
from plog._native.parked cimport PASSED_REASONS
from plog._native.served cimport ServedTable

cdef enum:
    RESPONSE_ERRORS = 64         # above every code that `produce_path` answers

# What an epoll event points to begins with one of these.
cdef enum:
    SOURCE_CONNECTION = 0
    SOURCE_LISTENER = 1
    SOURCE_INBOX = 2

# What a thread is asked to do.
cdef enum:
    ASK_ADOPT = 0
    ASK_LISTEN = 1
    ASK_RESPOND = 2
    ASK_MUTE = 3
    ASK_CLOSE = 4
    ASK_RECHECK = 5   # the letter is a Parked: its partitions have changed,
    ASK_FINISH = 6    # or another thread has worked on it

ctypedef struct Command:
    Letter letter
    int ask
    int64_t connection_id
    Connection* connection   # ASK_ADOPT
    Listener* listener       # ASK_LISTEN
    Piece* first             # ASK_RESPOND; NULL: no answer
    Piece* last
    int64_t size             # ASK_RESPOND: bytes; ASK_MUTE: ms
    char reason[REASON_BYTES]

ctypedef struct Listener:
    int kind
    int fd
    int id
    bint parked              # not watched until the next tick: nothing can be accepted now
    bint may_be_fast
    Listener* next

ctypedef struct Shared:
    int threads
    int64_t max_request_bytes
    int64_t idle_timeout_us
    bint use_sendfile
    ServedTable* served      # NULL: there is no fast path
    SessionTable* sessions
    Loop* loops
    Mailbox events           # for Python
    Door door
    Budget budget
    int64_t next_id          # of loop 0 only
    int64_t starving         # atomic: loops with connections that wait for memory
    int64_t stopping         # atomic
    int64_t drain_until_us

ctypedef struct Loop:
    int source               # SOURCE_INBOX
    Shared* shared
    int index
    int epoll_fd
    Mailbox inbox
    Scratch scratch
    Listener* listeners      # loop 0 accepts for all
    # Its connections, by id and in lists.
    Connection** buckets
    int64_t bucket_count     # a power of two
    int64_t connections
    Link by_activity
    Link ready
    Link answering           # had a turn in this round
    Link muted
    Link starved             # short of memory: for a request to come,
    Link starved_half        # or for the rest of one
    bint starving
    Connection* privileged   # the one that may go on growing while memory is short
    int64_t privileged_us
    Connection* grave        # closed in this round; chained by next_in_bucket
    Letter* notes_first      # for Python, posted once per round
    Letter* notes_last
    int64_t notes_count
    int64_t now_us
    int64_t tick_us
    int64_t next_tick_us
    int64_t next_unmute_us   # INT64_MAX: none is muted
    int64_t next_refusal_us
    # The fast path's.
    Gather gather            # Produces of this round
    bint is_writing          # them
    ProduceCall produce      # the request in hand
    FetchCall fetch
    int32_t session_id       # as a Note's
    int32_t session_epoch
    Link by_deadline         # connections with a parked request, the first to expire first
    bint winding_down
    # Counted by this thread alone; read by others.
    int64_t turns
    int64_t closed
    int64_t requests
    int64_t responses
    int64_t bytes_in
    int64_t bytes_out
    int64_t fast_requests
    int64_t waiting          # requests that are parked
    int64_t passed[PASSED_REASONS]
    int64_t produce_responses[RESPONSE_ERRORS]  # answered here, by error code; once for each that a response has
    int64_t fetch_responses                     # answered here, none with an error
    Times produce_times      # of those answered here
    Times fetch_times

# 0, or -errno. Whatever comes of it, `loop_release` frees what there is.
cdef int loop_open(Loop* loop, Shared* shared, int index) noexcept nogil
cdef void loop_release(Loop* loop) noexcept nogil
# The thread's life: returns when `shared.stopping` is set and everything is closed.
cdef void loop_run(Loop* loop) noexcept nogil
# After the thread has ended: free the commands it did not come to.
cdef void loop_discard_letters(Loop* loop) noexcept nogil
cdef void free_command(Shared* shared, Command* command) noexcept nogil
