# The structs of the reactor: connections, their requests, and the threads that own both.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.acceptor cimport ADDRESS_BYTES, Door
from plog._native.callout_reasons cimport REASONS, Reason
from plog._native.error_counts cimport ErrorCounts
from plog._native.fetch_call cimport FetchCall
from plog._native.fetch_sessions cimport SessionTable
from plog._native.histogram cimport Times
from plog._native.log_append cimport AppendGroup
from plog._native.mailbox cimport Letter, Mailbox
from plog._native.part_list cimport PartList
from plog._native.partition cimport Partition
from plog._native.produce_call cimport ProduceCall
from plog._native.request_stages cimport STAGES, Progress
from plog._native.served cimport ServedTable
from plog._native.topic_traffic cimport Traffic
from plog._native.work_queue cimport Task, WorkQueue

cdef enum:
    PREFIX_BYTES = 4  # the size before a frame
    REASON_BYTES = 200

# --- a request --------------------------------------------------------------------------------------

cdef enum RequestKind:
    KIND_PRODUCE = 0
    KIND_FETCH = 1
    KIND_OTHER = 2

# A request's bytes, malloc'ed and counted.
ctypedef struct Frame:
    void* base                   # NULL: there are none
    uint8_t* data
    int64_t size
    int64_t capacity
    int64_t received_us          # when its last byte was read

# A request from its last byte to its response. Another thread may have it, by its task: `produce` or `fetch`, and the
# stages of its partitions, are that thread's then.
ctypedef struct Request:
    Task task                    # its `ask` is ASK_RECHECK or ASK_FINISH
    int64_t posted               # atomic: its letter lies in the inbox of its loop, or is on its way
    bint over                    # answered or dropped: freed when the letter comes
    Request* next                # on its connection, or among the free ones
    Connection* connection
    RequestKind kind
    uint8_t stage                # as its connection counts it
    Progress progress
    PartList* parts              # of `produce` or `fetch`; each part begins with its stage
    int64_t part_bytes
    bint listens                 # it stands in the lists of its partitions
    int64_t deadline_us
    Reason reason                # why it is for Python, if that gets it whole
    bint was_asked               # Python was asked about it, or has it
    uint8_t* bytes               # in the connection's buffer, in one that the scratch holds, or in `frame`
    int64_t size
    bint in_buffer               # the connection's buffer begins with it
    Frame frame                  # once its bytes had to be kept
    ProduceCall produce
    FetchCall fetch
    Loop* loop
    int64_t counted_bytes        # of what it takes besides `frame`, in the budget; 0: it does not wait

# What came of a step.
cdef enum Done:
    DONE = 0
    WRITE_FIRST = 1              # nothing: what the round has gathered is to be written first
    NO_MEMORY = 2
    LATER = 3                    # nothing: its letter comes first

# The requests of a connection, in the order in which they came.
ctypedef struct Line:
    Request* first
    Request* last
    int64_t count
    int64_t stages[STAGES]       # how many are in each stage
    bint is_broken               # something happened to a request that the table does not have:
    uint8_t broken_stage         # in this stage,
    uint8_t broken_event         # and this event

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
    bint may_be_fast       # its listener's clients need no authentication
    bint is_exempt         # from limits for clients: its listener is that between brokers, and no client's
    bint is_between_brokers  # its listener is that between brokers, if clients', too: followers may fetch
    Line line              # its requests that are not answered
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
    Link by_deadline       # whose first request waits
    Connection* next_in_bucket

# --- the Produces of one round ----------------------------------------------------------------------

cdef enum:
    MOST_GROUPS = 64
    MOST_GATHERED = 256

ctypedef struct PartitionWrite:
    AppendGroup group
    WorkQueue* disk              # the pin of a request's partition; the same for all
    Traffic* traffic             # its pin as well

ctypedef struct Gather:
    PartitionWrite writes[MOST_GROUPS]
    int64_t write_count
    Request* requests[MOST_GATHERED]
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
    EVENT_LEFT = 5
    EVENT_CALLOUT = 6
    EVENT_MAY_JOIN = 7

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
    int64_t size
    int64_t capacity
    Request* request         # EVENT_CALLOUT
    Partition* partition     # EVENT_MAY_JOIN: a pin, and
    int32_t broker_id        # a follower of it

# --- a thread ---------------------------------------------------------------------------------------

cdef enum:
    TICK_US = 1000000            # between two looks for overdue connections

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
    ASK_RECHECK = 5   # the letter is a Request: its partitions have changed,
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
    bint is_exempt
    bint is_between_brokers
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
    Link answering           # had a turn in this round, or has further steps after its write
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
    Request* free_requests
    int64_t free_count
    Link by_deadline         # connections whose first request waits, the first to expire first
    bint winding_down
    # Counted by this thread alone; read by others.
    int64_t turns
    int64_t closed
    int64_t requests
    int64_t responses
    int64_t bytes_in
    int64_t bytes_out
    int64_t waiting          # requests that wait
    int64_t broken           # connections closed for a transition that the table does not have
    int64_t callouts[REASONS]   # questions to Python, and requests that it got whole
    int64_t asked            # requests with questions, and those
    ErrorCounts produce_errors
    ErrorCounts fetch_errors
    Times produce_times      # of those answered here, without Python
    Times produce_asked_times  # and of those that it was asked about
    Times fetch_times
    Times fetch_asked_times
