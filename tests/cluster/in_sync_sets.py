"""Keepers of in-sync sets for replicas that have no controller to ask."""

from __future__ import annotations

from concurrent.futures import Future

from plog.cluster.leadership import Leadership
from plog.cluster.replication.in_sync_keeper import InSyncKeeper
from plog.runtime.clock import Clock
from plog.types import TopicPartition


def unasked_keeper(broker_id: int, clock: Clock) -> InSyncKeeper:
    """Return a keeper without a thread: the sets stay as the controller gives them."""
    return InSyncKeeper(
        broker_id,
        lag_time_ms=10_000,
        fresh_within_ms=10_000,
        clock=clock,
        ask=lambda batch: Future(),
        changed=lambda at, replicas: None,
    )


class FakeSet:
    """A set over a fake log: all members of the order count."""

    def __init__(self, leadership: Leadership, least_in_sync: int) -> None:
        self.isr, self.partition_epoch = leadership.isr, leadership.partition_epoch
        self.counted = len(self.isr)
        self.least_in_sync = least_in_sync
        self.native: object = None
        self.is_fresh = True

    def set_least_in_sync(self, least_in_sync: int) -> None:
        self.least_in_sync = least_in_sync

    def move_to(self, native: object) -> None:
        self.native = native


class FakeSets:
    """Keeps the sets of fake logs."""

    def __init__(self) -> None:
        self.led: dict[TopicPartition, FakeSet] = {}

    def lead(self, at, native, leadership: Leadership, *, least_in_sync: int) -> FakeSet:
        self.led[at] = FakeSet(leadership, least_in_sync)
        return self.led[at]

    def cease(self, at: TopicPartition) -> None:
        del self.led[at]
