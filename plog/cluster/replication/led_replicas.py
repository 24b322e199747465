"""The replicas of a partition in one epoch that this broker leads it in: machine over struct.

`InSyncSet` decides who is in sync. The partition's struct (`_native/partition_followers`) has the
positions, which fetches write there, and moves the high watermark by those that count. It hears who
counts before the controller is asked.

Threads: any; one at a time decides (a lock).
"""

from __future__ import annotations

import threading

from plog._native.partition_followers import count_follower, followers_of, set_followers
from plog._native.partition_log import PartitionLog
from plog.cluster.leadership import Leadership
from plog.cluster.replication.alter_partition import Settled
from plog.cluster.replication.isr import NEVER, Follower, InSyncSet, Outcome, Proposal, is_fresh
from plog.runtime.clock import Clock


class LedReplicas:
    """The followers of a partition. `native` leads under the epoch already.

    Args:
        lag_time_ms: replica.lag.time.max.ms.
        fresh_within_ms: how old a follower's fetch may be, for this leader to count as one.
        least_in_sync: min.insync.replicas, at most as many as there are replicas.
        clock: its `since_boot_ms` goes on in a suspended host.
    """

    def __init__(
        self,
        native: PartitionLog,
        leadership: Leadership,
        *,
        broker_id: int,
        lag_time_ms: int,
        fresh_within_ms: int,
        least_in_sync: int,
        clock: Clock,
    ) -> None:
        self.replicas = frozenset(leadership.replicas)
        self._native = native
        self._clock = clock
        self._fresh_within_ms = fresh_within_ms
        self._lock = threading.Lock()
        self._machine = InSyncSet(broker_id, lag_time_ms, least_in_sync)
        self._machine.lead(
            leader_epoch=leadership.leader_epoch,
            partition_epoch=leadership.partition_epoch,
            isr=leadership.isr,
            replicas=leadership.replicas,
            log_end_offset=native.log_end_offset,
            high_watermark=native.high_watermark,
            now_ms=clock.since_boot_ms(),
        )
        self._publish()

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync set as it was last known to be written, in order."""
        return tuple(sorted(self._machine.isr))

    @property
    def partition_epoch(self) -> int:
        """The version of the state with that set."""
        return self._machine.partition_epoch

    @property
    def counted(self) -> int:
        """How many count: this broker, members, and those that are about to be."""
        return len(self._machine.maximal)

    @property
    def is_fresh(self) -> bool:
        """Whether all that count have followed this leader lately, so that no other one leads."""
        with self._lock:
            others = self._machine.maximal - {self._machine.broker_id}
            # The struct has none for a moment while the role changes.
            known = {one.broker_id: one.confirmed_ms for one in followers_of(self._native)}
            confirmed_ms = [known.get(one, NEVER) for one in others]
            return is_fresh(confirmed_ms, self._clock.since_boot_ms(), self._fresh_within_ms)

    def set_least_in_sync(self, least_in_sync: int) -> None:
        """Obey another min.insync.replicas from now on."""
        with self._lock:
            self._machine.least_in_sync = least_in_sync
            self._publish()

    def move_to(self, native: PartitionLog) -> None:
        """Go on with another copy of the log. Followers have no position there until they fetch."""
        with self._lock:
            self._native = native
            self._publish()

    def join(self, broker_id: int) -> Proposal | None:
        """Return the proposal by which a follower joins; it counts already. None: it may not."""
        with self._lock:
            self._look()
            proposal = self._machine.propose_joiner(broker_id, self._clock.since_boot_ms())
            if proposal is None:
                return None
            epoch = self._machine.leader_epoch
            if not count_follower(self._native, broker_id, leader_epoch=epoch):
                # More was committed since, or this broker was deposed.
                self._machine.answered(proposal, Outcome.INELIGIBLE)
                return None
            return proposal

    def tick(self, interval_ms: int) -> Proposal | None:
        """Return the proposal by which late members leave, if there are some. Each `interval_ms`.

        They count until the controller has agreed.
        """
        with self._lock:
            self._look()
            return self._machine.tick(self._clock.since_boot_ms(), interval_ms)

    def settle(self, settled: Settled) -> bool:
        """Take what became of a proposal; return whether another set is written now."""
        with self._lock:
            before = self._machine.partition_epoch
            self._machine.answered(
                settled.proposal, settled.outcome, settled.isr, settled.partition_epoch
            )
            self._publish()
            return self._machine.partition_epoch != before

    def _look(self) -> None:
        machine, native = self._machine, self._native
        machine.followers = {
            one.broker_id: Follower(
                one.broker_epoch,
                one.position,
                one.end_before,
                one.fetched_ms,
                one.caught_up_ms,
                one.confirmed_ms,
            )
            for one in followers_of(native)
        }
        machine.log_end_offset = native.log_end_offset
        machine.high_watermark = native.high_watermark

    def _publish(self) -> None:
        machine = self._machine
        set_followers(
            self._native,
            {one: one in machine.maximal for one in machine.followers},
            leader_epoch=machine.leader_epoch,
            least_in_sync=machine.least_in_sync,
            now_ms=self._clock.since_boot_ms(),
        )
