"""Which fetcher copies which partition, while leaders change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster.disks import Disks
from plog.cluster.leadership import Leadership
from plog.cluster.partition import Partition
from plog.cluster.replication.leader_requests import Limits
from plog.cluster.replication.replica_fetchers import ReplicaFetchers
from plog.protocol.messages.fetch import ReplicaState
from plog.runtime.clock import SystemClock
from plog.storage.log import Log
from tests.cluster.in_sync_sets import FakeSets
from tests.cluster.replication.leaders import Leader
from tests.storage.followers import follower_of, put
from tests.storage.storage_logs import TOPIC_ID, TP, Settings, batch, open_log
from tests.waiting import until

ME, ONE, TWO = 9, 1, 2
SETTINGS = Settings()


class Stage:
    """Two leaders, and the partitions that this broker follows."""

    def __init__(self, directory: Path, per_leader: int = 1) -> None:
        self.directory = directory
        self.links: dict[int, Leader] = {ONE: Leader(), TWO: Leader()}
        self.made: list[int] = []
        self.fetchers = ReplicaFetchers(
            link=self._link,  # type: ignore[arg-type]
            limits=Limits(10, 1, 1 << 20, 1 << 20, 20),
            per_leader=per_leader,
            who=lambda: ReplicaState(replica_id=ME, replica_epoch=50),
            clock=SystemClock(),
        )

    def _link(self, leader: int) -> Leader:
        """Each fetcher has a connection of its own, and so a session."""
        self.made.append(leader)
        known = self.links[leader]
        return Leader(known.logs, known.names, is_away=known.is_away)

    def partition(self, index: int) -> tuple[Partition, Log]:
        """Return a partition that is followed here, and its leader's log."""
        at = TP._replace(partition=index)
        led = open_log(self.directory / f"led{index}", SETTINGS)
        put(led, batch())
        for leader in self.links.values():
            leader.logs[TOPIC_ID, index] = led
            leader.names[TP.topic] = TOPIC_ID
        made = Partition(
            at,
            TOPIC_ID,
            broker_id=ME,
            settings=SETTINGS,
            on_change=lambda at: None,
            disks=Disks(),
            in_sync_sets=FakeSets(),
        )
        self.lead(made, ONE, led, follower_of(led, self.directory / f"mine{index}"))
        return made, led

    def lead(self, partition: Partition, leader: int, led: Log, log: Log | None = None) -> None:
        epoch = led.native.leader_epoch
        leadership = Leadership(leader, epoch, (leader,), (leader, ME), epoch, 1)
        partition.make_follower(leadership, log or partition.log)

    @property
    def threads(self) -> set[str]:
        names = {one.name for one in threading.enumerate()}
        return {name for name in names if name.startswith("fetcher ")}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.fetchers.stop()
    assert made.threads == set()


def until_equal(partition: Partition, led: Log) -> None:
    until(lambda: partition.log.log_end_offset == led.log_end_offset, "all is copied")


def test_partition_moves_to_the_next_leader(stage: Stage) -> None:
    partition, led = stage.partition(0)
    stage.fetchers.follow([partition])
    until_equal(partition, led)
    assert stage.threads == {"fetcher 0 from 1"}
    stage.lead(partition, TWO, led)
    stage.fetchers.follow([partition])
    put(led, batch())
    until_equal(partition, led)
    assert stage.threads == {"fetcher 0 from 2"}
    assert stage.made == [ONE, TWO]


def test_failures_are_counted_beyond_the_fetcher_that_met_them(stage: Stage) -> None:
    partition, led = stage.partition(0)
    stage.links[ONE].is_away = True
    stage.fetchers.follow([partition])
    until(lambda: stage.fetchers.failures.counts().get(ONE, 0) > 1, "it has failed twice")
    stage.lead(partition, TWO, led)
    stage.fetchers.follow([partition])
    until_equal(partition, led)
    assert stage.threads == {"fetcher 0 from 2"}
    assert stage.fetchers.failures.counts().keys() == {ONE}


def test_forgotten_partition_is_not_copied(stage: Stage) -> None:
    first, led = stage.partition(0)
    second, other = stage.partition(1)
    stage.fetchers.follow([first, second])
    until_equal(first, led)
    stage.fetchers.forget([first.topic_partition])
    put(led, batch())
    put(other, batch())
    until_equal(second, other)
    assert first.log.log_end_offset == led.log_end_offset - 1
    stage.fetchers.follow([first])
    until_equal(first, led)


def test_without_a_leader_no_broker_is_asked(stage: Stage) -> None:
    partition, led = stage.partition(0)
    stage.lead(partition, -1, led)
    stage.fetchers.follow([partition])
    assert stage.made == []


def test_partitions_are_spread_over_the_fetchers_of_a_leader(tmp_path: Path) -> None:
    stage = Stage(tmp_path, per_leader=3)
    led = dict([stage.partition(index) for index in range(12)])
    stage.fetchers.follow(led)
    for partition, leaders in led.items():
        until_equal(partition, leaders)
    assert len(stage.threads) == 3
    stage.fetchers.stop()
    assert stage.threads == set()
    stage.fetchers.follow(led)
    assert stage.threads == set()


def test_number_of_fetchers_changes_while_they_copy(stage: Stage) -> None:
    led = dict([stage.partition(index) for index in range(12)])
    stage.fetchers.follow(led)
    for count in (3, 1, 2):
        stage.fetchers.share_among(count)
        assert len(stage.threads) == count
        for partition, leaders in led.items():
            put(leaders, batch())
            until_equal(partition, leaders)
    stage.fetchers.stop()
    stage.fetchers.share_among(5)
    assert stage.threads == set()
