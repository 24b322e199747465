"""What Python and replication tell a leader's partition of its followers.

Owns the form of a follower in Python. The positions are the partition's, their rule that of `followers`.
"""

from typing import NamedTuple

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free

from plog._native.followers cimport Follower
from plog._native.locks cimport pthread_mutex_lock, pthread_mutex_unlock
from plog._native.partition cimport Partition, partition_note_follower, partition_set_followers
from plog._native.partition_log cimport PartitionLog


class FollowerState(NamedTuple):
    broker_id: int
    broker_epoch: int
    is_counted: bool
    position: int = -1


def set_followers(PartitionLog log not None, list followers not None, *, int64_t least_in_sync):
    cdef Partition* partition = log.partition
    cdef Follower* made = <Follower*>calloc(len(followers) + 1, sizeof(Follower))
    cdef int64_t count = len(followers)
    cdef int64_t number
    cdef bint is_set
    if made == NULL:
        raise MemoryError
    try:
        for number in range(count):
            made[number].broker_id = followers[number].broker_id
            made[number].broker_epoch = followers[number].broker_epoch
            made[number].is_counted = followers[number].is_counted
        with nogil:
            is_set = partition_set_followers(partition, made, count, least_in_sync)
    finally:
        free(made)
    if not is_set:
        raise MemoryError


def note_follower(
        PartitionLog log not None, int32_t broker_id, int64_t position, *, int64_t broker_epoch,
        int32_t leader_epoch):
    cdef Partition* partition = log.partition
    cdef bint is_known
    with nogil:
        is_known = partition_note_follower(partition, leader_epoch, broker_id, broker_epoch, position)
    return is_known


def followers_of(PartitionLog log not None):
    cdef Partition* partition = log.partition
    cdef const Follower* follower
    cdef int64_t number
    found = []
    pthread_mutex_lock(&partition.lock)
    try:
        for number in range(partition.followers.count):
            follower = &partition.followers.items[number]
            found.append(FollowerState(
                follower.broker_id, follower.broker_epoch, follower.is_counted, follower.position))
    finally:
        pthread_mutex_unlock(&partition.lock)
    return found
