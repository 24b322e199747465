# The mutable state of one partition, for both planes, and what the reactor may call on it without the interpreter
# lock. Nothing here touches Python objects.
#
# Locks, in this order: flush_lock (one flush at a time), write_lock (writers, held while they write: append, roll,
# truncation, producers, leadership), lock (numbers and the segment list; held for some instructions, never over I/O).
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.locks cimport pthread_mutex_t
from plog._native.mailbox cimport Letter
from plog._native.producers cimport Producer, ProducerTable
from plog._native.segment cimport SegmentFiles

cdef enum:
    SLOT_KEY_BYTES = 20

# An immutable list of segments; each list pins its segments, each reader the list.
ctypedef struct SegmentList:
    int64_t references
    int64_t count
    int64_t size_before_active
    SegmentFiles** segments      # ascending, the last is active

# A transaction whose marker is written, but not yet below the high watermark.
ctypedef struct EndingTransaction:
    int64_t first_offset
    int64_t marker_offset

# Who is told of the next change after `watched` was set: Python, for the requests that wait there.
ctypedef void (*ChangeListener)(void* argument, int64_t number) noexcept nogil

# A place in a partition's list of those who wait for it; circular, alone when linked to itself.
ctypedef struct Waiter:
    Waiter* previous
    Waiter* next
    Partition* partition         # NULL: in no list
    void* owner                  # who waits, for `wake`
    # Called under `lock` at every change of end, durable end, high watermark, last stable offset, epoch or
    # existence: to leave word for the thread that waits, and no more.
    void (*wake)(Waiter* waiter) noexcept nogil

# A partition's place in the commit queue of its log directory.
ctypedef struct CommitAsked:
    Letter letter
    Partition* partition
    int64_t waits                # atomic; 1: it is there, or about to be

ctypedef struct Partition:
    int64_t references           # atomic
    int64_t changes              # how often; atomic

    pthread_mutex_t flush_lock
    int directory_fd             # owned
    int64_t directory_synced_to  # the directory entries of segments based at or below it are durable
    int slot_fd                  # borrowed; -1: none
    int64_t slot_position
    uint8_t slot_key[SLOT_KEY_BYTES]

    CommitAsked commit_asked

    pthread_mutex_t write_lock
    ProducerTable producers
    int64_t segment_bytes        # atomic, as `writable`: the reactors look without the lock
    int64_t segment_ms
    int64_t segment_jitter_ms
    int64_t index_interval_bytes
    int64_t writable
    bint roll_asked              # the end stands still until the active segment is another one
    bint sole_replica

    pthread_mutex_t lock
    Waiter waiters               # head of the list
    int64_t waiting              # how many there are, and one if `watched`; atomic
    bint watched
    ChangeListener listener
    void* listener_argument
    int64_t listener_number      # under which the listener knows this partition; atomic, as the commit thread asks too
    SegmentList* segments
    int64_t log_start_offset
    int64_t log_end_offset
    int64_t durable_end
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t leader_epoch
    int64_t first_open_offset    # of the open transactions; INT64_MAX when there is none
    EndingTransaction* ending
    int64_t ending_count
    int64_t ending_capacity
    int64_t truncations          # atomic; how often the end was set back
    int64_t closed               # atomic; no segments any more
    int64_t offline_errno        # atomic; not 0: broken, or told to be

cdef enum AppendStatus:
    APPEND_DONE = 0
    APPEND_DUPLICATE = 1
    APPEND_ROLL_NEEDED = 2
    APPEND_PRODUCER_UNUSUAL = 3
    APPEND_WRITE_FAILED = 4
    APPEND_NOT_WRITABLE = 5
    APPEND_BAD_BATCH = 6         # not one whole v2 batch: the caller did not validate it

ctypedef struct AppendResult:
    AppendStatus status
    int64_t base_offset
    int64_t last_offset
    int64_t timestamp
    int64_t log_start_offset
    int error                    # errno of WRITE_FAILED and NOT_WRITABLE

cdef enum ReadStatus:
    READ_FOUND = 0
    READ_NOTHING = 1             # at or past the upper offset, or no room for the first batch
    READ_OUT_OF_RANGE = 2        # below the log start offset, or past the log end offset
    READ_OFFLINE = 3
    READ_CORRUPT = 4             # bad header at `position` of the segment based at `base_offset`
    READ_FAILED = 5

ctypedef struct ReadResult:
    ReadStatus status
    SegmentFiles* segment        # READ_FOUND: pinned for the caller
    int64_t base_offset          # of that segment
    int64_t position
    int64_t size
    int64_t next_offset_hint     # -1: not known
    int64_t log_start_offset     # these as they were when the segments were pinned
    int64_t log_end_offset
    int64_t high_watermark
    int64_t last_stable_offset
    int error

cdef enum PublishStatus:
    PUBLISH_DONE = 0
    PUBLISH_CLOSED = 1
    PUBLISH_MISFIT = 2           # the segments end elsewhere than the log
    PUBLISH_FAILED = 3           # the slot could not be written

# One pin; NULL when memory is out. `count` places, not yet filled.
cdef SegmentList* list_new(int64_t count) noexcept nogil
cdef void list_release(SegmentList* segments) noexcept nogil
cdef SegmentFiles* active_of(const SegmentList* segments) noexcept nogil

# Without segments and offsets, which the maker fills in before anyone else sees it, and then calls settle.
cdef Partition* partition_new() noexcept nogil
# Under `lock`: restores what the invariants say of high watermark and last stable offset.
cdef void settle(Partition* partition) noexcept nogil
# Every change that others may wait for passes through here; no lock may be held.
cdef void partition_changed(Partition* partition) noexcept nogil
# Wake `waiter` at every change from now on, until it is removed; after that its `wake` is not called any more.
cdef void partition_add_waiter(Partition* partition, Waiter* waiter) noexcept nogil
cdef void partition_remove_waiter(Waiter* waiter) noexcept nogil
# Have the listener called once, at the next change.
cdef void partition_watch(Partition* partition) noexcept nogil
cdef void partition_set_listener(
    Partition* partition, ChangeListener listener, void* argument, int64_t number) noexcept nogil
cdef void partition_go_offline(Partition* partition, int error) noexcept nogil
cdef void partition_retain(Partition* partition) noexcept nogil
cdef void partition_release(Partition* partition) noexcept nogil

# One validated batch, restamped in place. `decided`: NULL, or the entry that Python wants the producer to have before
# this batch; its version says which state that decision was made upon.
cdef void partition_append(
    Partition* partition, uint8_t* data, int64_t size, int64_t now_ms, const Producer* decided,
    AppendResult* out) noexcept nogil
# Unless it may wait for the disk, it fails with EAGAIN where that would have to be asked.
cdef void partition_read(
    Partition* partition, int64_t fetch_offset, int64_t max_bytes, int64_t upper_offset, bint whole_first_batch,
    bint may_wait, ReadResult* out) noexcept nogil
# 0 or -errno; *durable_end is set either way.
cdef int partition_flush(Partition* partition, int64_t* durable_end) noexcept nogil
cdef bint partition_advance_high_watermark(Partition* partition, int64_t offset) noexcept nogil

# The list is taken over, whatever the answer.
cdef PublishStatus partition_replace_segments(Partition* partition, SegmentList* fresh) noexcept nogil
cdef PublishStatus partition_truncate(
    Partition* partition, SegmentList* fresh, int64_t log_end_offset, int* error) noexcept nogil
cdef void partition_set_limits(
    Partition* partition, int64_t segment_bytes, int64_t segment_ms, int64_t segment_jitter_ms,
    int64_t index_interval_bytes) noexcept nogil
cdef void partition_set_leader(
    Partition* partition, int32_t leader_epoch, bint writable, bint sole_replica) noexcept nogil
# False when it lies past the end.
cdef bint partition_set_log_start_offset(Partition* partition, int64_t offset) noexcept nogil
cdef int partition_set_durable_slot(
    Partition* partition, int fd, int64_t position, const char* key) noexcept nogil
cdef void partition_close(Partition* partition) noexcept nogil

cdef bint partition_copy_producer(Partition* partition, int64_t producer_id, Producer* out) noexcept nogil
# How many, or -ENOMEM; *out is the caller's to free.
cdef int64_t partition_copy_producers(Partition* partition, Producer** out) noexcept nogil
# 1: done, 0: the entry has another version, -ENOMEM.
cdef int partition_put_producer(
    Partition* partition, const Producer* source, int64_t if_version) noexcept nogil
# The table is taken over.
cdef void partition_load_producers(Partition* partition, ProducerTable* fresh) noexcept nogil
cdef void partition_remove_producer(Partition* partition, int64_t producer_id) noexcept nogil
