# A Fetch request on the fast path: what it asks for, and what it came to.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.aborted_list cimport AbortedWalk
from plog._native.fetch_sessions cimport PartitionName, Session, SessionPart, Wanted
from plog._native.log_read cimport ReadResult
from plog._native.part_list cimport PartList
from plog._native.partition cimport Waiter
from plog._native.request cimport RequestHead
from plog._native.request_stages cimport Progress
from plog._native.served cimport Served
from plog._native.work_queue cimport WorkQueue

cdef enum:
    FETCH_KEY = 1
    FETCH_SINCE = 4              # below, old message sets
    FETCH_UNTIL = 18
    FETCH_LOG_START_SINCE = 5
    FETCH_SESSIONS_SINCE = 7
    FETCH_ZSTD_SINCE = 10
    FETCH_RACK_SINCE = 11
    FETCH_FLEXIBLE_SINCE = 12
    FETCH_IDS_SINCE = 13

# What became of a request.
cdef enum FetchOutcome:
    FETCH_ANSWERED = 0           # encode the answer
    FETCH_WAITS = 1              # there is too little yet
    FETCH_UNUSUAL_FORM = 2       # for Python
    FETCH_UNUSUAL_PARTITION = 3
    FETCH_UNUSUAL_READ = 4
    FETCH_BESIDE = 5             # for the thread of `queue`, which may wait for the disk: fetch_read_slowly

# One partition that is read.
ctypedef struct FetchPart:
    uint8_t stage                # first, as in every part
    Served* served               # a pin
    SessionPart* remembered      # of the session; to be used while that is held
    bint told                    # it stands in the answer,
    bint begins_topic            # as the first of its topic's
    int64_t offset
    int64_t leader_epoch         # -1: whichever
    int64_t epoch_then           # of the leader, when the request came
    int64_t changes              # of the partition, before it was read
    int32_t max_bytes
    ReadResult read              # READ_FOUND: with a pin, until it is encoded or read anew
    AbortedWalk aborted          # what the answer lists; `among` is a pin, or NULL: none
    int64_t aborted_count        # of those
    Waiter waiter

ctypedef struct FetchCall:
    Progress* progress           # the request's
    RequestHead head
    int32_t max_wait_ms
    int64_t min_bytes
    int64_t max_bytes
    bint read_committed
    # What the request says; names are in its frame.
    int32_t session_id
    int32_t session_epoch
    PartList asked               # of Wanted
    PartList forgotten           # of PartitionName
    # What it came to.
    Session* session             # a pin, or NULL
    int32_t session_until        # its epoch, until its next request comes
    bint tells_changes_only
    WorkQueue* queue             # the pin of a partition in `parts`
    PartList parts               # of FetchPart

cdef inline FetchPart* fetch_part(const FetchCall* call, int64_t number) noexcept nogil:
    return &(<FetchPart*>call.parts.items)[number]
