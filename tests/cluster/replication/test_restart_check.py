"""`plog cluster restart-check`: when the next broker may be restarted, and when not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cli import cluster as cli
from plog.client.admin import Admin
from plog.client.cluster_admin import BrokerOverview, ClusterOverview
from plog.client.metadata import Node, PartitionInfo, TopicInfo
from plog.client.restart_check import alone_on, obstacles
from plog.errors import BrokerNotAvailable, NetworkException
from plog.types import TopicPartition, new_topic_id
from tests.cli.conftest import command_line
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper


def cluster(
    *partitions: tuple[int, list[int], list[int]],
    silent: int | None = None,
    controller: int = 0,
    without: tuple[int, ...] = (),
) -> ClusterOverview:
    """Return three brokers with a topic: a leader, replicas and those in sync by partition."""
    fault = NetworkException("it hangs")
    brokers = [
        BrokerOverview(Node(one, "h", 1, None), {}, {}, fault if one == silent else None)
        for one in range(3)
    ]
    parts = {
        index: PartitionInfo(leader, 1, replicas, isr, 0)
        for index, (leader, replicas, isr) in enumerate(partitions)
    }
    topics = [TopicInfo("t", new_topic_id(), False, parts)]
    return ClusterOverview("c", controller, brokers, topics, [], None, list(without))


WELL = (0, [0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize(
    ("seen", "broker", "expected"),
    [
        (cluster(WELL), None, []),
        (cluster(WELL), 1, []),
        (cluster(WELL, silent=2), 1, ["broker 2 does not answer: it hangs"]),
        (cluster(WELL, controller=-1), 1, ["there is no controller"]),
        (cluster(WELL, without=(2,)), 1, ["broker 2 gets no answer from ZooKeeper"]),
        (cluster((0, [0, 7], [0, 7])), 1, ["broker 7 is away, with replicas"]),
        (cluster((-1, [1], [1])), 0, ["t-0 is offline"]),
        (
            cluster((0, [0, 1, 2], [0, 1])),
            2,
            ["t-0 has replicas that are not in sync"],
        ),
        (
            cluster((0, [0, 1], [0, 1])),
            1,
            ["t-0 would have 1 replica in sync without broker 1, min.insync.replicas is 2"],
        ),
        (cluster((0, [0, 1], [0, 1])), 2, []),
        (cluster((0, [0], [0])), 0, []),
    ],
)
def test_obstacles(seen: ClusterOverview, broker: int | None, expected: list[str]) -> None:
    assert obstacles(seen, {"t": 2}, broker) == expected


def test_unknown_broker() -> None:
    with pytest.raises(BrokerNotAvailable, match="broker 9 is not in the cluster"):
        obstacles(cluster(WELL), {}, 9)


def test_broker_that_has_just_started_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others do not know it for a moment."""
    seen = [BrokerNotAvailable("broker 1 is not in the cluster"), (cluster(WELL), ["t-0 is away"])]

    def look(bootstrap: str, broker: int) -> tuple[ClusterOverview, list[str]]:
        found = seen.pop(0) if seen else (cluster(WELL), [])
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(cli, "_restart_obstacles", look)
    monkeypatch.setattr(cli, "LOOK_S", 0)
    cli.restart_check.main(["1", "--wait", "60"], standalone_mode=False)
    assert capsys.readouterr().out == "It may be restarted.\n"
    assert seen == []
    seen.append(BrokerNotAvailable("broker 1 is not in the cluster"))
    with pytest.raises(BrokerNotAvailable):
        cli.restart_check.main(["1"], standalone_mode=False)


def test_many_reasons_are_one_line_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [f"t-{number} is offline" for number in range(2_000)]
    monkeypatch.setattr(cli, "_restart_obstacles", lambda *_: (cluster(WELL), many))
    for words, last in ([], "1990 further reasons: --json lists all"), (["--json"], "}"):
        with pytest.raises(SystemExit):
            cli.restart_check.main(words, standalone_mode=False)
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == last
        assert (len(lines) == 11) == (not words)


def test_partitions_without_another_replica() -> None:
    assert alone_on(cluster(WELL, (1, [1], [1])), 1) == [TopicPartition("t", 1)]


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    running = Brokers(tmp_path, zookeeper.bootstrap, replica_lag_time_max_ms=4_000)
    with running:
        yield running


def check(brokers: Brokers, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        command_line("cluster", "restart-check", *words, "-b", brokers.bootstrap),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_next_broker_waits_until_the_one_before_is_in_sync(brokers: Brokers) -> None:
    with Admin(brokers.bootstrap) as admin:
        configs = {"min.insync.replicas": "2"}
        admin.create_topic("t", partitions=3, replication_factor=3, configs=configs)
    assert check(brokers, "--wait", "30") == (0, "Any broker may be restarted.\n")
    brokers[2].kill()
    status, said = check(brokers, "1", "--json")
    assert status == 1, said
    assert not json.loads(said)["may_restart"]
    brokers[2].start()
    assert check(brokers, "1", "--wait", "30") == (0, "It may be restarted.\n")
