"""Metrics of the partitions that this broker leads with others, and of its copying from leaders.

The lag of followers is the largest one over the partitions, one series per follower: there are as
many as brokers. Only brokers of a cluster have this part.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from plog._native.partition_followers import FollowerState, followers_of
from plog.cluster.partition import Partition
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.replication.in_sync_keeper import InSyncKeeper
from plog.cluster.replication.replica_fetchers import ReplicaFetchers
from plog.ops.metrics.families import Collector, Family
from plog.runtime.clock import Clock

BROKER = ("broker",)
LED = Family("plog_led_partitions", "Partitions that this broker leads.")
UNDER_REPLICATED = Family(
    "plog_under_replicated_partitions", "Led partitions with replicas that are not in sync."
)
UNDER_MIN = Family(
    "plog_under_min_isr_partitions",
    "Led partitions with fewer replicas in sync than min.insync.replicas.",
)
AT_MIN = Family(
    "plog_at_min_isr_partitions",
    "Led partitions with several replicas, and just min.insync.replicas in sync.",
)
SHRINKS = Family("plog_isr_shrinks_total", "Replicas left the in-sync set of a led partition.")
EXPANDS = Family("plog_isr_expands_total", "Replicas joined the in-sync set of a led partition.")
TAKEN = Family("plog_leaderships_taken_total", "Partitions that this broker began to lead.")
LAG_RECORDS = Family(
    "plog_follower_lag_records",
    "Records that a follower lacks, in the led partition where it lacks most.",
    BROKER,
)
LAG_SECONDS = Family(
    "plog_follower_lag_seconds",
    "Time since a follower had all records, in the led partition where it is longest; 0 if it has.",
    BROKER,
)
FAILURES = Family(
    "plog_replica_fetch_failures_total",
    "Fetches from a leader that failed, and answers that could not be copied.",
    BROKER,
)
MS_IN_S = 1000


class _Lag:
    """The largest lag of one follower so far."""

    __slots__ = ("ms", "records")

    def __init__(self) -> None:
        self.records = self.ms = 0

    def add(self, follower: FollowerState, start: int, end: int, now_ms: int) -> None:
        """Count a partition with a log from `start` to `end`."""
        if follower.position < end:
            self.records = max(self.records, end - max(follower.position, start))
            self.ms = max(self.ms, now_ms - follower.caught_up_ms)


class Replication(Collector):
    """The replicas of a broker, and their followers elsewhere."""

    families = (
        LED,
        UNDER_REPLICATED,
        UNDER_MIN,
        AT_MIN,
        SHRINKS,
        EXPANDS,
        TAKEN,
        LAG_RECORDS,
        LAG_SECONDS,
        FAILURES,
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        keeper: InSyncKeeper,
        fetchers: ReplicaFetchers,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._keeper = keeper
        self._fetchers = fetchers
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        led = under_replicated = under_min = at_min = 0
        lags: dict[int, _Lag] = {}
        for partition in self._replicas.partitions:
            if not partition.is_leader or partition.offline_reason is not None:
                continue
            led += 1
            leadership = partition.leadership
            if len(leadership.replicas) > 1:
                spare = len(leadership.isr) - partition.least_in_sync
                under_replicated += leadership.is_under_replicated
                under_min += spare < 0
                at_min += spare == 0
                self._add_lags(partition, lags)
        yield LED.one(led)
        yield UNDER_REPLICATED.one(under_replicated)
        yield UNDER_MIN.one(under_min)
        yield AT_MIN.one(at_min)
        yield SHRINKS.one(self._keeper.shrinks)
        yield EXPANDS.one(self._keeper.expands)
        yield TAKEN.one(self._replicas.leaderships_taken)
        if lags:
            known = sorted(lags.items())
            yield LAG_RECORDS.of(((str(broker_id),), lag.records) for broker_id, lag in known)
            yield LAG_SECONDS.of(((str(broker_id),), lag.ms / MS_IN_S) for broker_id, lag in known)
        if failures := sorted(self._fetchers.failures.counts().items()):
            yield FAILURES.of(((str(leader),), count) for leader, count in failures)

    def _add_lags(self, partition: Partition, lags: dict[int, _Lag]) -> None:
        log = partition.hosted_log
        if log is None:
            return  # it went offline meanwhile
        start, end = log.log_start_offset, log.log_end_offset  # before the positions: they grow
        for follower in followers_of(log.native):
            lag = lags.setdefault(follower.broker_id, _Lag())
            lag.add(follower, start, end, self._clock.since_boot_ms())
