"""Real clients write and read while leads move, replicas move, and a leader is killed.

Each client is idempotent: every record has to be there once, at its offset, in its order.
"""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.reassignments import ReassignmentAdmin
from plog.errors import KafkaError
from plog.types import TopicPartition
from tests.agreement.harness import run_seed
from tests.cluster.elections import Elections
from tests.cluster.processes import Brokers
from tests.compat import traffic
from tests.compat.live_kafka import ZooKeeper
from tests.compat.programs import FRANZ_GO, JAVA, RUN_TIMEOUT_S, Program, Run
from tests.compat.test_other_clients import Sarama
from tests.compat.traffic import Shape
from tests.waiting import until

TOPIC = "moved"
REPLICAS = 3
SHAPE = Shape(partitions=6, rounds=60, records_per_round=1)
PLACES = [TopicPartition(TOPIC, index) for index in range(SHAPE.partitions)]
LEAST_MOVES = 3
"""So often the lead of a partition went to another broker while a client wrote and read."""
PAUSE_S = 0.5
ASK_MS = 3_000
MOVED_WITHIN_S = 60.0
SETTINGS = {
    "min.insync.replicas": 2,
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": 3_000,
}

Client = Callable[[str], None]
"""Writes and reads what `SHAPE` says, given the addresses of the brokers."""


def python(client: Callable[..., traffic.Client], **settings: object) -> Client:
    return lambda bootstrap: traffic.run(client(**settings), bootstrap, [TOPIC], SHAPE)


def program(client: Program) -> Client:
    return lambda bootstrap: client.run(bootstrap, SHAPE, Run([TOPIC], {}), may_warn=True)


def sarama(bootstrap: str) -> None:
    client = Sarama()
    numbers = map(str, (SHAPE.partitions, SHAPE.rounds))
    done = subprocess.run(
        [*client.moves_command(client.built()), bootstrap, TOPIC, *numbers],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(SHAPE.total(1))), done.stderr


CLIENTS: Mapping[str, Client] = {
    **{client.name: program(client) for client in (*JAVA, FRANZ_GO)},
    "librdkafka": python(traffic.Confluent, **{"enable.idempotence": True}),
    "kafka-python": python(traffic.KafkaPython, enable_idempotence=True),
    "aiokafka": python(traffic.AioKafka, enable_idempotence=True),
    "sarama": sarama,
}
IN_EVERY_RUN = {(3, JAVA[-1].name), (5, "librdkafka")}
CASES = [
    pytest.param(
        count,
        name,
        marks=[] if (count, name) in IN_EVERY_RUN else [pytest.mark.long],
        id=f"{name}-{count}",
    )
    for name in CLIENTS
    for count in (3, 5)
]


class Mover:
    """Moves leads and replicas until it is stopped, and kills one leader meanwhile."""

    def __init__(self, brokers: Brokers, chance: random.Random) -> None:
        self._brokers = brokers
        self._chance = chance
        self._stops = threading.Event()
        self.moves = 0
        self.kills = 0

    def run(self) -> None:
        while not self._stops.wait(PAUSE_S):
            before = self._leaders()
            if self.moves >= LEAST_MOVES and not self.kills:
                self._kill(before[PLACES[0]])
            else:
                self._move()
            self.moves += sum(before[at] != leader for at, leader in self._leaders().items())

    def stop(self) -> None:
        self._stops.set()

    def _leaders(self) -> dict[TopicPartition, int]:
        with Admin(self._brokers.bootstrap, request_timeout_ms=ASK_MS) as admin:
            parts = admin.topic(TOPIC).partitions
        return {at: parts[at.partition].leader_id for at in PLACES}

    def _move(self) -> None:
        """Have some partitions on other brokers, or in another order, led by the first."""
        everyone = range(len(self._brokers.brokers))
        chosen = self._chance.sample(PLACES, 3)
        with Elections(self._brokers.bootstrap, request_timeout_ms=ASK_MS) as elections:
            with ReassignmentAdmin(self._brokers.bootstrap, request_timeout_ms=ASK_MS) as admin:
                targets = {at: self._chance.sample(everyone, REPLICAS) for at in chosen}
                _until_done(partial(admin.reassign, targets))
                until(lambda: admin.moves() == {}, "all replicas are moved", MOVED_WITHIN_S)
            _until_done(elections.elect_preferred)

    def _kill(self, leader: int) -> None:
        self._brokers.lose(leader)
        self.kills += 1
        until(lambda: self._leaders()[PLACES[0]] not in (leader, -1), "another one leads")
        self._brokers.start()


def _until_done(ask: Callable[[], None]) -> None:
    """Ask until the controller has done it."""

    def is_done() -> bool:
        try:
            ask()
        except KafkaError:
            return False
        return True

    until(is_done, "the controller has done it", MOVED_WITHIN_S)


@contextmanager
def moving(brokers: Brokers, chance: random.Random) -> Iterator[Mover]:
    """Move leads until the block ends. Raises what the mover has raised."""
    mover = Mover(brokers, chance)
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(mover.run)
        try:
            yield mover
        finally:
            mover.stop()
        moved.result()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("count", "name"), CASES)
def test_client_writes_and_reads_while_leads_move(
    tmp_path: Path, zookeeper: ZooKeeper, count: int, name: str
) -> None:
    chance = random.Random(run_seed())
    with Brokers(tmp_path, zookeeper.bootstrap, count, **SETTINGS) as brokers:
        assignments = {at.partition: chance.sample(range(count), REPLICAS) for at in PLACES}
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic(TOPIC, assignments=assignments)
        with moving(brokers, chance) as mover:
            CLIENTS[name](brokers.bootstrap)
        assert mover.moves >= LEAST_MOVES
        assert mover.kills == 1
        print(f"{mover.moves} leads moved, {mover.kills} leaders killed")
