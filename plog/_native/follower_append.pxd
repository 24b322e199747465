# Appends of a follower: batches as their leader sent them. Nothing here judges what a producer may send; the leader did.
from libc.stdint cimport int32_t, int64_t, uint8_t

from plog._native.batch_fields cimport BatchFields
from plog._native.partition cimport Partition
from plog._native.producers cimport Producer

cdef enum FetchedFault:
    FETCHED_SOUND = 0
    FETCHED_NOT_WHOLE = 1        # cut, or its magic, CRC or structure is wrong
    FETCHED_OUT_OF_ORDER = 2     # it begins below the end of the batch before it, or of the log
    FETCHED_TOO_FAR = 3          # no segment could hold it: too many offsets are missing before it
    FETCHED_EPOCH_BACK = 4       # its leader epoch is older than that of the batch before it
    FETCHED_EPOCH_AHEAD = 5      # its leader epoch is newer than that of the fetch

# The state of a check. The caller sets `end_offset` and `last_epoch` to those of the log.
ctypedef struct FetchedCheck:
    FetchedFault fault
    int batch_status             # BATCH_...
    int64_t position             # of the faulty batch in the buffer
    int64_t end_offset           # behind the last sound batch
    int32_t last_epoch           # of the last sound batch
    int64_t gaps_end             # base offset of the last batch behind a gap; -1: there is no gap
    BatchFields batch            # the faulty one

cdef enum FetchedStatus:
    FETCHED_APPENDED = 0
    FETCHED_ROLL_NEEDED = 1
    FETCHED_UNUSUAL = 2          # Python decides about the next batch
    FETCHED_WRITE_FAILED = 3
    FETCHED_NOT_FOLLOWER = 4     # the log accepts appends of clients, or is closed or offline
    FETCHED_OTHER_EPOCH = 5      # the leader epoch has changed since the fetch was sent

ctypedef struct FetchedResult:
    FetchedStatus status
    int64_t taken                # bytes of the batches that are written
    int error                    # errno of WRITE_FAILED, and of NOT_FOLLOWER while offline

# Check a whole fetch response before any of it is appended.
cdef void fetched_check(
    const uint8_t* data, int64_t size, int32_t leader_epoch, FetchedCheck* check) noexcept nogil
# Append checked batches until one is unusual. `latest_epoch`: of the leader epochs that the log knows. `is_decided`:
# append the first batch alone. Its producer becomes `decided` before the batch is noted; NULL: nothing is noted.
cdef void partition_append_fetched(
    Partition* partition, const uint8_t* data, int64_t size, int64_t now_ms, int32_t leader_epoch,
    int32_t latest_epoch, bint is_decided, const Producer* decided, FetchedResult* out) noexcept nogil
