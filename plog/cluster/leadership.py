"""The leader and the replicas of a partition, as the controller has said."""

from __future__ import annotations

from typing import NamedTuple

from plog.cluster.znodes import NO_LEADER
from plog.types import NO_EPOCH


class Leadership(NamedTuple):
    """What the controller has said of a partition."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    partition_epoch: int
    controller_epoch: int


UNTOLD = Leadership(NO_LEADER, NO_EPOCH, (), (), -1, -1)
"""Before the controller has said anything."""
