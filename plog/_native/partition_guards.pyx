"""Python's side of the guards of a partition: who may begin a transaction there.

Owns their form in Python. Their life is that of `txn_guards`.
"""

from typing import NamedTuple

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memset

from plog._native.locks cimport pthread_mutex_lock, pthread_mutex_unlock
from plog._native.partition cimport Partition
from plog._native.partition_log cimport PartitionLog
from plog._native.txn_guards cimport (
    MOST_GRANTED_AHEAD as MOST_GRANTED_AHEAD_, NO_GUARD, TxnGuards, Writer, guards_approve, guards_ask, guards_end,
    guards_grant_ahead, guards_is_granted, guards_refuse, guards_release, guards_revoke)

MOST_GRANTED_AHEAD = MOST_GRANTED_AHEAD_
ANY_EPOCH = -1


class TxnGuard(NamedTuple):
    origin: int
    number: int
    producer_id: int
    producer_epoch: int
    from_zero: bool


def ask(PartitionLog log not None, int64_t producer_id, int16_t producer_epoch, *, bint from_zero=False):
    cdef Partition* partition = log.partition
    cdef int64_t number, origin
    pthread_mutex_lock(&partition.lock)
    number = guards_ask(&partition.guards, producer_id, producer_epoch, from_zero)
    origin = partition.guards.origin
    pthread_mutex_unlock(&partition.lock)
    if number == NO_GUARD:
        raise MemoryError
    return TxnGuard(origin, number, producer_id, producer_epoch, from_zero != 0)


def approve(PartitionLog log not None, guard not None):
    cdef Partition* partition = log.partition
    cdef int64_t number = guard.number
    pthread_mutex_lock(&partition.lock)
    guards_approve(&partition.guards, number)
    pthread_mutex_unlock(&partition.lock)


def refuse(PartitionLog log not None, guard not None):
    cdef Partition* partition = log.partition
    cdef int64_t number = guard.number
    pthread_mutex_lock(&partition.lock)
    guards_refuse(&partition.guards, number)
    pthread_mutex_unlock(&partition.lock)


def is_granted(PartitionLog log not None, guard not None, int64_t producer_id, int16_t producer_epoch):
    cdef Partition* partition = log.partition
    cdef int64_t number = guard.number
    cdef bint granted
    pthread_mutex_lock(&partition.lock)
    granted = guards_is_granted(&partition.guards, number, producer_id, producer_epoch)
    pthread_mutex_unlock(&partition.lock)
    return granted


def is_of(PartitionLog log not None, guard not None):
    cdef Partition* partition = log.partition
    cdef int64_t origin
    pthread_mutex_lock(&partition.lock)
    origin = partition.guards.origin
    pthread_mutex_unlock(&partition.lock)
    return origin == guard.origin


def grant_ahead(
        PartitionLog log not None, int64_t producer_id, int16_t producer_epoch, bytes transactional_id not None,
        int64_t connection):
    cdef Partition* partition = log.partition
    cdef Writer writer
    cdef bint granted
    writer.connection = connection
    writer.transactional_id = <const uint8_t*>PyBytes_AS_STRING(transactional_id)
    writer.transactional_id_size = <int32_t>len(transactional_id)
    pthread_mutex_lock(&partition.lock)
    granted = guards_grant_ahead(&partition.guards, producer_id, producer_epoch, &writer)
    pthread_mutex_unlock(&partition.lock)
    return granted


def revoke(PartitionLog log not None, int64_t producer_id):
    cdef Partition* partition = log.partition
    pthread_mutex_lock(&partition.lock)
    guards_revoke(&partition.guards, producer_id)
    pthread_mutex_unlock(&partition.lock)


def end(PartitionLog log not None, int64_t producer_id, *, int32_t but_epoch=-1):
    cdef Partition* partition = log.partition
    pthread_mutex_lock(&partition.lock)
    guards_end(&partition.guards, producer_id, but_epoch)
    pthread_mutex_unlock(&partition.lock)


def succeed(PartitionLog log not None, PartitionLog before not None):
    cdef Partition* partition = log.partition
    cdef TxnGuards taken
    pthread_mutex_lock(&before.partition.lock)
    taken = before.partition.guards
    memset(&before.partition.guards, 0, sizeof(TxnGuards))
    pthread_mutex_unlock(&before.partition.lock)
    pthread_mutex_lock(&partition.lock)
    guards_release(&partition.guards)
    partition.guards = taken
    pthread_mutex_unlock(&partition.lock)


def guard_count(PartitionLog log not None):
    cdef Partition* partition = log.partition
    cdef int64_t count
    pthread_mutex_lock(&partition.lock)
    count = partition.guards.guards.count
    pthread_mutex_unlock(&partition.lock)
    return count
