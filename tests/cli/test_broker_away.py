"""Commands while one of three brokers does not answer: they show the others' data, and name it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from plog.cli import read_bounds
from plog.cli.read_bounds import ReadBounds
from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.types import TopicPartition
from tests.cli.conftest import Run
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.coordinator.conftest import GROUP, await_coordinator
from tests.handlers.wire import fresh_name
from tests.routed import Routed
from tests.servers import BrokerProcess
from tests.waiting import until

TOPIC, PARTITIONS = "t", 6
SESSION_MS = 600_000
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 3,
    # The broker that is away stays the leader of its partitions.
    "zookeeper_session_timeout_ms": SESSION_MS,
}


class Cluster(NamedTuple):
    """Three brokers, of which one is away."""

    bootstrap: str
    away: BrokerProcess
    away_id: int
    lost: list[int]
    """The partitions of the broker that is away."""
    group: str
    """A group of another broker."""

    @property
    def rest(self) -> list[int]:
        return [index for index in range(PARTITIONS) if index not in self.lost]

    @property
    def names(self) -> str:
        return ", ".join(f"{TOPIC}-{index}" for index in self.lost)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # The longest session is 20 ticks.
    zookeeper = ZooKeeper(tmp_path_factory.mktemp("zookeeper"), tick_ms=SESSION_MS // 20)
    brokers = Brokers(tmp_path_factory.mktemp("brokers"), zookeeper.bootstrap, **SETTINGS)
    try:
        brokers.start()
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        brokers.all_until(lambda admin: TOPIC in admin.topics())
        away_id = next(one for one in range(3) if one != brokers.controller)
        with closing(Routed(brokers.ports)) as wire:
            places = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
            until(lambda: all(wire.leader(at) >= 0 for at in places), "led")
            lost = [at.partition for at in places if wire.leader(at) == away_id]
            group = wire.name_on(GROUP, brokers.controller, fresh_name())
            await_coordinator(wire, group)  # type: ignore[arg-type]
        with Producer(brokers.bootstrap) as producer:
            for index in range(PARTITIONS):
                producer.send(TOPIC, b"v", partition=index)
            producer.flush()
        brokers[away_id].kill()
        yield Cluster(brokers.bootstrap, brokers[away_id], away_id, lost, group)
    finally:
        brokers.kill()
        zookeeper.kill()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plog.cli.read_bounds.ANSWER_S", 1.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("in_group", [False, True], ids=["alone", "in-a-group"])
def test_consume_to_the_end_prints_the_other_partitions_and_names_the_broker(
    cluster: Cluster, call: Run, in_group: bool
) -> None:
    group = ["--group", cluster.group] if in_group else []
    where = ["-b", cluster.bootstrap, "--exit-at-end", *group]
    done = call("consume", TOPIC, *where, "--format", "{partition} {value}", status=1)
    lines = sorted(done.stdout.decode().splitlines())
    assert lines == [f"{index} v" for index in cluster.rest]
    last = done.stderr.decode().splitlines()[-1]
    text = f"plog: {len(cluster.lost)} partitions of broker {cluster.away_id} were not read:"
    assert last.startswith(f"{text} {cluster.names} (")
    assert f"127.0.0.1:{cluster.away.port}" in last


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("start", ["-5", "@2001-01-01", "latest"])
def test_consume_between_two_places_prints_the_other_partitions(
    cluster: Cluster, call: Run, start: str
) -> None:
    where = ["-b", cluster.bootstrap, "--from", start, "--until", "latest"]
    done = call("consume", TOPIC, *where, "--json", status=1)
    found = sorted(json.loads(line)["partition"] for line in done.stdout.splitlines())
    assert found == ([] if start == "latest" else cluster.rest)


def test_describe_shows_the_bytes_of_the_other_partitions(cluster: Cluster, call: Run) -> None:
    done = call("topics", "describe", TOPIC, "-b", cluster.bootstrap, "--json", status=1)
    (error,) = done.stderr.decode().splitlines()
    assert f"127.0.0.1:{cluster.away.port}" in error
    partitions = json.loads(done.stdout)["partitions"]
    assert [one["partition"] for one in partitions if one["bytes"] is None] == cluster.lost
    assert [one["partition"] for one in partitions if one["end"] is None] == cluster.lost


def test_consume_reads_the_partitions_of_a_broker_that_comes_back_meanwhile(
    cluster: Cluster, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test: it starts the broker."""
    waits = ReadBounds.sleep

    def starts(self: ReadBounds) -> None:
        if not cluster.away.is_running:
            cluster.away.start()
        waits(self)

    monkeypatch.setattr(ReadBounds, "sleep", starts)
    # Its partitions have no leader while it starts, which a slow host makes long.
    monkeypatch.setattr(read_bounds, "ELECTION_S", read_bounds.ANSWER_S)
    where = ["-b", cluster.bootstrap, "--exit-at-end"]
    done = call("consume", TOPIC, *where, "--format", "{partition} {value}")
    lines = done.stdout.decode().splitlines()
    assert sorted(lines) == [f"{index} v" for index in range(PARTITIONS)]
    assert sorted(lines[: len(cluster.rest)]) == [f"{index} v" for index in cluster.rest]
    (said,) = done.stderr.decode().splitlines()
    text = f"plog: waiting for {len(cluster.lost)} partitions of broker {cluster.away_id}:"
    assert said.startswith(f"{text} {cluster.names} (")
