"""What Python and replication tell a leader's partition of its followers.

Owns the form of a follower in Python. The positions are the partition's, their rule that of `followers`.
"""

from typing import NamedTuple

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from plog._native.followers cimport Follower
from plog._native.locks cimport load, pthread_mutex_lock, pthread_mutex_unlock
from plog._native.partition cimport (
    FOLLOWER_MAY_JOIN, FOLLOWER_NOTED, FOLLOWER_UNKNOWN, FollowerStatus, Partition, partition_count_follower,
    partition_note_follower, partition_set_followers)
from plog._native.partition_log cimport PartitionLog

UNKNOWN = FOLLOWER_UNKNOWN
NOTED = FOLLOWER_NOTED
MAY_JOIN = FOLLOWER_MAY_JOIN


class FollowerState(NamedTuple):
    broker_id: int
    is_counted: bool
    broker_epoch: int
    position: int
    log_start_offset: int
    end_before: int
    fetched_ms: int
    caught_up_ms: int
    confirmed_ms: int


def set_followers(
        PartitionLog log not None, dict is_counted not None, *, int32_t leader_epoch, int64_t least_in_sync,
        int64_t now_ms):
    cdef Partition* partition = log.partition
    cdef Follower* made = <Follower*>calloc(len(is_counted) + 1, sizeof(Follower))
    cdef int64_t count = len(is_counted)
    cdef bint is_set
    if made == NULL:
        raise MemoryError
    try:
        for number, broker_id in enumerate(is_counted):
            made[<int64_t>number].broker_id = broker_id
            made[<int64_t>number].is_counted = is_counted[broker_id]
        with nogil:
            is_set = partition_set_followers(partition, leader_epoch, made, count, least_in_sync, now_ms)
    finally:
        free(made)
    if not is_set:
        raise MemoryError


def note_follower(
        PartitionLog log not None, int32_t broker_id, int64_t position, *, int64_t broker_epoch,
        int32_t leader_epoch, int64_t log_start_offset, int64_t now_ms):
    cdef Partition* partition = log.partition
    cdef FollowerStatus status
    with nogil:
        status = partition_note_follower(
            partition, leader_epoch, broker_id, broker_epoch, position, log_start_offset, now_ms)
    return status


def count_follower(PartitionLog log not None, int32_t broker_id, *, int32_t leader_epoch):
    cdef Partition* partition = log.partition
    cdef bint counts
    with nogil:
        counts = partition_count_follower(partition, leader_epoch, broker_id)
    return counts


def are_enough(PartitionLog log not None):
    return bool(load(&log.partition.enough_in_sync))


def followers_of(PartitionLog log not None):
    cdef Partition* partition = log.partition
    cdef Follower* copied
    cdef const Follower* follower
    cdef int64_t count, number
    # Without the lock of the partition while Python makes objects: the interpreter may go to another thread then, which
    # would wait for that lock, and never give the interpreter back.
    with nogil:
        pthread_mutex_lock(&partition.lock)
        count = partition.followers.count
        copied = <Follower*>calloc(count + 1, sizeof(Follower))
        if copied != NULL and count > 0:
            memcpy(copied, partition.followers.items, count * sizeof(Follower))
        pthread_mutex_unlock(&partition.lock)
    if copied == NULL:
        raise MemoryError
    found = []
    try:
        for number in range(count):
            follower = &copied[number]
            found.append(FollowerState(
                follower.broker_id, follower.is_counted, follower.broker_epoch, follower.position,
                follower.log_start_offset, follower.end_before, follower.fetched_ms, follower.caught_up_ms,
                follower.confirmed_ms))
    finally:
        free(copied)
    return found
