"""Whether a write may begin a transaction in a partition: a guard for each producer that is about to (KIP-890).

Owns the life of a guard. The transaction's coordinator must know the partition before the first record of a
transaction is there, or it would never end. So Python asks the coordinator about a producer's first batch, which a
granted guard lets in, once. A coordinator on the same broker also grants ahead, to one writer: the producer, its
epoch, its transactional id, and the connection by which its partition joined. On one connection requests are taken in
their order, so that no write from before that can use it. Never decides which are granted, nor when a transaction ends.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from plog._native.locks cimport (
    add, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock)
from plog._native.part_list cimport part_add, parts_release

cdef int64_t numbered = NO_GUARD  # atomic
cdef int64_t tables = 0           # atomic


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


cdef void forget_writer(TxnGuards* guards, TxnGuard* guard) noexcept nogil:
    guards.ahead -= guard.ahead.transactional_id_size > 0
    free(<void*>guard.ahead.transactional_id)
    memset(&guard.ahead, 0, sizeof(Writer))


cdef void drop_writer(TxnGuards* guards, TxnGuard* guard) noexcept nogil:
    """Those who asked keep it."""
    forget_writer(guards, guard)
    if guard.holders == 0:
        remove(guards, guard)


cdef void remove(TxnGuards* guards, TxnGuard* guard) noexcept nogil:
    """The last one takes its place."""
    forget_writer(guards, guard)
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


cdef void end_epochs(TxnGuards* guards, int64_t producer_id, int32_t last_epoch) noexcept nogil:
    cdef TxnGuard* guard
    cdef int64_t place
    for place in range(guards.guards.count - 1, -1, -1):
        guard = guard_at(guards, place)
        if guard.producer_id == producer_id and guard.producer_epoch <= last_epoch:
            remove(guards, guard)


# --- for others: each takes the lock --------------------------------------------------------------

cdef TxnGuards* guards_new() noexcept nogil:
    cdef TxnGuards* made = <TxnGuards*>calloc(1, sizeof(TxnGuards))
    if made != NULL:
        made.references = 1
        made.id = add(&tables, 1)
        pthread_mutex_init(&made.lock, NULL)
    return made


cdef void guards_release(TxnGuards* guards) noexcept nogil:
    cdef int64_t place
    if guards == NULL or add(&guards.references, -1) > 0:
        return
    for place in range(guards.guards.count):
        free(<void*>guard_at(guards, place).ahead.transactional_id)
    parts_release(&guards.guards)
    pthread_mutex_destroy(&guards.lock)
    free(guards)


cdef int64_t guards_ask(
        TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, bint from_zero) noexcept nogil:
    cdef TxnGuard* guard
    cdef int64_t number = NO_GUARD
    pthread_mutex_lock(&guards.lock)
    guard = guard_for(guards, producer_id, producer_epoch, from_zero)
    if guard != NULL:
        guard.holders += 1
        number = guard.number
    pthread_mutex_unlock(&guards.lock)
    return number


cdef void guards_approve(TxnGuards* guards, int64_t number) noexcept nogil:
    cdef TxnGuard* guard
    pthread_mutex_lock(&guards.lock)
    guard = guard_numbered(guards, number)
    if guard != NULL and not is_fenced(guards, guard.producer_id, guard.producer_epoch):
        guard.state = GUARD_GRANTED
        end_epochs(guards, guard.producer_id, guard.producer_epoch - 1)
    pthread_mutex_unlock(&guards.lock)


cdef void guards_refuse(TxnGuards* guards, int64_t number) noexcept nogil:
    cdef TxnGuard* guard
    pthread_mutex_lock(&guards.lock)
    guard = guard_numbered(guards, number)
    if guard != NULL:
        guard.holders -= 1
        if guard.holders == 0 and guard.ahead.transactional_id_size == 0:
            remove(guards, guard)
    pthread_mutex_unlock(&guards.lock)


cdef bint guards_is_granted(
        TxnGuards* guards, int64_t number, int64_t producer_id, int16_t producer_epoch) noexcept nogil:
    cdef const TxnGuard* guard
    cdef bint is_granted
    pthread_mutex_lock(&guards.lock)
    guard = guard_numbered(guards, number)
    is_granted = (guard != NULL and guard.producer_id == producer_id and guard.producer_epoch == producer_epoch
                  and guard.state == GUARD_GRANTED)
    pthread_mutex_unlock(&guards.lock)
    return is_granted


cdef bint grant_ahead(
        TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil:
    cdef TxnGuard* guard
    cdef uint8_t* name
    if writer.transactional_id_size <= 0 or is_fenced(guards, producer_id, producer_epoch):
        return False
    end_epochs(guards, producer_id, producer_epoch - 1)
    guard = guard_of(guards, producer_id, producer_epoch, False)
    if guards.ahead >= MOST_GRANTED_AHEAD and (guard == NULL or guard.ahead.transactional_id_size == 0):
        return False
    name = <uint8_t*>malloc(writer.transactional_id_size)
    guard = guard_for(guards, producer_id, producer_epoch, False) if name != NULL else NULL
    if guard == NULL:
        free(name)
        return False
    forget_writer(guards, guard)
    memcpy(name, writer.transactional_id, writer.transactional_id_size)
    guard.ahead = writer[0]
    guard.ahead.transactional_id = name
    guard.state = GUARD_GRANTED
    guards.ahead += 1
    return True


cdef bint guards_grant_ahead(
        TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil:
    cdef bint is_granted
    pthread_mutex_lock(&guards.lock)
    is_granted = grant_ahead(guards, producer_id, producer_epoch, writer)
    pthread_mutex_unlock(&guards.lock)
    return is_granted


cdef inline bint is_for(const TxnGuard* guard, const Writer* writer) noexcept nogil:
    return (guard.ahead.transactional_id_size > 0 and guard.ahead.connection == writer.connection
            and guard.ahead.transactional_id_size == writer.transactional_id_size
            and memcmp(guard.ahead.transactional_id, writer.transactional_id, writer.transactional_id_size) == 0)


cdef bint guards_use(
        TxnGuards* guards, int64_t producer_id, int16_t producer_epoch, const Writer* writer) noexcept nogil:
    cdef TxnGuard* guard
    cdef bint is_used
    pthread_mutex_lock(&guards.lock)
    guard = guard_of(guards, producer_id, producer_epoch, False)
    is_used = guard != NULL and is_for(guard, writer)
    if is_used:
        drop_writer(guards, guard)
    pthread_mutex_unlock(&guards.lock)
    return is_used


cdef void guards_revoke(TxnGuards* guards, int64_t producer_id) noexcept nogil:
    cdef TxnGuard* guard
    cdef int64_t place
    pthread_mutex_lock(&guards.lock)
    # From the end: the last one takes the place of one that goes.
    for place in range(guards.guards.count - 1, -1, -1):
        guard = guard_at(guards, place)
        if producer_id == ANY_PRODUCER or guard.producer_id == producer_id:
            drop_writer(guards, guard)
    pthread_mutex_unlock(&guards.lock)


cdef void guards_end(TxnGuards* guards, int64_t producer_id, int32_t last_epoch) noexcept nogil:
    pthread_mutex_lock(&guards.lock)
    end_epochs(guards, producer_id, last_epoch)
    pthread_mutex_unlock(&guards.lock)


cdef int64_t guards_count(TxnGuards* guards) noexcept nogil:
    cdef int64_t count
    pthread_mutex_lock(&guards.lock)
    count = guards.guards.count
    pthread_mutex_unlock(&guards.lock)
    return count
