"""What the metrics page says of replicas: real logs and followers' positions, without brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from plog.cluster.disks import Disks
from plog.cluster.leadership import Leadership
from plog.cluster.partition import Partition
from plog.cluster.replication.replica_fetcher import FetchFailures
from plog.ops import watch
from plog.ops.metrics.replication import Replication
from plog.ops.watch import Reading
from plog.runtime.clock import ManualClock
from tests.cluster.in_sync_sets import unasked_keeper
from tests.storage.followers import put
from tests.storage.storage_logs import TOPIC_ID, TP, Settings, batch, open_log

ME, EPOCH = 0, 1
ALL = (0, 1, 2)


class Stage:
    """The replicas of broker 0."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.keeper = unasked_keeper(ME, self.clock)
        self.failures = FetchFailures()
        self.replicas: Any = SimpleNamespace(partitions=[], leaderships_taken=0)
        fetchers: Any = SimpleNamespace(failures=self.failures)
        self.registry = CollectorRegistry()
        self.registry.register(Replication(self.replicas, self.keeper, fetchers, self.clock))

    def lead(
        self, isr: tuple[int, ...], replicas: tuple[int, ...] = ALL, least_in_sync: int = 1
    ) -> Partition:
        """Lead one more partition, which has no records."""
        number = len(self.replicas.partitions)
        settings = Settings(min_insync_replicas=least_in_sync)
        made = Partition(
            TP._replace(partition=number),
            TOPIC_ID,
            broker_id=ME,
            settings=settings,
            on_change=lambda at: None,
            disks=Disks(),
            in_sync_sets=self.keeper,
        )
        log = open_log(self.directory / str(number), settings, leader=False)
        made.make_leader(Leadership(ME, EPOCH, isr, replicas, 1, 1), log)
        self.replicas.partitions.append(made)
        return made

    def append(self, partition: Partition, count: int) -> None:
        put(partition.log, batch(count))

    def fetch(self, partition: Partition, broker_id: int, position: int) -> None:
        """A fetch of a follower comes, which has all below a position."""
        partition.note_follower(broker_id, 7, EPOCH, position, 0, self.clock.since_boot_ms())

    def read(self) -> Reading:
        return watch.parse(generate_latest(self.registry).decode(), 0)

    def counts(self) -> dict[str, int]:
        """Return the gauges of partitions."""
        names = ("led", "under_replicated", "under_min_isr", "at_min_isr")
        seen = self.read()
        return {name: int(seen.value(f"plog_{name}_partitions")) for name in names}

    def lags(self) -> dict[str, tuple[float, float]]:
        """Return the lag of each follower in records and seconds."""
        seen = self.read()
        records, seconds = "plog_follower_lag_records", "plog_follower_lag_seconds"
        assert seen.labels(records, "broker") == seen.labels(seconds, "broker")
        return {
            broker: (seen.value(records, broker=broker), seen.value(seconds, broker=broker))
            for broker in seen.labels(records, "broker")
        }


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.keeper.stop()


@pytest.mark.parametrize(
    ("isr", "replicas", "least", "under_replicated", "under_min", "at_min"),
    [
        ((0, 1, 2), ALL, 2, 0, 0, 0),
        ((0, 1), ALL, 2, 1, 0, 1),
        ((0,), ALL, 2, 1, 1, 0),
        ((0,), (0, 1), 1, 1, 0, 1),
        ((0, 1), (0, 1), 3, 0, 0, 1),  # no more than there are
        ((0,), (0,), 2, 0, 0, 0),
    ],
)
def test_partition_is_counted_by_its_in_sync_set(
    stage: Stage,
    isr: tuple[int, ...],
    replicas: tuple[int, ...],
    least: int,
    under_replicated: int,
    under_min: int,
    at_min: int,
) -> None:
    stage.lead(isr, replicas, least)
    assert stage.counts() == {
        "led": 1,
        "under_replicated": under_replicated,
        "under_min_isr": under_min,
        "at_min_isr": at_min,
    }


def test_partitions_that_others_lead_or_that_are_offline_do_not_count(stage: Stage) -> None:
    followed, lost = stage.lead((0,)), stage.lead((0,))
    followed.make_follower(Leadership(1, EPOCH + 1, (1,), ALL, 1, 1), followed.log)
    lost.go_offline("its disk is gone")
    assert set(stage.counts().values()) == {0}
    assert stage.lags() == {}


def test_lag_is_the_largest_of_each_follower(stage: Stage) -> None:
    first, second = stage.lead(ALL), stage.lead(ALL)
    stage.append(first, 10)
    stage.append(second, 4)
    stage.clock.advance(3_000)
    assert stage.lags() == {"1": (10, 3), "2": (10, 3)}, "nothing is copied yet"
    for partition in (first, second):
        stage.fetch(partition, 1, partition.log.log_end_offset)
    stage.fetch(first, 2, 9)
    stage.clock.advance(2_000)
    stage.fetch(second, 2, 0)
    assert stage.lags() == {"1": (0, 0), "2": (4, 5)}
    stage.clock.advance(60_000)
    assert stage.lags()["1"] == (0, 0), "without new records no follower is behind"


def test_records_that_are_deleted_are_no_lag(stage: Stage) -> None:
    partition = stage.lead((ME,))
    stage.append(partition, 10)
    partition.log.delete_records_before(6)
    assert stage.lags() == {"1": (4, 0), "2": (4, 0)}


def test_events_are_counted(stage: Stage) -> None:
    seen = stage.read()
    assert "plog_replica_fetch_failures_total" not in seen.samples
    for name in ("isr_shrinks", "isr_expands", "leaderships_taken"):
        assert seen.value(f"plog_{name}_total") == 0
    stage.keeper.shrinks, stage.keeper.expands, stage.replicas.leaderships_taken = 1, 2, 3
    for leader in (4, 4, 5):
        stage.failures.add(leader)
    seen = stage.read()
    assert seen.value("plog_isr_shrinks_total") == 1
    assert seen.value("plog_isr_expands_total") == 2
    assert seen.value("plog_leaderships_taken_total") == 3
    assert seen.value("plog_replica_fetch_failures_total", broker="4") == 2
    assert seen.value("plog_replica_fetch_failures_total", broker="5") == 1
