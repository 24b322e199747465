# Fetch without Python: the ordinary request of a consumer outside a session, from its frame to its answer.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.connection cimport Connection
from plog._native.partition cimport ReadResult, Waiter
from plog._native.request cimport RequestHead
from plog._native.served cimport Served, ServedTable

cdef enum:
    FETCH_KEY = 1
    FETCH_SINCE = 4              # below, old message sets
    FETCH_UNTIL = 17
    FETCH_FLEXIBLE_SINCE = 12
    FETCH_IDS_SINCE = 13

# What became of a request.
cdef enum FetchOutcome:
    FETCH_ANSWERED = 0           # encode the answer
    FETCH_WAITS = 1              # there is too little yet
    FETCH_UNUSUAL_FORM = 2       # for Python
    FETCH_UNUSUAL_PARTITION = 3
    FETCH_UNUSUAL_READ = 4

# One partition of a request.
ctypedef struct FetchPart:
    Served* served               # a pin
    bint begins_topic
    int64_t offset
    int64_t leader_epoch         # -1: whichever
    int64_t epoch_then           # of the leader, when the request came
    int32_t max_bytes
    ReadResult read              # READ_FOUND: with a pin, until it is encoded or read anew
    Waiter waiter

ctypedef struct FetchCall:
    RequestHead head
    int32_t max_wait_ms
    int64_t min_bytes
    int64_t max_bytes
    bint read_committed
    int32_t topics
    int32_t count
    int32_t capacity
    FetchPart* parts

cdef void fetch_init(FetchCall* call) noexcept nogil
# Give the pins back; the memory of `parts` is kept for the next request.
cdef void fetch_clear(FetchCall* call) noexcept nogil
cdef void fetch_release(FetchCall* call) noexcept nogil
# Read the request and every partition. `p` follows the three numbers of the header.
cdef FetchOutcome fetch_serve(ServedTable* table, FetchCall* call, const uint8_t* p, const uint8_t* end) noexcept nogil
# Read every partition anew. An outcome that is for Python cannot be handed over any more: see fetch_fail.
cdef FetchOutcome fetch_read(FetchCall* call) noexcept nogil
# Give back what was read: the request waits.
cdef void fetch_unpin(FetchCall* call) noexcept nogil
# Queue the answer. False: no memory.
cdef bint fetch_answer(FetchCall* call, Connection* c) noexcept nogil
