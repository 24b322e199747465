"""A broker whose disks fail: with the last one it ends, so that whoever watches it notices."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.errors import KafkaError
from tests.crash.power_cut import FAIL_SYNC_BELOW
from tests.planes import Plane
from tests.servers import BrokerProcess

LAUNCH = """
import sys, time
from plog import broker, server
from plog.cli import main
from tests.crash.power_cut import fail_sync_when_told
from tests.planes import take_plane
take_plane()
fail_sync_when_told()
{more}
main(["server", *sys.argv[1:]])
"""
NEVER_STOPS = """
async def never_stops(self):
    time.sleep(3600)
broker.Broker.stop = never_stops
server.HALT_S = 0.5
"""
NOTHING_LEFT = "no log directory is left"

Make = Callable[..., BrokerProcess]


@pytest.fixture
def make(plane: Plane, tmp_path: Path) -> Iterator[Make]:
    made: list[BrokerProcess] = []

    def make(*, log_dirs: int = 1, more: str = "") -> BrokerProcess:
        broker = BrokerProcess(
            tmp_path,
            log_dirs=log_dirs,
            launcher=[sys.executable, "-c", LAUNCH.format(more=more)],
            environment={FAIL_SYNC_BELOW: str(tmp_path / "data0" / "t-")},
        )
        made.append(broker)
        return broker.start()

    yield make
    for broker in made:
        broker.kill()


def wait_for(broker: BrokerProcess, words: str) -> None:
    deadline = time.monotonic() + 90
    while words not in broker.log:
        assert time.monotonic() < deadline, f"not in the log: {words}\n{broker.log}"
        time.sleep(0.01)


def fail_disk(broker: BrokerProcess) -> int:
    """Have the first disk fail under a record of every partition; return how many were taken."""
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("t", partitions=2)
    taken = 0
    with Producer(
        broker.bootstrap, delivery_timeout_ms=1_500, request_timeout_ms=1_000
    ) as producer:
        # The first batch of a producer in a partition is never the fast path's.
        for number in range(2):
            producer.send("t", b"first", partition=number).result(30)
        os.kill(broker.pid, signal.SIGUSR1)
        wait_for(broker, "the next fdatasync below")
        for sent in [producer.send("t", b"x", partition=number) for number in range(2)]:
            try:
                sent.result(30)
                taken += 1
            except KafkaError:
                pass
    return taken


def test_broker_ends_with_its_last_disk(make: Make) -> None:
    broker = make()
    assert fail_disk(broker) < 2
    assert broker.wait() == 1
    assert broker.log.count(NOTHING_LEFT) == 1
    assert "Traceback" not in broker.log
    assert not (broker.log_dirs[0] / ".kafka_cleanshutdown").exists()
    broker.start()
    with Producer(broker.bootstrap) as producer:
        producer.send("t", b"x", partition=0).result(30)
    broker.stop()


def test_broker_lives_on_with_the_disks_that_are_left(make: Make) -> None:
    broker = make(log_dirs=2)
    assert fail_disk(broker) == 1
    wait_for(broker, f"log directory {broker.log_dirs[0]} is offline")
    assert NOTHING_LEFT not in broker.log
    broker.stop()


def test_broker_that_cannot_stop_ends_all_the_same(make: Make) -> None:
    broker = make(more=NEVER_STOPS)
    fail_disk(broker)
    assert broker.wait() == 1
    assert broker.log.count(NOTHING_LEFT) == 1
