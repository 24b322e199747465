from collections.abc import Sequence
from typing import NamedTuple

from plog._native.partition_log import PartitionLog

class FollowerState(NamedTuple):
    """A replica on another broker, as the leader knows it.

    `is_counted`: it is in the maximal in-sync set, which is in sync or about to be. Its log has all
    below `position`; -1: it has not fetched from this leader.
    """

    broker_id: int
    broker_epoch: int
    is_counted: bool
    position: int = -1

def set_followers(
    log: PartitionLog, followers: Sequence[FollowerState], *, least_in_sync: int
) -> None:
    """Replace the followers of a leader's partition.

    One whose broker epoch is the same keeps its position; the given positions are ignored. With
    followers, the high watermark is the smallest position of those that are counted, and of this
    broker. It stands still while they are fewer than `least_in_sync` together. A partition that
    this broker does not lead has none.
    """

def note_follower(
    log: PartitionLog, broker_id: int, position: int, *, broker_epoch: int, leader_epoch: int
) -> bool:
    """Take over that a follower has all records below a position.

    Returns:
        False: it is unknown under this broker epoch, or this broker does not lead under
        `leader_epoch`.
    """

def followers_of(log: PartitionLog) -> list[FollowerState]:
    """Return the followers of a partition."""
