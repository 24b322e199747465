# The partitions that the fast path may serve, as it finds them by what requests name. Each entry is immutable and
# counted: Python replaces it when leadership or settings change, whoever looked it up before keeps what was true then.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.log_flush cimport CommitQueue
from plog._native.locks cimport add, pthread_mutex_t
from plog._native.partition cimport Partition
from plog._native.topic_traffic cimport Traffic
from plog._native.work_queue cimport WorkQueue

cdef enum:
    TOPIC_ID_BYTES = 16
    LONGEST_TOPIC = 249          # Kafka's limit: no topic has a longer name

ctypedef struct Served:
    int64_t references           # atomic
    Partition* partition         # a pin
    CommitQueue* commits         # a pin
    WorkQueue* disk              # a pin; of the log directory
    Traffic* traffic             # a pin; of the topic
    int32_t index
    int32_t name_size
    uint8_t topic_id[TOPIC_ID_BYTES]
    # The topic's settings, as far as Produce looks at them.
    int64_t max_message_bytes
    int64_t decompressed_limit
    int64_t before_max_ms
    int64_t after_max_ms
    int64_t flush_messages
    bint flush_before_ack
    bint key_required
    bint produce_is_pythons      # by another setting of the topic
    # In the table's chains; its lock guards them.
    Served* next_by_name
    Served* next_by_id
    # The topic's name follows the struct.

ctypedef struct ServedTable:
    pthread_mutex_t lock
    Served** by_name
    Served** by_id
    int64_t capacity             # of each; a power of two
    int64_t count
    WorkQueue* compute           # a pin
    int64_t version              # atomic; grows with every change of what is in the table
    int64_t fetch_max_bytes      # atomic; the broker's setting

cdef inline const uint8_t* served_name(const Served* served) noexcept nogil:
    return <const uint8_t*>(served + 1)

cdef int table_open(ServedTable* table) noexcept nogil       # 0 or -ENOMEM; without `compute`
cdef void table_release(ServedTable* table) noexcept nogil
# A pin, or NULL.
cdef Served* served_find(ServedTable* table, const uint8_t* name, int32_t name_size, int32_t index) noexcept nogil
cdef Served* served_find_by_id(ServedTable* table, const uint8_t* topic_id, int32_t index) noexcept nogil
cdef void served_release(Served* served) noexcept nogil
cdef inline void served_retain(Served* served) noexcept nogil:
    add(&served.references, 1)
# In the place of what was there under the same name and index; the caller's pin goes to the table. False: no memory.
cdef bint served_publish(ServedTable* table, Served* fresh) noexcept nogil
cdef void served_withdraw(
    ServedTable* table, const uint8_t* name, int32_t name_size, int32_t index) noexcept nogil


cdef class ServedPartitions:
    cdef ServedTable table
