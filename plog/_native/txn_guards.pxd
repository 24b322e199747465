# The producers that may begin a transaction in one partition (KIP-890).
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.locks cimport add, pthread_mutex_t
from plog._native.part_list cimport PartList

cdef enum:
    MOST_GRANTED_AHEAD = 256     # a search looks at all guards; with more of them Python is asked
    NO_GUARD = 0
    ANY_PRODUCER = -1

# A producer that is in neither state has no guard. It leaves them when its first batch is appended (used), and when a
# marker, a later epoch or a refusal comes first (lost).
ctypedef enum GuardState:
    GUARD_ASKED = 1              # the transaction's coordinator is being asked
    GUARD_GRANTED = 2            # it has granted it

# The writer of a request, and the connection of this broker that the request came by.
ctypedef struct Writer:
    int64_t connection
    const uint8_t* transactional_id
    int32_t transactional_id_size

ctypedef struct TxnGuard:
    int64_t producer_id
    int16_t producer_epoch
    bint from_zero               # the epoch is the transaction's own: nothing comes before sequence 0
    GuardState state
    int64_t number               # which Python knows it by; no two have the same
    int64_t holders              # how many asked, and were not refused
    Writer ahead                 # the one it was granted ahead, owned; size 0: none

# One at most for each producer and epoch, in no order. Shared by a log and the one that takes its place.
ctypedef struct TxnGuards:
    int64_t references           # atomic
    int64_t id                   # no two have the same
    pthread_mutex_t lock         # each function below takes it
    PartList guards              # of TxnGuard
    int64_t ahead                # how many were granted ahead

cdef TxnGuards* guards_new() noexcept nogil                  # NULL: no memory
cdef inline void guards_retain(TxnGuards* guards) noexcept nogil:
    add(&guards.references, 1)
cdef void guards_release(TxnGuards* guards) noexcept nogil

# The number of the guard; NO_GUARD: no memory.
cdef int64_t guards_ask(
    TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, bint from_zero) noexcept nogil
# The coordinator says yes, to one that asked; whatever earlier epochs have is lost by that.
cdef void guards_approve(TxnGuards* guards, int64_t number) noexcept nogil
# Or no.
cdef void guards_refuse(TxnGuards* guards, int64_t number) noexcept nogil
cdef bint guards_is_granted(
    TxnGuards* guards, int64_t number, int64_t producer_id, int16_t producer_epoch) noexcept nogil
# The coordinator says yes before anyone asks, to one writer. False: no memory, too many, or it is fenced.
cdef bint guards_grant_ahead(
    TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil
# Whether just this writer was granted one ahead; it is used by that. It stays for those who asked, until one of their
# batches or a marker ends it: this writer's append may yet fail.
cdef bint guards_use(
    TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil
# Take back guards that were granted ahead, of a producer or of ANY_PRODUCER: Python is asked after all.
cdef void guards_revoke(TxnGuards* guards, int64_t producer_id) noexcept nogil
# Used or lost, up to an epoch.
cdef void guards_end(TxnGuards* guards, int64_t producer_id, int32_t last_epoch) noexcept nogil
cdef int64_t guards_count(TxnGuards* guards) noexcept nogil
