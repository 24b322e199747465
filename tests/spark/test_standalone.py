"""The source and the sink on a standalone cluster, whose executors and workers die.

Nothing is registered: every process finds the format by its name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest

from plog.client.consumer import ConsumerRecord
from tests.agreement.harness import run_seed
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.spark.cluster_query import FAILING, SLOW
from tests.spark.driver import Driver
from tests.spark.marks import DEAR
from tests.spark.standalone import WORKER_HOSTS, Standalone
from tests.spark.submitted import submit
from tests.spark.test_exactly_once import KEYS, RECORDS, check, fill
from tests.spark.test_sink import read
from tests.waiting import until

pytestmark = [*DEAR, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, workers_find_plog: dict[str, str]
) -> Iterator[Standalone]:
    directory = tmp_path_factory.mktemp("standalone")
    with Standalone(directory, workers_find_plog) as running:
        yield running


@pytest.fixture
def broker(plane: Plane, tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as running:
        fill(running)
        yield running


@pytest.fixture
def drive(
    cluster: Standalone, broker: BrokerProcess, tmp_path: Path, workers_find_plog: dict[str, str]
) -> Iterator[Callable[[str], Driver]]:
    """Start a driver that copies."""
    cluster.restore()
    started = []

    def drive(what: str) -> Driver:
        arguments = broker.bootstrap, "source", "sink", str(tmp_path / "checkpoint")
        module = "tests.spark.cluster_query"
        driver = Driver(tmp_path, workers_find_plog, "-m", module, what, cluster.url, *arguments)
        started.append(driver)
        return driver

    yield drive
    for driver in started:
        driver.kill()


class Marked(NamedTuple):
    """A record that `spoil` has marked: of which batch and task it is, and of which attempt."""

    key: int
    value: int
    task: tuple[int, int]
    attempt: int


def marked(records: Iterable[ConsumerRecord]) -> list[Marked]:
    found = []
    for record in records:
        value, batch, task, attempt, _ = (record.value or b"").split()
        found.append(
            Marked(int(record.key or b""), int(value), (int(batch), int(task)), int(attempt))
        )
    return found


def until_batch(driver: Driver, number: int) -> None:
    """Wait until a driver has finished a batch."""

    def is_so() -> bool:
        assert not driver.has_ended, driver.log
        return f"batch {number}\n" in driver.log

    until(is_so, f"batch {number}", 120)


def test_topic_is_read_and_copied_while_an_executor_and_a_worker_are_killed(
    cluster: Standalone, broker: BrokerProcess, drive: Callable[[str], Driver]
) -> None:
    chance = random.Random(run_seed())
    driver = drive("copy")
    until_batch(driver, 1)
    assert f"{RECORDS} rows, topics source, sum {sum(range(RECORDS))}" in driver.log
    one, other = (cluster.workers[host] for host in chance.sample(WORKER_HOSTS, 2))
    time.sleep(chance.uniform(0, 0.5))
    (executor,) = one.executors()
    executor.kill()
    until_batch(driver, 4)
    time.sleep(chance.uniform(0, 0.5))
    assert "copied" not in driver.log
    other.kill()
    assert driver.ended_well(), driver.log
    check(broker)


def test_topic_is_loaded_into_parquet_by_both_workers(
    cluster: Standalone,
    broker: BrokerProcess,
    tmp_path: Path,
    workers_find_plog: dict[str, str],
) -> None:
    cluster.restore()
    path = tmp_path / "warehouse"
    where = "--bootstrap-server", broker.bootstrap, "--topic", "source", "--path", str(path)
    done = submit(workers_find_plog, "load_parquet.py", *where, master=cluster.url)
    assert done.returncode == 0, done.stderr
    assert f"Loaded: {RECORDS:,} records" in done.stdout
    loaded = [int(value) for value in pq.read_table(path).column("value").to_pylist()]
    assert sorted(loaded) == list(range(RECORDS))
    for worker in cluster.workers.values():
        assert "for load parquet" in worker.log


def test_nothing_is_seen_of_an_attempt_that_fails_and_of_one_that_is_overtaken(
    broker: BrokerProcess, drive: Callable[[str], Driver]
) -> None:
    driver = drive("spoil")
    assert driver.ended_well(), driver.log
    seen = marked(read(broker, "sink"))
    assert sorted(one.value for one in seen) == list(range(RECORDS))
    for key in range(KEYS):
        mine = [one.value for one in seen if one.key == key]
        assert mine == sorted(mine)
    written = marked(read(broker, "sink", isolation_level="read_uncommitted"))
    for task in (FAILING, SLOW):
        # Which attempt came after the first is Spark's: one may end before it has written.
        attempts = {one.attempt for one in written if one.task == task}
        assert 0 in attempts
        assert len(attempts) > 1
        assert 0 not in {one.attempt for one in seen if one.task == task}
    by_attempt = {(one.task, one.attempt) for one in seen}
    assert len(by_attempt) == len({task for task, _ in by_attempt})
