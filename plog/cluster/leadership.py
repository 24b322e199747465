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
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment adds."""

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is not in sync. One that is being added need not be (KIP-352)."""
        return not {*self.replicas} <= {*self.isr, *self.adding}


UNTOLD = Leadership(NO_LEADER, NO_EPOCH, (), (), -1, -1)
"""Before the controller has said anything."""
