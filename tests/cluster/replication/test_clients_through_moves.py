"""Real clients write and read while leads move, replicas move, and a leader is killed.

Each client is idempotent: every record has to be there once, at its offset, in its order.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from plog.client.admin import Admin
from tests.agreement.harness import run_seed
from tests.cluster.processes import Brokers
from tests.cluster.replication.mover import REPLICAS, SETTINGS, moving
from tests.compat import traffic
from tests.compat.live_kafka import ZooKeeper
from tests.compat.programs import FRANZ_GO, JAVA, RUN_TIMEOUT_S, Program, Run
from tests.compat.test_other_clients import Sarama
from tests.compat.traffic import Shape

TOPIC = "moved"
SHAPE = Shape(partitions=6, rounds=60, records_per_round=1)

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


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("count", "name"), CASES)
def test_client_writes_and_reads_while_leads_move(
    tmp_path: Path, zookeeper: ZooKeeper, count: int, name: str
) -> None:
    chance = random.Random(run_seed())
    with Brokers(tmp_path, zookeeper.bootstrap, count, **SETTINGS) as brokers:
        assignments = {
            index: chance.sample(range(count), REPLICAS) for index in range(SHAPE.partitions)
        }
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic(TOPIC, assignments=assignments)
        with moving(brokers, [TOPIC], chance):
            CLIENTS[name](brokers.bootstrap)
