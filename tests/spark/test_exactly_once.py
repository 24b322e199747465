"""Three streams of a topic, whose driver, workers and broker are killed at any moment.

Whatever dies, and is started again, the sink has each record of the source once, and those of a key
in their order. `BatchSink` writes each batch of the counts by key once, in update and in complete
mode.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from tests.agreement.harness import run_seed
from tests.servers import BrokerProcess
from tests.spark.copy_query import COUNTS_PER_BATCH, ROWS_PER_BATCH
from tests.spark.driver import PATIENCE_S, Driver
from tests.spark.marks import DEAR
from tests.whole_topic import read_topic

pytestmark = DEAR

RECORDS = 10 * ROWS_PER_BATCH
KEYS = 40
COUNTS = {"changes": "update", "totals": "complete"}
"""Topics of the counts, and the output mode of each."""
TOPICS = ["source", "sink", *COUNTS]
LONG_ROUNDS = 30
MOST_KILLS = 3
DRIVER, WORKER, BROKER = "driver", "worker", "broker"


def fill(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        for topic in TOPICS:
            admin.create_topic(topic, partitions=3)
    with Producer(bootstrap) as producer:
        for n in range(RECORDS):
            producer.send("source", b"%d" % n, key=b"%d" % (n % KEYS))


def kill(chance: random.Random, what: str, driver: Driver, broker: BrokerProcess) -> bool:
    """Kill the driver, one of its workers if there is one, or the broker, which comes back."""
    if what == BROKER:
        broker.kill()
        time.sleep(chance.uniform(0, 2))
        broker.start()
    elif what == DRIVER:
        driver.kill()
    elif workers := driver.workers():
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(workers).kill()
    else:
        return False
    return True


def start_copying(bootstrap: str, directory: Path, environment: dict[str, str]) -> Driver:
    """Start a driver of the three streams, or go on with them."""
    checkpoint = str(directory / "checkpoint")
    counts = [f"{topic}={mode}" for topic, mode in COUNTS.items()]
    # A task has four attempts, as in a cluster.
    arguments = ("local[2,4]", bootstrap, "source", "sink", checkpoint, *counts)
    return Driver(directory, environment, "-m", "tests.spark.copy_query", *arguments)


class Plan(NamedTuple):
    """What a round kills, one after the other."""

    kills: list[str]
    at_work: bool = True
    """Only while batches are written; else also a driver that has only just started."""


def one_of_each(chance: random.Random, _: int) -> Plan:
    return Plan([*chance.sample([DRIVER, WORKER, BROKER], 3), DRIVER])


def any_kills(chance: random.Random, number: int) -> Plan:
    first = (DRIVER, WORKER, BROKER)[number % 3]
    more = chance.randrange(MOST_KILLS)
    return Plan([first, *chance.choices([DRIVER, DRIVER, WORKER, BROKER], k=more)], at_work=False)


def one_round(
    chance: random.Random,
    plan: Plan,
    directory: Path,
    environment: dict[str, str],
    broker: BrokerProcess,
) -> list[str]:
    """Copy while the plan's kills happen; return what was killed."""
    fill(broker.bootstrap)
    killed: list[str] = []
    while True:
        deadline = time.monotonic() + PATIENCE_S
        driver = start_copying(broker.bootstrap, directory, environment)
        try:
            while len(killed) < len(plan.kills) and not driver.has_ended:
                assert time.monotonic() < deadline, f"{killed}\n{driver.log}"
                what = plan.kills[len(killed)]
                is_early = not driver.has_written
                waits = plan.at_work or not killed or chance.random() < 0.95
                if (is_early and waits) or (what == WORKER and not driver.workers()):
                    time.sleep(0.05)
                    continue
                # The first comes soon: a driver that is let be has ended some seconds later.
                soon = plan.at_work or not killed
                time.sleep(chance.uniform(0, 0.5 if soon else 1.2))
                if kill(chance, what, driver, broker):
                    killed.append(what)
            # Spark gives a query up whose task has failed too often: it is started again.
            if driver.ended_well():
                return killed
        finally:
            driver.kill()


def check(bootstrap: str) -> None:
    found = read_topic(bootstrap, "sink")
    values = Counter(int(record.value or b"-1") for record in found)
    twice = sorted(value for value, count in values.items() if count > 1)
    lost = sorted(set(range(RECORDS)) - values.keys())
    assert (twice[:5], lost[:5], len(found)) == ([], [], RECORDS)
    for key in range(KEYS):
        mine = [int(record.value or b"-1") for record in found if record.key == b"%d" % key]
        assert mine == sorted(mine)


def check_counts(bootstrap: str, topic: str) -> None:
    """Check that each batch of the counts was written once, with all of its keys.

    Each batch has records of all keys, so that both modes write all keys of each batch.
    """
    found = [
        (int(batch), record.key, int(count))
        for record in read_topic(bootstrap, topic)
        for batch, count in [(record.value or b"").split()]
    ]
    keys = [b"%d" % key for key in range(KEYS)]
    batches = range(RECORDS // COUNTS_PER_BATCH)
    assert sorted(one[:2] for one in found) == sorted(itertools.product(batches, keys))
    for key in keys:
        counts = [count for _, one, count in sorted(found) if one == key]
        assert counts == sorted(set(counts))
        assert counts[-1] == RECORDS // KEYS


def rounds(
    count: int,
    plan: Callable[[random.Random, int], Plan],
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
            planned = plan(chance, number)
            killed = one_round(chance, planned, directory, environment, broker)
            check(broker.bootstrap)
            for topic in COUNTS:
                check_counts(broker.bootstrap, topic)
            # Of many kills the first is sure: the driver may have ended before the others.
            assert killed == planned.kills or (
                killed[:1] == planned.kills[:1] and not planned.at_work
            )
            took = time.monotonic() - begun
        report("figures", f"exactly once by Spark, round {number}: killed {killed}, {took:.0f} s")


@pytest.mark.usefixtures("plane")
@pytest.mark.timeout(600)
def test_each_record_is_there_once_whoever_is_killed(
    tmp_path: Path,
    workers_find_plog: dict[str, str],
    record_property: Callable[[str, object], None],
) -> None:
    rounds(1, one_of_each, tmp_path, workers_find_plog, record_property)


@pytest.mark.long
@pytest.mark.usefixtures("plane")
@pytest.mark.timeout(3600)
def test_each_record_is_there_once_whoever_is_killed_many_times(
    tmp_path: Path,
    workers_find_plog: dict[str, str],
    record_property: Callable[[str, object], None],
) -> None:
    rounds(LONG_ROUNDS, any_kills, tmp_path, workers_find_plog, record_property)
