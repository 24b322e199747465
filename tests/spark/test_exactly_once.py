"""A stream that copies a topic, whose driver, workers and broker are killed at any moment.

Whatever dies, and is started again, the sink has each record of the source once, and those of a key
in their order.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from tests.agreement.harness import run_seed
from tests.servers import BrokerProcess
from tests.spark.copy_query import ROWS_PER_BATCH
from tests.spark.driver import PATIENCE_S, Driver
from tests.spark.marks import DEAR
from tests.spark.test_sink import read

pytestmark = DEAR

RECORDS = 10 * ROWS_PER_BATCH
KEYS = 40
ROUNDS, LONG_ROUNDS = 3, 30
MOST_KILLS = 3
DRIVER, WORKER, BROKER = "driver", "worker", "broker"


def fill(broker: BrokerProcess) -> None:
    with Admin(broker.bootstrap) as admin:
        for topic in ("source", "sink"):
            admin.create_topic(topic, partitions=3)
    with Producer(broker.bootstrap) as producer:
        for n in range(RECORDS):
            producer.send("source", b"%d" % n, key=b"%d" % (n % KEYS))


def kill(chance: random.Random, what: str, driver: Driver, broker: BrokerProcess) -> str:
    """Kill the driver, a worker (without one, the driver) or the broker, which comes back."""
    workers = driver.workers() if what == WORKER else []
    if what == BROKER:
        broker.kill()
        time.sleep(chance.uniform(0, 2))
        broker.start()
        return BROKER
    if workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(workers).kill()
        return WORKER
    driver.kill()
    return DRIVER


def one_round(
    chance: random.Random,
    first: str,
    directory: Path,
    environment: dict[str, str],
    broker: BrokerProcess,
) -> list[str]:
    """Copy with some kills, of `first` before others; return what was killed."""
    fill(broker)
    arguments = ("local[2]", broker.bootstrap, "source", "sink", str(directory / "checkpoint"))
    killed: list[str] = []
    left = chance.randint(1, MOST_KILLS)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        driver = Driver(directory, environment, "-m", "tests.spark.copy_query", *arguments)
        try:
            while left and not driver.has_ended:
                assert time.monotonic() < deadline, f"{killed}\n{driver.log}"
                is_early = not driver.has_written
                if is_early and (not killed or chance.random() < 0.95):
                    time.sleep(0.05)  # mostly once it is at work, and now and then before
                    continue
                if not killed and first == WORKER and not driver.workers():
                    continue
                # The first comes soon: a driver that is let be has ended some seconds later.
                time.sleep(chance.uniform(0, 1.2 if killed else 0.5))
                what = chance.choice([DRIVER, DRIVER, WORKER, BROKER]) if killed else first
                killed.append(kill(chance, what, driver, broker))
                left -= 1
            # Spark gives a query up whose task has failed too often: it is started again.
            if driver.ended_well():
                return killed
        finally:
            driver.kill()


def check(broker: BrokerProcess) -> None:
    found = read(broker, "sink")
    values = Counter(int(record.value or b"-1") for record in found)
    twice = sorted(value for value, count in values.items() if count > 1)
    lost = sorted(set(range(RECORDS)) - values.keys())
    assert (twice[:5], lost[:5], len(found)) == ([], [], RECORDS)
    for key in range(KEYS):
        mine = [int(record.value or b"-1") for record in found if record.key == b"%d" % key]
        assert mine == sorted(mine)


def rounds(
    count: int,
    tmp_path: Path,
    environment: dict[str, str],
    report: Callable[[str, object], None],
) -> None:
    seed = run_seed()
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        directory = tmp_path / f"round-{number}"
        directory.mkdir()
        with BrokerProcess(directory) as broker:
            begun = time.monotonic()
            first = (DRIVER, WORKER, BROKER)[number % 3]
            killed = one_round(chance, first, directory, environment, broker)
            check(broker)
            assert killed[:1] == [first]
            took = time.monotonic() - begun
        report("figures", f"exactly once by Spark, round {number}: killed {killed}, {took:.0f} s")


@pytest.mark.usefixtures("plane")
@pytest.mark.timeout(600)
def test_each_record_is_there_once_whoever_is_killed(
    tmp_path: Path,
    workers_find_plog: dict[str, str],
    record_property: Callable[[str, object], None],
) -> None:
    rounds(ROUNDS, tmp_path, workers_find_plog, record_property)


@pytest.mark.long
@pytest.mark.usefixtures("plane")
@pytest.mark.timeout(3600)
def test_each_record_is_there_once_whoever_is_killed_many_times(
    tmp_path: Path,
    workers_find_plog: dict[str, str],
    record_property: Callable[[str, object], None],
) -> None:
    rounds(LONG_ROUNDS, tmp_path, workers_find_plog, record_property)
