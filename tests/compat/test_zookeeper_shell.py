"""Kafka's zookeeper-shell reads the znodes of three brokers, which are those that Kafka 3.9 writes.

A live Kafka 3.9 on another path of the same ZooKeeper does the same, and its znodes are compared.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from plog.client.admin import Admin
from plog.cluster.features import SUPPORTED
from plog.types import uuid_to_text
from tests.cluster.processes import Brokers
from tests.compat.kafka_tools import TIMEOUT_S
from tests.compat.live_kafka import KAFKA_3_9, Kafka, ZooKeeper
from tests.waiting import until

SHELL = "ZooKeeperMainWithTlsSupportForKafka"
GREETING = "JLine support is disabled"
WATCHED = re.compile(r"WATCHER::|WatchedEvent state:\S+ type:\S+ path:\S+")
TOPIC = "t"
STATE = f"/brokers/topics/{TOPIC}/partitions/0/state"
COMPARED = (
    "/brokers/ids/0",
    "/controller",
    "/controller_epoch",
    f"/brokers/topics/{TOPIC}",
    STATE,
    f"/config/topics/{TOPIC}",
    "/config/brokers/0",
    "/config/brokers/<default>",
    "/cluster/id",
)
ITS_OWN = {"id", "topic_id", "timestamp", "port", "endpoints"}
"""Values that differ between any two clusters."""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    running = ZooKeeper(tmp_path_factory.mktemp("zookeeper"), stops=False)
    yield running
    running.kill()


@pytest.fixture
def brokers(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path, zookeeper.bootstrap) as running:
        yield running


@pytest.fixture
def kafka(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[Kafka]:
    elsewhere = f"zookeeper.connect={zookeeper.bootstrap}/kafka\n"
    running = Kafka(tmp_path / "kafka", tmp_path / "data", zookeeper, elsewhere, stops=False)
    yield running
    running.kill()


def shell(connect: str, commands: Sequence[str]) -> str:
    """Run commands in one zookeeper-shell; return what they print, without line breaks.

    Another thread of the shell prints what it watches, possibly amid a line.
    """
    done = subprocess.run(
        KAFKA_3_9.command(SHELL, "-server", connect),
        input="".join(f"{command}\n" for command in [*commands, "quit"]),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    _, _, printed = done.stdout.partition(GREETING)
    return "".join(WATCHED.sub("", printed).splitlines())


def get(connect: str, *paths: str) -> list[Any]:
    """Return the values of znodes."""
    printed = shell(connect, [f"get {path}" for path in paths])
    found, end, decoder = [], 0, json.JSONDecoder()
    while end < len(printed):
        value, end = decoder.raw_decode(printed, end)
        found.append(value)
    assert len(found) == len(paths), printed
    return found


def children(connect: str, *paths: str) -> list[set[str]]:
    printed = shell(connect, [f"ls {path}" for path in paths])
    found = re.findall(r"\[([^]]*)\]", printed)
    assert len(found) == len(paths), printed
    return [set(names.split(", ")) for names in found]


def typed(value: Any) -> Any:
    """Return a value with the types in the place of what differs between any two clusters."""
    if not isinstance(value, dict):
        return value
    return {
        name: _type_of(part) if name in ITS_OWN else typed(part) for name, part in value.items()
    }


def _type_of(value: object) -> Any:
    return [_type_of(part) for part in value] if isinstance(value, list) else type(value)


def prepare(bootstrap: str) -> None:
    """Have Kafka's tools create a topic and settings."""
    first = ("--bootstrap-server", bootstrap)
    one = ("--create", "--topic", TOPIC, "--replica-assignment", "0")
    KAFKA_3_9.run("TopicCommand", *first, *one, "--config", "retention.ms=7200000")
    for entity in (("--entity-name", "0"), ("--entity-default",)):
        change = ("--alter", "--add-config", "log.retention.ms=7000000")
        KAFKA_3_9.run("ConfigCommand", *first, "--entity-type", "brokers", *entity, *change)


def test_znodes_are_those_of_kafka(brokers: Brokers, zookeeper: ZooKeeper, kafka: Kafka) -> None:
    prepare(brokers.bootstrap)
    prepare(kafka.bootstrap)
    ours = dict(zip(COMPARED, get(brokers.connect, *COMPARED), strict=True))
    theirs = dict(zip(COMPARED, get(f"{zookeeper.bootstrap}/kafka", *COMPARED), strict=True))
    # A broker of Kafka 3.9 with ZooKeeper supports no feature.
    assert ours["/brokers/ids/0"].pop("features").keys() == SUPPORTED.keys()
    assert theirs["/brokers/ids/0"].pop("features") == {}
    # Kafka with ZooKeeper lets a leader go on that has started again before anybody missed it.
    assert ours[STATE].pop("leader_broker_epoch") > 0
    assert {path: typed(value) for path, value in ours.items()} == {
        path: typed(value) for path, value in theirs.items()
    }
    # Kafka's own are all there, and besides them what only plog and Kafka 4 have.
    folders = ("/", "/brokers", "/admin", "/config")
    ours_in, theirs_in = (
        dict(zip(folders, children(connect, *folders), strict=True))
        for connect in (brokers.connect, f"{zookeeper.bootstrap}/kafka")
    )
    theirs_in["/"].add("plog")
    theirs_in["/config"].add("groups")
    assert ours_in == theirs_in


def test_cluster_is_seen_by_zookeeper_shell(brokers: Brokers) -> None:
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=6)
        brokers.all_until(lambda admin: TOPIC in admin.topics())
        described, cluster_id = admin.topic(TOPIC), admin.cluster_id()
    partitions = [str(number) for number in range(6)]
    ids, numbers = children(brokers.connect, "/brokers/ids", f"/brokers/topics/{TOPIC}/partitions")
    assert ids == {"0", "1", "2"}
    assert numbers == set(partitions)
    topic, cluster, controller, epoch, *states = get(
        brokers.connect,
        f"/brokers/topics/{TOPIC}",
        "/cluster/id",
        "/controller",
        "/controller_epoch",
        *(f"/brokers/topics/{TOPIC}/partitions/{number}/state" for number in partitions),
    )
    assert topic["topic_id"] == uuid_to_text(described.topic_id)
    assert topic["partitions"] == {
        number: [state["leader"]] for number, state in zip(partitions, states, strict=True)
    }
    assert cluster["id"] == cluster_id
    assert (controller["brokerid"], epoch) == (brokers.controller, 1)
    assert {n: state["leader"] for n, state in enumerate(states)} == {
        n: one.leader_id for n, one in described.partitions.items()
    }
    ends = get(brokers.connect, *(f"/brokers/ids/{broker_id}" for broker_id in range(3)))
    assert [end["endpoints"] for end in ends] == [
        [f"PLAINTEXT://{one.bootstrap}"] for one in brokers.brokers
    ]

    first = brokers.controller
    brokers[first].stop()
    with Admin(brokers[(first + 1) % 3].bootstrap) as admin:
        until(lambda: admin.controller_id() not in (first, -1), "another controller")
        until(lambda: first not in {one.node_id for one in admin.nodes()}, "gone")
    (ids,) = children(brokers.connect, "/brokers/ids")
    assert ids == {"0", "1", "2"} - {str(first)}
    controller, epoch = get(brokers.connect, "/controller", "/controller_epoch")
    assert (controller["brokerid"], epoch) == (brokers.controller, 2)
