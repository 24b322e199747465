# Appends to a partition: the look at its producer, the write and what becomes known by it, as one critical section.
from libc.stdint cimport int16_t, int64_t, uint8_t

from plog._native.txn_guards cimport Writer
from plog._native.part_list cimport PartList
from plog._native.partition cimport AppendPlace, EndingTransaction, Partition
from plog._native.producers cimport Producer, ProducerBatch

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
    AppendPlace place            # where acks=all finds the batch again

# A batch that is to be appended.
ctypedef struct Added:
    int64_t size
    int16_t attributes
    int64_t producer_id          # negative: it has none
    int16_t producer_epoch
    Producer* producer           # the partition's entry of it, or NULL
    ProducerBatch remembered     # with its offsets and its timestamp

# One validated batch, restamped in place. `decided`: NULL, or the entry that Python wants the producer to have before
# this batch; its version says which state that decision was made upon. `writer`: who may have leave to begin a
# transaction by it; NULL: nobody.
cdef void partition_append(
    Partition* partition, uint8_t* data, int64_t size, int64_t now_ms, const Producer* decided,
    const Writer* writer, AppendResult* out) noexcept nogil

# Batches that are written together: the partition's write_lock is held from `group_open` to `group_close`, and nobody
# else sees anything of them before `group_write`. Their bytes stay the caller's, and in place.
ctypedef struct AppendGroup:
    Partition* partition         # NULL: not open
    PartList batches             # of SegmentBatch
    PartList undos               # of what to undo of the producers if the write fails
    int64_t size_bytes
    int64_t record_count         # without control records
    int64_t since_entry_bytes
    int64_t offset_entries       # that they will have
    int64_t time_entries         # at most
    int64_t latest_timestamp
    int64_t end_offset           # behind the last of them; of those that are written, once they are
    EndingTransaction ended      # by a control batch, which is alone in its group
    bint asked_roll
    bint written
    int64_t longest_us           # of the calls that wrote them
    int error                    # why they could not be written

cdef enum GroupOpening:
    GROUP_WAITS = 1              # for other writers
    GROUP_TRIES = 0              # who holds another partition's lock must not wait for one

# False: another writer is at it.
cdef bint group_open(AppendGroup* group, Partition* partition, GroupOpening how) noexcept nogil
# Restamp a batch and take it in. Unless it is APPEND_DONE, which holds once the group is written, nothing has changed.
cdef void group_add(
    AppendGroup* group, uint8_t* data, int64_t size, int64_t now_ms, const Producer* decided,
    const Writer* writer, AppendResult* out) noexcept nogil
# Read the header of a whole batch that gets, or has, a base offset.
cdef void added_read(const uint8_t* data, int64_t base_offset, Added* added) noexcept nogil
# Take a batch in as it is. False: there is no room or no memory, or a roll comes first; nothing has changed then.
cdef bint group_take(
    AppendGroup* group, const uint8_t* data, const Added* added, int64_t now_ms, const Producer* decided,
    AppendResult* out) noexcept nogil
# 0, or the errno that is then in `error`, with all of it undone. After a call that took longer than `patience_us` what
# is not written yet is undone: `end_offset` tells.
cdef int group_write(AppendGroup* group, int64_t patience_us) noexcept nogil
# Undo all of it: it will not be written.
cdef void group_abandon(AppendGroup* group) noexcept nogil
# The lists' memory is kept for the next time.
cdef void group_close(AppendGroup* group) noexcept nogil
cdef void group_release(AppendGroup* group) noexcept nogil
