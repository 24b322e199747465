# A Fetch request: what it asks for, what became of its partitions, and what the response says.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.aborted_list cimport AbortedWalk
from plog._native.callout_reasons cimport Reason
from plog._native.log_read cimport ReadResult
from plog._native.part_list cimport PartList
from plog._native.partition cimport Waiter
from plog._native.partition_names cimport PartitionName, Wanted
from plog._native.request cimport RequestHead
from plog._native.request_stages cimport Progress
from plog._native.response_fields cimport Texts
from plog._native.served cimport Served
from plog._native.session_parts cimport Session, SessionPart
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

# The replica id of a reader.
cdef enum:
    CONSUMER = -1                # those above are followers', those below debugging consumers'

cdef enum FetchOutcome:
    FETCH_READ = 0               # each partition is read, or is Python's
    FETCH_MALFORMED = 1
    FETCH_BESIDE = 2             # for the thread of `queue`, which may wait for the disk: fetch_read_slowly
    FETCH_NO_MEMORY = 3

# What a response lists of aborted transactions, where Python has found them.
ctypedef struct AbortedFound:
    int64_t producer_id
    int64_t first_offset

# One partition that is read.
ctypedef struct FetchPart:
    uint8_t stage                # first, as in every part
    Served* served               # a pin; NULL: this broker does not serve it
    PartitionName name           # as the request has it; of `served`, or in `names`
    SessionPart* remembered      # of the session; to be used while that is held
    bint wakes                   # a change of `served` would wake a request that waits
    bint is_pythons              # Python reads it, or has
    bint is_noted                # a follower's position has been taken over, by the first look at this request
    bint may_join                # by which the follower may join the in-sync set; which Python does not know yet
    int64_t known_high_watermark # a follower's: a higher one is answered at once
    bint is_named                    # it stands in the answer,
    bint begins_topic            # as the first of its topic's
    int64_t offset
    int32_t leader_epoch         # -1: whichever
    int32_t last_epoch           # of the reader's last record; -1: not said
    int64_t log_start_offset     # of a follower's log; -1: not said
    int64_t epoch_then           # of the leader, when the request came
    int64_t changes              # of the partition, before it was looked at; -1: it has changed since
    int32_t max_bytes
    ReadResult read              # READ_FOUND: with a pin, until it is encoded or read anew
    bint lists_aborted           # else the list is null
    AbortedWalk aborted          # what the answer lists; `among` is a pin, or NULL: none
    int64_t aborted_count        # of those, or:
    AbortedFound* aborted_found    # owned: Python's list
    bint records_are_null
    int16_t error
    int32_t diverging_epoch      # where the reader's log and this one part; -1: they do not
    int64_t diverging_end
    int32_t leader_id            # another broker's, as a hint
    int32_t hint_epoch
    Waiter waiter

ctypedef struct FetchCall:
    Progress* progress           # the request's
    RequestHead head
    const uint8_t* client_id     # in the frame
    int32_t client_id_size       # -1: null
    const char* fault            # why the request is malformed; constant
    bint has_head                # the fault is behind the header
    Reason reason                # why Python decides about a partition: the first of them
    int16_t error                # of the whole request
    int32_t replica_id
    int64_t replica_epoch        # of that broker's registration; -1: not said
    bint is_between_brokers      # came by the listener between brokers
    int64_t came_ms              # since boot
    int32_t max_wait_ms
    int64_t min_bytes
    int64_t max_bytes
    bint read_committed
    # What the request says; names are in its frame, until its partitions are taken.
    int32_t session_id
    int32_t session_epoch
    PartList asked               # of Wanted
    PartList forgotten           # of PartitionName
    # What it came to.
    Session* session             # a pin, or NULL
    int32_t session_until        # its epoch, until its next request comes
    bint names_changes_only
    WorkQueue* queue             # the pin of a partition in `parts`
    PartList parts               # of FetchPart
    uint8_t* names               # owned: of partitions that are not served
    int64_t names_bytes
    Texts texts                  # those that Python gave for the response
    int64_t aborted_bytes        # of the lists that Python found

# Below its first version a follower cannot say which epoch its last batch has.
cdef inline bint fetch_is_followers(const FetchCall* call) noexcept nogil:
    return call.replica_id > CONSUMER and call.is_between_brokers and call.head.version >= FETCH_FLEXIBLE_SINCE


# What it takes besides its frame.
cdef inline int64_t fetch_bytes(const FetchCall* call) noexcept nogil:
    return (call.names_bytes + call.texts.bytes + call.aborted_bytes + call.parts.capacity * sizeof(FetchPart)
            + call.asked.capacity * sizeof(Wanted) + call.forgotten.capacity * sizeof(PartitionName))


cdef inline FetchPart* fetch_part(const FetchCall* call, int64_t number) noexcept nogil:
    return &(<FetchPart*>call.parts.items)[number]
