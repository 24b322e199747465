from collections.abc import Mapping
from typing import Final, NamedTuple

from plog._native.partition_log import PartitionLog

UNKNOWN: Final = 0
NOTED: Final = 1
MAY_JOIN: Final = 2

class FollowerState(NamedTuple):
    """A replica on another broker, as the leader knows it.

    `is_counted`: it is in the maximal in-sync set, which is in sync or about to be.
    `log_start_offset`: of its log; -1: it has not fetched yet. The rest is as in
    `plog.cluster.replication.isr.Follower`.
    """

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
    log: PartitionLog,
    is_counted: Mapping[int, bool],
    *,
    leader_epoch: int,
    least_in_sync: int,
    now_ms: int,
) -> None:
    """Replace the followers of a leader's partition; those that stay keep all else.

    With followers, the high watermark is the smallest position of those that are counted, and of
    this broker. It stands still while they are fewer than `least_in_sync` together, and acks=all is
    refused. Nothing happens if this broker does not lead under `leader_epoch`.

    Raises:
        MemoryError: nothing has changed.
    """

def note_follower(
    log: PartitionLog,
    broker_id: int,
    position: int,
    *,
    broker_epoch: int,
    leader_epoch: int,
    log_start_offset: int,
    now_ms: int,
) -> int:
    """Take over that a fetch of a follower has come, which has all records below a position.

    A change of the partition is reported if the high watermark or the follower's start has moved.

    Returns:
        UNKNOWN: it has registered again since, is no follower, or this broker does not lead under
        `leader_epoch`. MAY_JOIN: it is not counted, and `count_follower` would count it.
    """

def count_follower(log: PartitionLog, broker_id: int, *, leader_epoch: int) -> bool:
    """Count a follower from now on, if it has all that is or was ever committed.

    Returns:
        False: it has not (any more), or this broker does not lead under `leader_epoch`.
    """

def are_enough(log: PartitionLog) -> bool:
    """Return whether acks=all is accepted: as many count as `least_in_sync` asks for."""

def followers_of(log: PartitionLog) -> list[FollowerState]:
    """Return the followers of a partition."""
