"""Records of acks=1 when a lead moves in order: the leader before has them, and followers must."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from plog.client.producer import Producer
from plog.client.reassignments import ReassignmentAdmin
from plog.types import TopicPartition
from tests.cluster.elections import Elections
from tests.cluster.processes import Brokers
from tests.cluster.replication.live import create, until_led_by
from tests.compat.live_kafka import ZooKeeper
from tests.waiting import until
from tests.whole_topic import read_topic

TOPIC = "moved"
AT = TopicPartition(TOPIC, 0)
MOVES = 8
PER_ROUND = 20

Move = Callable[[Brokers, int], None]


def prefer(brokers: Brokers, leader: int) -> None:
    """Have another one of the same three replicas lead."""
    _reassign(brokers, [leader, (leader + 1) % 3, (leader + 2) % 3])
    with Elections(brokers.bootstrap) as elections:
        elections.elect_preferred()


def reassign(brokers: Brokers, leader: int) -> None:
    """Move the partition to two replicas, without the leader of now."""
    _reassign(brokers, [leader, (leader + 1) % 3])


def _reassign(brokers: Brokers, replicas: list[int]) -> None:
    with ReassignmentAdmin(brokers.bootstrap) as admin:
        admin.reassign({AT: replicas})
        until(lambda: admin.moves() == {}, "the replicas are moved")


@contextmanager
def writing(bootstrap: str) -> Iterator[list[int]]:
    """Write numbers with acks=1 until the block ends; the list has the acknowledged ones."""
    acknowledged: list[int] = []
    stops = threading.Event()

    def write() -> None:
        numbers = itertools.count()
        with Producer(bootstrap, acks="1", enable_idempotence=False, linger_ms=0) as producer:
            while not stops.is_set():
                some = list(itertools.islice(numbers, PER_ROUND))
                sent = [producer.send(TOPIC, b"%d" % n, partition=0) for n in some]
                producer.flush()
                acknowledged.extend(n for n, one in zip(some, sent, strict=True) if one.result(0))

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(write)
        try:
            yield acknowledged
        finally:
            stops.set()
        done.result()


def until_more(acknowledged: list[int]) -> None:
    count = len(acknowledged)
    until(lambda: len(acknowledged) > count + PER_ROUND, "more records are acknowledged")


@pytest.mark.parametrize("move", [prefer, reassign], ids=lambda one: one.__name__)
def test_no_record_of_acks_one_is_lost_when_a_lead_moves(
    tmp_path: Path, zookeeper: ZooKeeper, move: Move
) -> None:
    settings = {"auto.leader.rebalance.enable": "false"}
    with Brokers(tmp_path, zookeeper.bootstrap, **settings) as brokers:
        create(brokers, TOPIC, replicas=(0, 1, 2) if move is prefer else (0, 1))
        with writing(brokers.bootstrap) as acknowledged:
            for number in range(1, MOVES + 1):
                until_more(acknowledged)
                move(brokers, number % 3)
                until_led_by(brokers, TOPIC, number % 3)
        found = {int(record.value or b"") for record in read_topic(brokers.bootstrap, TOPIC)}
        lost = [number for number in acknowledged if number not in found]
        assert not lost, f"{len(lost)} of {len(acknowledged)} records, the first {lost[:5]}"
