# Produce without Python: the ordinary request of today's clients, from its frame to its answer.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.leaves cimport Writer
from plog._native.log_append cimport AppendGroup, AppendResult
from plog._native.part_list cimport PartList
from plog._native.partition cimport Waiter
from plog._native.request cimport RequestHead
from plog._native.request_stages cimport Progress
from plog._native.served cimport Served, ServedTable
from plog._native.work_queue cimport WorkQueue

cdef enum:
    PRODUCE_KEY = 0
    PRODUCE_SINCE = 3            # below, old message sets
    PRODUCE_UNTIL = 12
    PRODUCE_FLEXIBLE_SINCE = 9

# Which replicas a batch must be safe on.
cdef enum:
    ACKS_ALL = -1
    ACKS_NONE = 0                # no response follows
    ACKS_LEADER = 1

# What became of a request.
cdef enum ProduceOutcome:
    PRODUCE_ANSWERED = 0         # encode the answer, unless acks is 0
    PRODUCE_WAITS = 1            # not safe yet: acks=all
    PRODUCE_UNUSUAL_FORM = 2     # for Python: nothing has been appended
    PRODUCE_UNUSUAL_PARTITION = 3
    PRODUCE_UNUSUAL_BATCH = 4
    PRODUCE_UNUSUAL_APPEND = 5   # for Python: of the first `appended` partitions, those that say so have been appended
    PRODUCE_BESIDE = 6           # nothing done yet: for the thread of `queue`, which serves it anew

# One partition of a request.
ctypedef struct ProducePart:
    uint8_t stage                # first, as in every part
    bint begins_topic
    Served* served               # a pin
    uint8_t* records             # in the frame; not looked at once appended
    int64_t size
    AppendGroup* group           # in which it is appended; NULL: alone
    int64_t changes              # of the partition, once it was appended
    AppendResult result
    int16_t error
    const char* message          # of the error; constant
    Waiter waiter                # of whom waits for it

ctypedef struct ProduceCall:
    Progress* progress           # the request's
    RequestHead head
    int64_t size                 # in bytes, without its head
    int64_t expanded_bytes       # of its compressed batches that have been looked at
    bint has_transactional_id
    Writer writer                # in the frame as well
    int16_t acks
    int32_t timeout_ms
    int32_t topics
    WorkQueue* queue             # the pin of a partition in `parts`, or the table's
    int64_t appended             # the first so many parts, or taken into groups that are not yet written
    PartList parts               # of ProducePart

cdef inline ProducePart* produce_part(const ProduceCall* call, int64_t number) noexcept nogil:
    return &(<ProducePart*>call.parts.items)[number]

cdef void produce_init(ProduceCall* call) noexcept nogil
# Give the pins back; the memory of `parts` is kept for the next request.
cdef void produce_clear(ProduceCall* call) noexcept nogil
cdef void produce_release(ProduceCall* call) noexcept nogil
# Check the whole request; PRODUCE_ANSWERED: it may be appended. `p` follows the three numbers of the header.
# `in_reactor`: what takes long is left to another thread, which `queue` leads to.
cdef ProduceOutcome produce_check(
    ServedTable* table, ProduceCall* call, const uint8_t* p, const uint8_t* end, int64_t now_ms,
    bint in_reactor) noexcept nogil
# Whose thread has to append what has been checked: the disk of one of its partitions is slow. NULL: none.
cdef WorkQueue* produce_slow_disk(const ProduceCall* call) noexcept nogil
# After the groups of its first parts have been written, append the rest of the request, partition by partition, unless
# what must come before it is with Python, or a disk that is slow by now would keep the reactor.
cdef ProduceOutcome produce_conclude(
    ProduceCall* call, int64_t now_ms, bint may_append, bint in_reactor) noexcept nogil
# Whether acks=all can be answered: each partition is safe on every in-sync replica, or lost.
cdef bint produce_is_settled(ProduceCall* call) noexcept nogil
# Whether a partition has changed since it was appended.
cdef bint produce_is_stale(const ProduceCall* call) noexcept nogil
# Refuse those that are not settled.
cdef void produce_expire(ProduceCall* call) noexcept nogil
# The answer, with its length prefix.
cdef int64_t produce_answer_size(const ProduceCall* call) noexcept nogil
cdef void produce_encode_answer(const ProduceCall* call, uint8_t* p) noexcept nogil
