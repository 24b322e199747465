# The Produces that a reactor has read in one round, written together: one write for each partition.
from libc.stdint cimport int64_t

from plog._native.reactor_types cimport Gather, Request

# Take a request in, as far as it goes. If it did not go in whole (see `appended`), or nothing more does, `is_full` is
# set.
cdef void gather_add(Gather* gather, Request* request, int64_t now_ms) noexcept nogil
# Whether who was read first, and who else writes to these partitions, has waited for long enough.
cdef bint gather_is_due(const Gather* gather) noexcept nogil
# Write every partition's batches, and let go of the partitions. The requests stay, for `produce_conclude`. What a disk
# that has neighbours would keep the reactor waiting for, once it was slow, is not written.
cdef void gather_write(Gather* gather) noexcept nogil
# All are concluded.
cdef void gather_clear(Gather* gather) noexcept nogil
cdef void gather_release(Gather* gather) noexcept nogil
