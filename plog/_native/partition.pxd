# The mutable state of one partition, for both planes, and what the reactor may call on it without the interpreter
# lock. Nothing here touches Python objects.
#
# Locks, in this order: flush_lock (one flush at a time), write_lock (writers, held while they write: append, roll,
# truncation, producers, leadership), lock (numbers and the segment list; held for some instructions, never over I/O).
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.aborted_list cimport AbortedList
from plog._native.disk_room cimport Room
from plog._native.followers cimport Follower, Followers
from plog._native.locks cimport load_pointer, pthread_mutex_t
from plog._native.mailbox cimport Letter
from plog._native.producers cimport Producer, ProducerTable
from plog._native.segment_files cimport SegmentList
from plog._native.txn_guards cimport TxnGuards, Writer

cdef enum:
    SLOT_KEY_BYTES = 20

# A transaction whose marker is written, but not yet below the high watermark.
ctypedef struct EndingTransaction:
    int64_t first_offset
    int64_t marker_offset

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
    int64_t log_id               # of this log alone among all that this process has opened
    int64_t changes              # how often; atomic

    pthread_mutex_t flush_lock
    char* directory              # its path; owned, never changed
    int64_t directory_synced_to  # the directory entries of segments based at or below it are durable
    int slot_fd                  # borrowed; -1: none
    int64_t slot_position
    uint8_t slot_key[SLOT_KEY_BYTES]

    CommitAsked commit_asked

    pthread_mutex_t write_lock
    Room* room                   # a pin, of the log directory; NULL: without end
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
    int64_t waiting              # how many there are; atomic
    int64_t number               # under which Python knows it while it is served, else -1; atomic
    SegmentList* segments
    int64_t log_start_offset
    int64_t log_end_offset
    int64_t durable_end
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t leader_epoch
    int64_t epoch_start          # the log end when this broker began to lead under leader_epoch; -1: it does not lead
    int64_t led_since            # the leader epoch since which this broker has led without a break; -1: it does not lead
    Followers followers          # of a leader; empty as long as this broker replicates nothing
    int64_t enough_in_sync       # atomic; the in-sync replicas are at least min.insync.replicas
    int64_t gaps_legal_below     # batches may be missing below it: compaction has been there
    TxnGuards* guards            # a pin: who may begin transactions
    int64_t first_open_offset    # of the open transactions; INT64_MAX when there is none
    AbortedList* aborted         # atomic, and a pin; NULL: none. What it pins is the lock's to give
    EndingTransaction* ending
    int64_t ending_count
    int64_t ending_capacity
    int64_t truncations          # atomic; how often the end was set back
    int64_t closed               # atomic; no segments any more
    int64_t offline_errno        # atomic; not 0: broken, or told to be

# Which log took a batch in, and in which state of it: recorded under write_lock at the append.
ctypedef struct AppendPlace:
    int64_t log_id
    int64_t truncations
    int64_t leader_epoch

# Whether a batch with acks=all can be acknowledged.
cdef enum AckStatus:
    ACK_WAITS = 0
    ACK_SAFE = 1
    ACK_NOT_LEADER = 2           # leadership or the log was lost since the append: the records may be gone
    ACK_OFFLINE = 3
    ACK_TOO_FEW_IN_SYNC = 4      # committed, but on fewer replicas than min.insync.replicas

cdef enum FollowerStatus:
    FOLLOWER_UNKNOWN = 0         # or this broker does not lead under the epoch
    FOLLOWER_NOTED = 1
    FOLLOWER_MAY_JOIN = 2        # it does not count, and has all that it needs for it

cdef enum PublishStatus:
    PUBLISH_DONE = 0
    PUBLISH_CLOSED = 1
    PUBLISH_MISFIT = 2           # the segments end elsewhere than the log
    PUBLISH_FAILED = 3           # the slot could not be written

# Without segments and offsets, which the maker fills in before anyone else sees it, and then calls settle.
cdef Partition* partition_new(const char* directory) noexcept nogil
# Under `lock`: restores what the invariants say of high watermark and last stable offset.
cdef void settle(Partition* partition) noexcept nogil
# Every change that others may wait for passes through here; no lock may be held.
cdef void partition_changed(Partition* partition) noexcept nogil
# Wake `waiter` at every change from now on, until it is removed; after that its `wake` is not called any more.
cdef void partition_add_waiter(Partition* partition, Waiter* waiter) noexcept nogil
cdef void partition_remove_waiter(Waiter* waiter) noexcept nogil
cdef void partition_go_offline(Partition* partition, int error) noexcept nogil
cdef void partition_retain(Partition* partition) noexcept nogil
cdef void partition_release(Partition* partition) noexcept nogil

cdef bint partition_advance_high_watermark(Partition* partition, int64_t offset) noexcept nogil

# The list is taken over, whatever the answer.
cdef PublishStatus partition_replace_segments(Partition* partition, SegmentList* fresh) noexcept nogil
cdef void partition_set_limits(
    Partition* partition, int64_t segment_bytes, int64_t segment_ms, int64_t segment_jitter_ms,
    int64_t index_interval_bytes) noexcept nogil
# `leads` without `writable`: a leader that accepts no appends for a moment. `sole_replica`: every append is committed
# at once. `enough_in_sync` counts as long as there are no followers.
cdef void partition_set_leader(
    Partition* partition, int32_t leader_epoch, bint leads, bint writable, bint sole_replica,
    bint enough_in_sync) noexcept nogil
# The followers of a leader, which move its high watermark: see `followers_set`. Nothing happens if this broker does not
# lead under the epoch. False: no memory.
cdef bint partition_set_followers(
    Partition* partition, int32_t leader_epoch, const Follower* followers, int64_t count, int64_t least_in_sync,
    int64_t now_ms) noexcept nogil
# A fetch of a follower has come: see `followers_note`.
cdef FollowerStatus partition_note_follower(
    Partition* partition, int32_t leader_epoch, int32_t broker_id, int64_t broker_epoch, int64_t position,
    int64_t log_start_offset, int64_t now_ms) noexcept nogil
# Before the controller is asked: a follower that is to join counts from now on. False: it may not (any more).
cdef bint partition_count_follower(Partition* partition, int32_t leader_epoch, int32_t broker_id) noexcept nogil
# A note for Python says that a follower may join, or Python has taken it. False: that was known before, or it is none.
cdef bint partition_mark_reported(Partition* partition, int32_t broker_id, bint is_reported) noexcept nogil
# The one rule for acks=all, for requests of both planes and for the broker's own appends.
cdef AckStatus partition_ack_status(
    Partition* partition, const AppendPlace* place, int64_t last_offset, bint must_be_durable) noexcept nogil
cdef void partition_set_room(Partition* partition, Room* room) noexcept nogil
# False when it lies past the end.
cdef bint partition_set_log_start_offset(Partition* partition, int64_t offset) noexcept nogil
# The pin is taken over. Before an aborted transaction's marker is written: with that come its readers.
cdef void partition_set_aborted(Partition* partition, AbortedList* fresh) noexcept nogil
# One pin of what there is, or NULL.
cdef AbortedList* partition_pin_aborted(Partition* partition) noexcept nogil
# Whether a list is still the one: to be asked of one that is pinned, or NULL.
cdef inline bint partition_has_aborted(Partition* partition, const AbortedList* pinned) noexcept nogil:
    return load_pointer(<void**>&partition.aborted) == <const void*>pinned
cdef void partition_close(Partition* partition) noexcept nogil

# A guard that was granted ahead lets the producer's next batch begin a transaction. Any other change of the producer
# revokes it, and so does every change of leadership. False: the producer has none.
cdef bint partition_use_guard(
    Partition* partition, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil
cdef void partition_revoke_guard(Partition* partition, int64_t producer_id) noexcept nogil
# A pin of its guards.
cdef TxnGuards* partition_pin_guards(Partition* partition) noexcept nogil
# The pin is taken over.
cdef void partition_set_guards(Partition* partition, TxnGuards* guards) noexcept nogil

cdef bint partition_copy_producer(Partition* partition, int64_t producer_id, Producer* out) noexcept nogil
# How many, or -ENOMEM; *out is the caller's to free.
cdef int64_t partition_copy_producers(Partition* partition, Producer** out) noexcept nogil
# 1: done, 0: the entry has another version, -ENOMEM.
cdef int partition_put_producer(
    Partition* partition, const Producer* source, int64_t if_version) noexcept nogil
# The table is taken over.
cdef void partition_load_producers(Partition* partition, ProducerTable* fresh) noexcept nogil
# Under write_lock: put the table in, and return the one that was there, for the caller to free.
cdef ProducerTable swap_producers(Partition* partition, ProducerTable* fresh) noexcept nogil
# Under both locks, after a change of the table that is no append; `settle` has to follow.
cdef void note_producers(Partition* partition) noexcept nogil
# False: its entry has another version, or is gone.
cdef bint partition_remove_producer(
    Partition* partition, int64_t producer_id, int64_t if_version) noexcept nogil
