"""The alerts of several brokers fire in a real Prometheus, by real faults of a real cluster.

Three brokers share a ZooKeeper. First they are well: no alert may fire. Then one fault follows the
other, each until its alerts fire. Durations of the rules are those of tests/ops/test_alerts.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.metadata import TopicInfo
from plog.client.producer import Producer
from plog.ops.metrics.cluster import Cluster
from plog.ops.metrics.replication import Replication
from tests.cluster.processes import Brokers, ids_of
from tests.compat.live_kafka import ZooKeeper
from tests.conftest import ROOT
from tests.ops.prometheus import Prometheus
from tests.ops.test_alerts import PATIENCE_S, alerts, shortened
from tests.servers import free_port
from tests.waiting import until

PAGE = ROOT / "docs" / "CLUSTER.md"
SESSION_MS = 2_000
WHOLE_CLUSTER = ""
STALLS = 3


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    running = ZooKeeper(tmp_path / "zookeeper", stops=False)
    yield running
    running.kill()


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    made = Brokers(tmp_path, zookeeper.bootstrap, zookeeper_session_timeout_ms=SESSION_MS)
    for one in made.brokers:
        one.overrides["metrics.listener"] = f"127.0.0.1:{free_port()}"
    try:
        yield made.start()
    finally:
        made.kill()


class Watched:
    """A Prometheus that reads the brokers `0`, `1` and `2`; only one group's alerts count."""

    def __init__(self, prometheus: Prometheus, group: str = "plog-cluster") -> None:
        self._prometheus = prometheus
        self._names = alerts(group)
        self.seen: set[str] = set()
        """The alerts that have fired."""

    def firing(self) -> set[tuple[str, str]]:
        """Return the cluster's alerts that fire now; their texts must be complete."""
        for text in self._prometheus.texts():
            assert not re.search(r"\{\{|<no value>|<error", text)
        found = {one for one in self._prometheus.firing() if one[0] in self._names}
        self.seen |= {name for name, _ in found}
        return found

    def until_fired(self, *expected: tuple[str, str]) -> None:
        """Wait until all of these have fired."""
        fired: set[tuple[str, str]] = set()

        def all_have_fired() -> bool:
            fired.update(self.firing())
            return fired.issuperset(expected)

        until(all_have_fired, f"fired: {expected}", PATIENCE_S)

    def until_well(self, *names: str) -> None:
        """Wait until none of these alerts fires any more."""
        until(lambda: not {name for name, _ in self.firing()} & {*names}, f"well: {names}")

    def until_read(self, expression: str, count: int) -> None:
        """Wait until an expression has so many series."""
        until(lambda: len(self._prometheus.query(expression)) == count, expression)


def stall(brokers: Brokers, victim: int) -> None:
    """Suspend a broker until its session ends, and wait until it has registered again."""
    other = brokers[(victim + 1) % 3].bootstrap
    with Admin(other) as admin:
        with brokers[victim].suspended():
            until(lambda: victim not in ids_of(admin), "its session has ended")
        until(lambda: victim in ids_of(admin), "it has registered again")


def leader_of(topic: TopicInfo | None) -> int:
    """Return the leader of partition 0; -1 for a topic that is not known yet."""
    return -1 if topic is None else topic.partitions[0].leader_id


def miss_a_deletion(brokers: Brokers, victim: int, while_away: Callable[[], None]) -> None:
    """Have a topic deleted while the broker of its partition is away."""
    rest = ",".join(brokers[number].bootstrap for number in range(3) if number != victim)
    with Admin(rest) as admin:
        admin.create_topic("t", assignments={0: [victim]})
        until(lambda: leader_of(admin.topics().get("t")) == victim, "led")
        with Producer(brokers[victim].bootstrap) as producer:
            producer.send("t", b"v")
        brokers[victim].kill()
        while_away()
        with closing(brokers.store()) as store:  # the controller would wait for the broker
            for path in store.descendants("/brokers/topics/t"):
                store.delete(path)
    brokers[victim].start()
    assert "set aside the log of t-0" in brokers[victim].log


def test_each_alert_is_fired_by_its_fault(
    tmp_path: Path, zookeeper: ZooKeeper, brokers: Brokers
) -> None:
    pages = {
        str(number): str(one.overrides["metrics.listener"])
        for number, one in enumerate(brokers.brokers)
    }
    with Prometheus(tmp_path / "prometheus", pages, shortened()) as prometheus:
        watched = Watched(prometheus)
        watched.until_read("count_over_time(plog_controller[1m]) >= 6", 3)
        assert watched.firing() == set(), "brokers that are well"

        controller = brokers.controller
        stalled, away = (number for number in range(3) if number != controller)
        for _ in range(STALLS):
            stall(brokers, stalled)
        watched.until_fired(("PlogSessionsEnd", str(stalled)))

        leaderless = ("PlogPartitionsLeaderless", WHOLE_CLUSTER)
        miss_a_deletion(brokers, away, lambda: watched.until_fired(leaderless))
        watched.until_fired(("PlogStrayLogs", str(away)))
        watched.until_well("PlogPartitionsLeaderless")
        for directory in brokers[away].log_dirs[0].glob("*-stray"):
            directory.rename(tmp_path / directory.name)
        watched.until_well("PlogStrayLogs", "PlogControllerCount", "PlogZooKeeperDisconnected")

        zookeeper.kill()
        lost = [("PlogZooKeeperDisconnected", str(number)) for number in range(3)]
        watched.until_fired(("PlogControllerCount", WHOLE_CLUSTER), *lost)
        assert watched.seen == set(alerts("plog-cluster"))


def table(heading: str) -> list[str]:
    """Return the names in the first column of the page's table with this heading."""
    _, _, rest = PAGE.read_text().partition(f"| {heading} |")
    cells = re.findall(r"^\| (`.+?`) \|", rest.partition("\n\n")[0], re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)", cell)]


def test_page_names_each_alert_and_metric() -> None:
    assert table("Alert") == [*alerts("plog-cluster"), *alerts("plog-replicas")]
    families = [*Cluster.families, *Replication.families]
    assert table("Metric") == [family.name for family in families]
