"""The partitions that the fast path may serve, by topic name and index.

Owns the table and the counts of its entries. Never decides what is served:
Python publishes a partition once this broker leads it and its topic asks for
nothing unusual, and withdraws it before that ends.
"""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from plog._native.log_flush cimport CommitThread, commit_release, commit_retain
from plog._native.locks cimport (
    add, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, store)
from plog._native.partition cimport partition_changed, partition_release, partition_retain
from plog._native.partition_log cimport PartitionLog
from plog._native.topic_traffic cimport TopicTraffic, traffic_release, traffic_retain
from plog._native.work_queue cimport WorkThread, work_release, work_retain

cdef enum:
    SMALLEST_CAPACITY = 64


cdef int table_open(ServedTable* table) noexcept nogil:
    table.count = 0
    table.capacity = SMALLEST_CAPACITY
    table.fetch_max_bytes = INT32_MAX
    table.by_name = <Served**>calloc(table.capacity, sizeof(Served*))
    table.by_id = <Served**>calloc(table.capacity, sizeof(Served*))
    if table.by_name == NULL or table.by_id == NULL:
        free(table.by_name)
        free(table.by_id)
        table.by_name = NULL
        return -ENOMEM
    pthread_mutex_init(&table.lock, NULL)
    return 0


cdef void table_release(ServedTable* table) noexcept nogil:
    cdef Served* served
    cdef Served* after
    cdef int64_t slot
    if table.by_name == NULL:
        return
    for slot in range(table.capacity):
        served = table.by_name[slot]
        while served != NULL:
            after = served.next_by_name
            store(&served.partition.number, -1)
            served_release(served)
            served = after
    free(table.by_name)
    free(table.by_id)
    table.by_name = NULL
    work_release(table.compute)
    pthread_mutex_destroy(&table.lock)


cdef void served_release(Served* served) noexcept nogil:
    if served == NULL or add(&served.references, -1) > 0:
        return
    partition_release(served.partition)
    commit_release(served.commits)
    work_release(served.disk)
    traffic_release(served.traffic)
    free(served)


# --- the chains; all under `lock` -----------------------------------------------------------------

cdef inline uint32_t hash_of(const uint8_t* key, int32_t size, int32_t index) noexcept nogil:
    # FNV-1a: keys are short, and to make topics collide one must create them.
    cdef uint32_t mixed = 2166136261
    cdef int32_t at
    for at in range(size):
        mixed = (mixed ^ key[at]) * 16777619
    mixed = (mixed ^ <uint32_t>index) * 16777619
    return mixed ^ (mixed >> 15)


cdef Served** place_by_name(
        ServedTable* table, const uint8_t* name, int32_t name_size, int32_t index) noexcept nogil:
    """Where the entry is linked, or where one would be."""
    cdef Served** at = &table.by_name[hash_of(name, name_size, index) & (table.capacity - 1)]
    while at[0] != NULL:
        if (at[0].index == index and at[0].name_size == name_size
                and memcmp(served_name(at[0]), name, name_size) == 0):
            return at
        at = &at[0].next_by_name
    return at


cdef Served** place_by_id(ServedTable* table, const uint8_t* topic_id, int32_t index) noexcept nogil:
    cdef Served** at = &table.by_id[hash_of(topic_id, TOPIC_ID_BYTES, index) & (table.capacity - 1)]
    while at[0] != NULL:
        if at[0].index == index and memcmp(at[0].topic_id, topic_id, TOPIC_ID_BYTES) == 0:
            return at
        at = &at[0].next_by_id
    return at


cdef void link(ServedTable* table, Served* served) noexcept nogil:
    cdef Served** at = place_by_name(table, served_name(served), served.name_size, served.index)
    served.next_by_name = NULL
    at[0] = served
    at = place_by_id(table, served.topic_id, served.index)
    served.next_by_id = NULL
    at[0] = served


cdef void unlink(ServedTable* table, Served* served) noexcept nogil:
    place_by_name(table, served_name(served), served.name_size, served.index)[0] = served.next_by_name
    place_by_id(table, served.topic_id, served.index)[0] = served.next_by_id


cdef bint grow(ServedTable* table) noexcept nogil:
    cdef Served** old_by_name = table.by_name
    cdef Served** old_by_id = table.by_id
    cdef Served** by_name = <Served**>calloc(2 * table.capacity, sizeof(Served*))
    cdef Served** by_id = <Served**>calloc(2 * table.capacity, sizeof(Served*))
    cdef Served* served
    cdef Served* after
    cdef int64_t slot
    cdef int64_t old_capacity = table.capacity
    if by_name == NULL or by_id == NULL:
        free(by_name)
        free(by_id)
        return False
    table.by_name = by_name
    table.by_id = by_id
    table.capacity = 2 * old_capacity
    for slot in range(old_capacity):
        served = old_by_name[slot]
        while served != NULL:
            after = served.next_by_name
            link(table, served)
            served = after
    free(old_by_name)
    free(old_by_id)
    return True


# --- finding and changing -------------------------------------------------------------------------

cdef Served* served_find(
        ServedTable* table, const uint8_t* name, int32_t name_size, int32_t index) noexcept nogil:
    cdef Served* found
    if name_size > LONGEST_TOPIC:  # else its hash would be taken for each of its partitions
        return NULL
    pthread_mutex_lock(&table.lock)
    found = place_by_name(table, name, name_size, index)[0]
    if found != NULL:
        add(&found.references, 1)
    pthread_mutex_unlock(&table.lock)
    return found


cdef Served* served_find_by_id(
        ServedTable* table, const uint8_t* topic_id, int32_t index) noexcept nogil:
    cdef Served* found
    pthread_mutex_lock(&table.lock)
    found = place_by_id(table, topic_id, index)[0]
    if found != NULL:
        add(&found.references, 1)
    pthread_mutex_unlock(&table.lock)
    return found


cdef void forget_partition(Served* old) noexcept nogil:
    """Requests that wait for it look again, and find another in the table, or none."""
    store(&old.partition.number, -1)
    partition_changed(old.partition)


cdef bint served_publish(ServedTable* table, Served* fresh) noexcept nogil:
    cdef Served* old
    pthread_mutex_lock(&table.lock)
    if table.count >= table.capacity and not grow(table):
        pthread_mutex_unlock(&table.lock)
        return False
    old = place_by_name(table, served_name(fresh), fresh.name_size, fresh.index)[0]
    if old != NULL:
        unlink(table, old)
        table.count -= 1
    link(table, fresh)
    table.count += 1
    add(&table.version, 1)
    pthread_mutex_unlock(&table.lock)
    if old != NULL and old.partition != fresh.partition:
        forget_partition(old)
    served_release(old)
    return True


cdef void served_withdraw(
        ServedTable* table, const uint8_t* name, int32_t name_size, int32_t index) noexcept nogil:
    cdef Served* old
    pthread_mutex_lock(&table.lock)
    old = place_by_name(table, name, name_size, index)[0]
    if old != NULL:
        unlink(table, old)
        table.count -= 1
        add(&table.version, 1)
    pthread_mutex_unlock(&table.lock)
    if old != NULL:
        forget_partition(old)
    served_release(old)


cdef class ServedPartitions:
    def __cinit__(self, WorkThread compute not None):
        if table_open(&self.table) < 0:
            raise MemoryError
        self.table.compute = compute.queue
        work_retain(compute.queue)

    def __dealloc__(self):
        table_release(&self.table)

    def __len__(self):
        return self.table.count

    def set_fetch_max_bytes(self, int64_t size):
        store(&self.table.fetch_max_bytes, size)

    def publish(
        self,
        str topic,
        bytes topic_id,
        int32_t index,
        PartitionLog log not None,
        CommitThread commits not None,
        WorkThread disk not None,
        TopicTraffic traffic not None,
        *,
        int64_t number,
        int64_t max_message_bytes,
        int64_t decompressed_limit,
        int64_t before_max_ms,
        int64_t after_max_ms,
        int64_t flush_messages,
        bint flush_before_ack,
        bint key_required,
        bint produce_is_pythons,
    ):
        cdef bytes name = topic.encode("ascii")
        cdef const uint8_t* text = name
        cdef const uint8_t* id_bytes = topic_id
        cdef Served* fresh
        if len(topic_id) != TOPIC_ID_BYTES:
            raise ValueError(f"a topic id of {len(topic_id)} bytes")
        fresh = <Served*>calloc(1, sizeof(Served) + len(name))
        if fresh == NULL:
            raise MemoryError
        fresh.references = 1
        fresh.partition = log.partition
        partition_retain(fresh.partition)
        fresh.commits = commits.queue
        commit_retain(fresh.commits)
        fresh.disk = disk.queue
        work_retain(fresh.disk)
        fresh.traffic = traffic.traffic
        traffic_retain(fresh.traffic)
        fresh.index = index
        fresh.name_size = <int32_t>len(name)
        memcpy(<void*>served_name(fresh), text, fresh.name_size)
        memcpy(fresh.topic_id, id_bytes, TOPIC_ID_BYTES)
        fresh.max_message_bytes = max_message_bytes
        fresh.decompressed_limit = decompressed_limit
        fresh.before_max_ms = before_max_ms
        fresh.after_max_ms = after_max_ms
        fresh.flush_messages = flush_messages
        fresh.flush_before_ack = flush_before_ack
        fresh.key_required = key_required
        fresh.produce_is_pythons = produce_is_pythons
        store(&fresh.partition.number, number)
        if not served_publish(&self.table, fresh):
            served_release(fresh)
            raise MemoryError

    def withdraw(self, str topic, int32_t index):
        cdef bytes name = topic.encode("ascii")
        cdef const uint8_t* text = name
        served_withdraw(&self.table, text, <int32_t>len(name), index)
