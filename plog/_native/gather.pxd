# The Produces that a reactor has read in one round, written together: one write for each partition.
from libc.stdint cimport int64_t, uint8_t

from plog._native.connection cimport Connection
from plog._native.log_append cimport AppendGroup
from plog._native.parked cimport Parked
from plog._native.produce_path cimport ProduceCall
from plog._native.topic_traffic cimport Traffic
from plog._native.work_queue cimport WorkQueue

cdef enum:
    MOST_GROUPS = 64
    MOST_GATHERED = 256

# A request whose batches wait to be written.
ctypedef struct Gathered:
    Connection* connection
    ProduceCall call
    uint8_t* frame               # in the connection's buffer, or in one that the scratch holds, or in `parked`
    int64_t size
    Parked* parked               # what has been worked on beside the reactor; NULL: it was just read

ctypedef struct PartitionWrite:
    AppendGroup group
    WorkQueue* disk              # the pin of a request's partition; the same for all
    Traffic* traffic             # its pin as well

ctypedef struct Gather:
    PartitionWrite writes[MOST_GROUPS]
    int64_t write_count
    Gathered requests[MOST_GATHERED]
    int64_t request_count
    int64_t bytes
    int64_t begun_us             # when the first partition was held
    bint is_full                 # write before anything else is taken in

# Take a request in, as far as it goes; what is in `call` changes places with what was used before. If it did not go
# in whole (see call.appended), or nothing more does, `is_full` is set.
cdef void gather_add(
    Gather* gather, Connection* c, ProduceCall* call, uint8_t* frame, int64_t size, Parked* parked,
    int64_t now_ms) noexcept nogil
# Whether who was read first, and who else writes to these partitions, has waited for long enough.
cdef bint gather_is_due(const Gather* gather) noexcept nogil
# Write every partition's batches, and let go of the partitions. The requests stay, for `produce_conclude`. What a disk
# that has neighbours would keep the reactor waiting for, once it was slow, is not written.
cdef void gather_write(Gather* gather) noexcept nogil
# All are concluded.
cdef void gather_clear(Gather* gather) noexcept nogil
cdef void gather_release(Gather* gather) noexcept nogil
