"""`plog reassign` as an operator uses it: a broker is drained, and another gets its share."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from tests.cli.conftest import command_line
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    running = Brokers(tmp_path, zookeeper.bootstrap, replica_lag_time_max_ms=4_000)
    with running:
        with Admin(running.bootstrap) as admin:
            admin.create_topic("t", assignments={0: [0], 1: [0], 2: [0], 3: [1]})
        with Producer(running.bootstrap) as producer:
            for number in range(4_000):
                producer.send("t", b"%d" % number, partition=number % 4)
        yield running


def run(brokers: Brokers, *words: str, given: str = "", status: int = 0) -> str:
    done = subprocess.run(
        command_line("reassign", *words, "-b", brokers.bootstrap),
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def replicas(brokers: Brokers) -> dict[int, list[int]]:
    with Admin(brokers.bootstrap) as admin:
        return {index: list(one.replicas) for index, one in admin.topic("t").partitions.items()}


def test_broker_is_drained_and_gets_a_share_again(brokers: Brokers) -> None:
    shown = run(brokers, "plan", "--drain", "0")
    assert "t-0" in shown
    assert "Nothing was changed." in shown
    plan = run(brokers, "plan", "--drain", "0", "--json")
    assert len(json.loads(plan)["partitions"]) == 3
    assert "3 partitions could move." in run(brokers, "apply", "-", "--dry-run", given=plan)
    assert replicas(brokers)[0] == [0]
    assert "3 partitions begin to move." in run(brokers, "apply", "-", given=plan)
    assert "No partition moves." in run(brokers, "status", "--wait")
    assert all(0 not in one for one in replicas(brokers).values())
    assert "Nothing has to move." in run(brokers, "plan", "--drain", "0")
    plan = run(brokers, "plan", "--balance", "--factor", "2", "--json")
    run(brokers, "apply", "-", given=plan)
    run(brokers, "status", "--wait")
    after = replicas(brokers)
    assert {len(one) for one in after.values()} == {2}
    assert {broker for one in after.values() for broker in one} == {0, 1, 2}


def test_move_is_given_up(brokers: Brokers) -> None:
    with brokers[2].suspended():
        run(brokers, "apply", "-", given=plan_of({0: [2]}))
        shown = run(brokers, "status")
        assert shown.splitlines()[1].split()[:4] == ["t-0", "2,0", "2", "0"]
        assert "1 move given up." in run(brokers, "cancel", "t-0")
    assert "No partition moves." in run(brokers, "status", "--wait")
    assert replicas(brokers)[0] == [0]


def plan_of(moves: dict[int, list[int]]) -> str:
    partitions = [{"topic": "t", "partition": index, "replicas": to} for index, to in moves.items()]
    return json.dumps({"version": 1, "partitions": partitions})


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (("apply", "-"), "{}", "needs partitions, each with topic"),
        (("apply", "-"), plan_of({9: [1]}), "partition t-9 does not exist"),
        (("apply", "-"), plan_of({0: [1, 7]}), "brokers 7 are not in the cluster"),
        (("apply", "-"), plan_of({0: [1, 1]}), "names a broker twice"),
        (("cancel", "t-0"), "", "'t-0' has no reassignment in progress"),
        (("plan", "none"), "", "topic 'none' does not exist"),
        (("plan", "--factor", "4"), "", "give a --factor of at most 3"),
        (("plan", "--drain", "9"), "", "broker 9 is not in the cluster, and has no replica"),
        (("plan", "--replace", "0=9"), "", "broker 9 is not in the cluster"),
    ],
)
def test_what_cannot_be_is_said(
    brokers: Brokers, words: tuple[str, ...], given: str, said: str
) -> None:
    assert said in run(brokers, *words, given=given, status=1)
