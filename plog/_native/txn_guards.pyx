"""Whether a write may begin a transaction in a partition: a guard for each producer that is about to (KIP-890).

Owns the life of a guard. The transaction's coordinator must know the partition before the first record of a
transaction is there, or it would never end. So Python asks the coordinator about a producer's first batch, which a
granted guard lets in, once. A coordinator on the same broker also grants ahead, to one writer: the producer, its
epoch, its transactional id, and the connection by which its partition joined. On one connection requests are taken in
their order, so that no write from before that can use it. Never decides which are granted, nor when a transaction ends.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from plog._native.locks cimport add
from plog._native.part_list cimport part_add, parts_release

cdef int64_t numbered = NO_GUARD  # atomic


cdef inline TxnGuard* guard_at(const TxnGuards* guards, int64_t place) noexcept nogil:
    return &(<TxnGuard*>guards.guards.items)[place]


cdef TxnGuard* guard_of(
        const TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, bint from_zero) noexcept nogil:
    cdef TxnGuard* guard
    cdef int64_t place
    for place in range(guards.guards.count):
        guard = guard_at(guards, place)
        if (guard.producer_id == producer_id and guard.producer_epoch == producer_epoch
                and guard.from_zero == from_zero):
            return guard
    return NULL


cdef TxnGuard* guard_numbered(const TxnGuards* guards, int64_t number) noexcept nogil:
    cdef int64_t place
    for place in range(guards.guards.count):
        if guard_at(guards, place).number == number:
            return guard_at(guards, place)
    return NULL


cdef void forget_writer(TxnGuard* guard) noexcept nogil:
    free(<void*>guard.ahead.transactional_id)
    memset(&guard.ahead, 0, sizeof(Writer))


cdef void remove(TxnGuards* guards, TxnGuard* guard) noexcept nogil:
    """The last one takes its place."""
    forget_writer(guard)
    guards.guards.count -= 1
    guard[0] = guard_at(guards, guards.guards.count)[0]


cdef TxnGuard* guard_for(
        TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, bint from_zero) noexcept nogil:
    """The one there is, or a new one; NULL: no memory."""
    cdef TxnGuard* found = guard_of(guards, producer_id, producer_epoch, from_zero)
    if found != NULL:
        return found
    found = <TxnGuard*>part_add(&guards.guards, sizeof(TxnGuard))
    if found != NULL:
        found.producer_id = producer_id
        found.producer_epoch = producer_epoch
        found.from_zero = from_zero
        found.state = GUARD_ASKED
        found.number = add(&numbered, 1)
    return found


cdef bint is_fenced(const TxnGuards* guards, int64_t producer_id, int16_t producer_epoch) noexcept nogil:
    """Whether a later epoch of the producer was granted one."""
    cdef const TxnGuard* guard
    cdef int64_t place
    for place in range(guards.guards.count):
        guard = guard_at(guards, place)
        if (guard.producer_id == producer_id and guard.producer_epoch > producer_epoch
                and guard.state == GUARD_GRANTED):
            return True
    return False


cdef void fence(TxnGuards* guards, int64_t producer_id, int16_t producer_epoch) noexcept nogil:
    """Take away those of earlier epochs."""
    cdef TxnGuard* guard
    cdef int64_t place = 0
    while place < guards.guards.count:
        guard = guard_at(guards, place)
        if guard.producer_id == producer_id and guard.producer_epoch < producer_epoch:
            remove(guards, guard)
        else:
            place += 1


cdef int64_t guards_ask(
        TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, bint from_zero) noexcept nogil:
    cdef TxnGuard* guard = guard_for(guards, producer_id, producer_epoch, from_zero)
    if guard == NULL:
        return NO_GUARD
    guard.holders += 1
    return guard.number


cdef void guards_approve(TxnGuards* guards, int64_t number) noexcept nogil:
    cdef TxnGuard* guard = guard_numbered(guards, number)
    if guard != NULL and not is_fenced(guards, guard.producer_id, guard.producer_epoch):
        guard.state = GUARD_GRANTED
        fence(guards, guard.producer_id, guard.producer_epoch)


cdef void guards_refuse(TxnGuards* guards, int64_t number) noexcept nogil:
    cdef TxnGuard* guard = guard_numbered(guards, number)
    if guard == NULL:
        return
    guard.holders -= 1
    if guard.holders == 0 and guard.ahead.transactional_id_size == 0:
        remove(guards, guard)


cdef bint guards_is_granted(
        const TxnGuards* guards, int64_t number, int64_t producer_id, int16_t producer_epoch) noexcept nogil:
    cdef const TxnGuard* guard = guard_numbered(guards, number)
    return (guard != NULL and guard.producer_id == producer_id and guard.producer_epoch == producer_epoch
            and guard.state == GUARD_GRANTED)


cdef bint guards_grant_ahead(
        TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil:
    cdef bint is_new = guard_of(guards, producer_id, producer_epoch, False) == NULL
    cdef TxnGuard* guard
    cdef uint8_t* name
    if writer.transactional_id_size <= 0 or is_fenced(guards, producer_id, producer_epoch):
        return False
    fence(guards, producer_id, producer_epoch)
    if is_new and guards.guards.count >= MOST_GRANTED_AHEAD:
        return False
    name = <uint8_t*>malloc(writer.transactional_id_size)
    guard = guard_for(guards, producer_id, producer_epoch, False) if name != NULL else NULL
    if guard == NULL:
        free(name)
        return False
    forget_writer(guard)
    memcpy(name, writer.transactional_id, writer.transactional_id_size)
    guard.ahead = writer[0]
    guard.ahead.transactional_id = name
    guard.state = GUARD_GRANTED
    return True


cdef bint guards_use(
        TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil:
    cdef TxnGuard* guard = guard_of(guards, producer_id, producer_epoch, False)
    if (guard == NULL or guard.ahead.connection != writer.connection or guard.ahead.transactional_id_size == 0
            or guard.ahead.transactional_id_size != writer.transactional_id_size
            or memcmp(guard.ahead.transactional_id, writer.transactional_id, writer.transactional_id_size) != 0):
        return False  # it stays: its writer may still come
    remove(guards, guard)
    return True


cdef void guards_revoke(TxnGuards* guards, int64_t producer_id) noexcept nogil:
    cdef TxnGuard* guard
    cdef int64_t place = 0
    while place < guards.guards.count:
        guard = guard_at(guards, place)
        if producer_id == ANY_PRODUCER or guard.producer_id == producer_id:
            forget_writer(guard)
            if guard.holders == 0:
                remove(guards, guard)
                continue
        place += 1


cdef void guards_end(TxnGuards* guards, int64_t producer_id, int32_t but_epoch) noexcept nogil:
    cdef TxnGuard* guard
    cdef int64_t place = 0
    while place < guards.guards.count:
        guard = guard_at(guards, place)
        if guard.producer_id == producer_id and guard.producer_epoch != but_epoch:
            remove(guards, guard)
        else:
            place += 1


cdef void guards_release(TxnGuards* guards) noexcept nogil:
    cdef int64_t place
    for place in range(guards.guards.count):
        forget_writer(guard_at(guards, place))
    parts_release(&guards.guards)
