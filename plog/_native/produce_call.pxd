# A Produce request: what it asks for, what became of its partitions, and what the response says.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.callout_reasons cimport Reason
from plog._native.txn_guards cimport Writer
from plog._native.log_append cimport AppendGroup, AppendResult
from plog._native.part_list cimport PartList
from plog._native.partition cimport Partition, Waiter
from plog._native.request cimport RequestHead
from plog._native.request_stages cimport Progress
from plog._native.response_fields cimport Texts
from plog._native.served cimport Served
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

cdef enum:
    MOST_PYTHONS = 8

# A record that a batch is refused for.
ctypedef struct RecordError:
    int32_t index
    int32_t message_size
    const uint8_t* message

ctypedef struct ProduceTopic:
    const uint8_t* name          # in the frame; once its partitions are looked up, of `named_by` or in `names`
    int32_t name_size
    int32_t partitions
    Served* named_by             # a pin of one of them; NULL: none is served

# One partition of a request.
ctypedef struct ProducePart:
    uint8_t stage                # first, as in every part
    int32_t topic                # its number among those of the request
    int32_t index
    Served* served               # a pin; NULL: this broker does not serve it
    uint8_t* records             # in the frame; not looked at once appended
    int64_t size                 # NO_TEXT: null
    AppendGroup* group           # in which it is appended; NULL: alone
    int64_t changes              # of the partition, once it was appended
    AppendResult result          # for one that is refused: what the response says of its offsets
    int64_t append_time
    int16_t error
    const uint8_t* message       # of the error; constant, or in `texts`
    int32_t message_size
    const RecordError* record_errors
    int32_t record_error_count
    int32_t leader_id            # another broker's, as a hint
    int32_t leader_epoch
    Waiter waiter                # of whom waits for it

ctypedef struct ProduceCall:
    Progress* progress           # the request's
    RequestHead head
    const uint8_t* client_id     # in the frame
    int32_t client_id_size       # NO_TEXT: null
    const char* fault            # why the request is malformed; constant
    bint has_head                # the fault is behind the header
    int64_t size                 # in bytes, without its head
    int64_t expanded_bytes       # of its compressed batches that have been looked at
    Reason reason                # why Python decides about a partition: the first of them
    Writer writer                # in the frame as well; its size is NO_TEXT where there is no transactional id
    int16_t acks
    int32_t timeout_ms
    WorkQueue* queue             # the pin of a partition in `parts`, or the table's
    PartList topics              # of ProduceTopic
    PartList parts               # of ProducePart
    uint8_t* names               # owned: of the topics that are not served
    int64_t names_bytes
    # Partitions that Python appends to: a later batch of one of them is Python's, too.
    Partition* pythons[MOST_PYTHONS]
    int32_t python_count         # above MOST_PYTHONS: there are more
    Texts texts                  # those that Python gave for the response

cdef inline ProducePart* produce_part(const ProduceCall* call, int64_t number) noexcept nogil:
    return &(<ProducePart*>call.parts.items)[number]

cdef inline ProduceTopic* produce_topic(const ProduceCall* call, int64_t number) noexcept nogil:
    return &(<ProduceTopic*>call.topics.items)[number]
