"""The alerts of replicas fire in a real Prometheus, by real faults of three brokers.

One broker leads a partition, and the others follow. They are suspended, until the leader is alone;
then it dies, and one of them leads with what it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.reassignments import ReassignmentAdmin
from plog.errors import ErrorCode
from plog.ops import watch
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.handlers.wire import make_batch, produce, speak
from tests.ops.prometheus import Prometheus
from tests.ops.test_alerts import alerts, shortened
from tests.ops.test_cluster_alerts import Watched
from tests.servers import free_port
from tests.waiting import until

SESSION_MS = 2_000
LAG_TIME_MS = 1_000
CONFIGS = {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    zookeeper = ZooKeeper(tmp_path / "zookeeper", stops=False)
    made = Brokers(
        tmp_path,
        zookeeper.bootstrap,
        zookeeper_session_timeout_ms=SESSION_MS,
        replica_lag_time_max_ms=LAG_TIME_MS,
    )
    for one in made.brokers:
        one.overrides["metrics.listener"] = f"127.0.0.1:{free_port()}"
    try:
        yield made.start()
    finally:
        made.kill()
        zookeeper.kill()


class Led:
    """The partition, seen at the broker that leads it."""

    def __init__(self, brokers: Brokers, leader: int, *followers: int) -> None:
        self._broker = brokers[leader]
        self._page = str(self._broker.overrides["metrics.listener"])
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic("t", assignments={0: [leader, *followers]}, configs=CONFIGS)
        until(lambda: self.count("led") == 1, "it leads")

    def count(self, which: str) -> float:
        """Return how many partitions the leader's page counts, the controller's, too."""
        return watch.read(self._page, 0).value(f"plog_{which}_partitions")

    def write(self) -> None:
        """Append a record. A follower that does not copy it leaves the set."""
        with closing(speak(self._broker.port)) as client:
            assert produce(client, "t", make_batch(), acks=1).error_code == ErrorCode.NONE

    def until_lagging(self, follower: int) -> None:
        """Wait until a follower lacks the record, as the leader knows of it."""

        def is_lagging() -> bool:
            seen = watch.read(self._page, 0)
            return seen.value("plog_follower_lag_records", broker=str(follower)) == 1

        until(is_lagging, "the follower lacks a record")

    def until_count(self, which: str, count: int) -> None:
        until(lambda: self.count(which) == count, f"{count} {which}")


def test_each_alert_is_fired_by_its_fault(tmp_path: Path, brokers: Brokers) -> None:
    pages = {
        str(number): str(one.overrides["metrics.listener"])
        for number, one in enumerate(brokers.brokers)
    }
    leader = brokers.controller
    first, second = (number for number in range(3) if number != leader)
    instance = str(leader)
    with Prometheus(tmp_path / "prometheus", pages, shortened()) as prometheus:
        watched = Watched(prometheus, "plog-replicas")
        led = Led(brokers, leader, first, second)
        led.until_count("under_replicated", 0)
        watched.until_read("count_over_time(plog_led_partitions[1m]) >= 4", 3)
        assert watched.firing() == set(), "replicas that are well"

        with brokers[first].suspended():
            led.write()
            led.until_count("under_replicated", 1)
        led.until_count("under_replicated", 0)

        with ExitStack() as suspended:
            suspended.enter_context(brokers[first].suspended())
            led.write()
            by_one = ("PlogIsrFlaps", "PlogUnderReplicated", "PlogFollowerBehind")
            watched.until_fired(*((name, instance) for name in by_one))
            led.until_count("at_min_isr", 1)
            suspended.enter_context(brokers[second].suspended())
            led.write()
            watched.until_fired(("PlogUnderMinIsr", instance))
        led.until_count("under_replicated", 0)
        watched.until_well("PlogUnderReplicated", "PlogUnderMinIsr", "PlogFollowerBehind")

        with brokers[first].suspended(), brokers[second].suspended():
            led.write()
            led.until_count("under_min_isr", 1)
            brokers[leader].kill()
        unclean = "PlogUncleanElection"
        until(lambda: unclean in {name for name, _ in watched.firing()}, unclean)
        assert watched.seen == set(alerts("plog-replicas"))


def test_replica_that_a_move_adds_is_not_missing(brokers: Brokers) -> None:
    leader = brokers.controller
    old, new = (number for number in range(3) if number != leader)
    led = Led(brokers, leader, old)
    led.until_count("under_replicated", 0)
    led.write()
    with ReassignmentAdmin(brokers[leader].bootstrap) as admin:
        with brokers[new].suspended():
            admin.reassign({TopicPartition("t", 0): [leader, new]})
            led.until_count("reassigning", 1)
            led.until_lagging(new)
            assert led.count("under_replicated") == 0
        led.until_count("reassigning", 0)
    led.until_count("under_replicated", 0)
