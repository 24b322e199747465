"""Python's side of the guards of a partition: who may begin a transaction there.

Owns their form in Python. Their life is that of `txn_guards`.
"""

from typing import NamedTuple

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from plog._native.partition cimport partition_pin_guards, partition_set_guards
from plog._native.partition_log cimport PartitionLog
from plog._native.txn_guards cimport (
    MOST_GRANTED_AHEAD as MOST_GRANTED_AHEAD_, NO_GUARD, TxnGuards, Writer, guards_approve, guards_ask, guards_count,
    guards_end, guards_grant_ahead, guards_is_granted, guards_refuse, guards_release, guards_retain, guards_revoke)

MOST_GRANTED_AHEAD = MOST_GRANTED_AHEAD_


class TxnGuard(NamedTuple):
    origin: int
    number: int
    producer_id: int
    producer_epoch: int
    from_zero: bool


cdef class _Pinned:
    """The guards of a log, which it may change for those of another meanwhile."""
    cdef TxnGuards* guards

    def __cinit__(self, PartitionLog log not None):
        self.guards = partition_pin_guards(log.partition)

    def __dealloc__(self):
        guards_release(self.guards)


def ask(log, int64_t producer_id, int16_t producer_epoch, *, bint from_zero=False):
    cdef _Pinned pinned = _Pinned(log)
    cdef int64_t number
    with nogil:
        number = guards_ask(pinned.guards, producer_id, producer_epoch, from_zero)
    if number == NO_GUARD:
        raise MemoryError
    return TxnGuard(pinned.guards.id, number, producer_id, producer_epoch, from_zero != 0)


def approve(log, guard):
    cdef _Pinned pinned = _Pinned(log)
    cdef int64_t number = guard.number
    with nogil:
        guards_approve(pinned.guards, number)


def refuse(log, guard):
    cdef _Pinned pinned = _Pinned(log)
    cdef int64_t number = guard.number
    with nogil:
        guards_refuse(pinned.guards, number)


def is_granted(log, guard, int64_t producer_id, int16_t producer_epoch):
    cdef _Pinned pinned = _Pinned(log)
    cdef int64_t number = guard.number
    cdef bint granted
    with nogil:
        granted = guards_is_granted(pinned.guards, number, producer_id, producer_epoch)
    return granted


def is_of(log, guard):
    cdef _Pinned pinned = _Pinned(log)
    return pinned.guards.id == guard.origin


def grant_ahead(log, int64_t producer_id, int16_t producer_epoch, bytes transactional_id not None, int64_t connection):
    cdef _Pinned pinned = _Pinned(log)
    cdef Writer writer
    cdef bint granted
    writer.connection = connection
    writer.transactional_id = <const uint8_t*>PyBytes_AS_STRING(transactional_id)
    writer.transactional_id_size = <int32_t>len(transactional_id)
    with nogil:
        granted = guards_grant_ahead(pinned.guards, producer_id, producer_epoch, &writer)
    return granted


def revoke(log, int64_t producer_id):
    cdef _Pinned pinned = _Pinned(log)
    with nogil:
        guards_revoke(pinned.guards, producer_id)


def end(log, int64_t producer_id, int32_t last_epoch):
    cdef _Pinned pinned = _Pinned(log)
    with nogil:
        guards_end(pinned.guards, producer_id, last_epoch)


def succeed(PartitionLog log not None, before):
    cdef _Pinned pinned = _Pinned(before)
    guards_retain(pinned.guards)
    with nogil:
        partition_set_guards(log.partition, pinned.guards)


def guard_count(log):
    cdef _Pinned pinned = _Pinned(log)
    return guards_count(pinned.guards)
