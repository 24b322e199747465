# The structs of the reactor: connections, their requests, and the threads that own both.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.acceptor cimport ADDRESS_BYTES, Door
from plog._native.fetch_call cimport FetchCall
from plog._native.fetch_sessions cimport SessionTable
from plog._native.histogram cimport Times
from plog._native.log_append cimport AppendGroup, AppendResult
from plog._native.mailbox cimport Letter, Mailbox
from plog._native.produce_path cimport ProduceCall
from plog._native.served cimport ServedTable
from plog._native.topic_traffic cimport Traffic
from plog._native.work_queue cimport Task, WorkQueue

cdef enum:
    PREFIX_BYTES = 4  # the size before a frame
    REASON_BYTES = 200

# --- a connection -----------------------------------------------------------------------------------

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
    Parked* parked         # the request that waits in the reactor itself; NULL: none. Of Produces there may be
    Parked* last_parked    # several, chained from the first that came to the last: their answers keep that order
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
    Note* opened
    Note* closed
    # The reactor's lists.
    Link by_activity
    Link ready
    Link answering
    Link waiting           # muted, or short of memory
    Link by_deadline       # with a parked request
    Connection* next_in_bucket

# --- a request that is not answered at once ---------------------------------------------------------

# Why a request went to Python.
cdef enum:
    PASSED_SWITCHED_OFF = 0
    PASSED_OTHER_API = 1
    PASSED_FORM = 2
    PASSED_PARTITION = 3
    PASSED_BATCH = 4
    PASSED_APPEND = 5
    PASSED_READ = 6
    PASSED_REASONS = 7

# A request's bytes, malloc'ed and counted.
ctypedef struct Frame:
    void* base                   # NULL: there are none
    uint8_t* data
    int64_t size
    int64_t capacity
    int64_t received_us          # when its last byte was read

# Where a request is while it is parked.
cdef enum ParkedStage:
    PARKED_WAITS = 0             # for its partitions, for its turn to be answered, or to go to Python
    PARKED_IN_WORK = 1           # by another thread, whose `produce` or `fetch` then is
    PARKED_DONE = 2              # so far: for those before it on its connection
    PARKED_GATHERED = 3          # with the round's others, to be written

# A request that waits for its partitions to change, or is worked on by another thread. Its letter lies in the inbox of
# its loop once they have changed, or the work is done.
ctypedef struct Parked:
    Task task                    # its `ask` is ASK_RECHECK or ASK_FINISH
    int64_t posted               # atomic: the letter lies in the inbox, or is on its way
    bint over                    # answered or dropped: freed when the letter comes
    ParkedStage stage
    bint checked                 # the Produce may be appended
    bint appends                 # the thread that works on the Produce appends it: it is the disk's
    int outcome                  # of the work
    int passed                   # why it is for Python, if its frame is kept for that
    ServedTable* served
    Mailbox* inbox
    Budget* budget
    int64_t* waiting             # how many there are, of the same loop
    Connection* connection
    Parked* after                # on its connection
    bint listens                 # it stands in its partitions' lists: the connection's first does
    int64_t deadline_us
    int16_t api_key              # says which of these it is
    ProduceCall produce
    FetchCall fetch
    Frame frame                  # for Python, if the request turns out unusual
    int64_t counted_bytes        # of what it takes besides, in the budget

# --- the Produces of one round ----------------------------------------------------------------------

cdef enum:
    MOST_GROUPS = 64
    MOST_GATHERED = 256

# A request whose batches wait to be written.
ctypedef struct Gathered:
    Connection* connection
    ProduceCall call
    uint8_t* frame               # in the connection's buffer, or in one that the scratch holds, or in `parked`
    int64_t size
    Parked* parked               # another thread has worked on it; NULL: it was just read

ctypedef struct PartitionWrite:
    AppendGroup group
    WorkQueue* disk              # the pin of a request's partition; the same for all
    Traffic* traffic             # its pin as well

ctypedef struct Gather:
    PartitionWrite writes[MOST_GROUPS]
    int64_t write_count
    Gathered requests[MOST_GATHERED]
    int64_t request_count
    int64_t bytes
    int64_t begun_us             # when the first partition was held
    bint is_full                 # write before anything else is taken in

# --- what Python hears of ---------------------------------------------------------------------------

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

# --- a thread ---------------------------------------------------------------------------------------

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
