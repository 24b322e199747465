"""The source and the sink on a standalone cluster, whose executors and workers die.

Nothing is registered: every process finds the format by its name. All tests have one driver, and
so its executors; the last one kills some.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
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
        fill(running.bootstrap)
        yield running


@pytest.fixture(scope="module")
def only_driver(
    cluster: Standalone,
    tmp_path_factory: pytest.TempPathFactory,
    workers_find_plog: dict[str, str],
) -> Iterator[Driver]:
    directory = tmp_path_factory.mktemp("driver")
    module = "tests.spark.cluster_query"
    running = Driver(directory, workers_find_plog, "-m", module, cluster.url, takes_orders=True)
    yield running
    running.kill()


@pytest.fixture
def driver(cluster: Standalone, only_driver: Driver) -> Driver:
    """Return the driver, with an executor on each worker: an earlier test may have killed some."""
    cluster.restore()
    until(lambda: all(one.executors() for one in cluster.workers.values()), "executors", 60)
    return only_driver


class Order:
    """What the driver is to do, and what it has said since.

    Args:
        words: the order, and where it writes to; the topic that is read is `source`.
    """

    def __init__(self, driver: Driver, broker: BrokerProcess, what: str, *words: str) -> None:
        self._driver = driver
        self._begun = len(driver.log)
        driver.order(what, broker.bootstrap, "source", *words)

    @property
    def said(self) -> str:
        return self._driver.log[self._begun :]

    def wait_for(self, line: str) -> None:
        """Wait until the driver has said this line."""

        def is_so() -> bool:
            assert not self._driver.has_ended, self._driver.log
            return f"{line}\n" in self.said

        until(is_so, line, 180)


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


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


def test_topic_is_loaded_into_parquet_by_both_workers(
    cluster: Standalone, broker: BrokerProcess, driver: Driver, tmp_path: Path
) -> None:
    path = tmp_path / "warehouse"
    Order(driver, broker, "load", str(path)).wait_for(f"loaded {RECORDS}")
    loaded = [int(value) for value in pq.read_table(path).column("value").to_pylist()]
    assert sorted(loaded) == list(range(RECORDS))
    assert all(worker.executors() for worker in cluster.workers.values())


@pytest.mark.long
def test_topic_is_loaded_into_parquet_by_spark_submit(
    broker: BrokerProcess, tmp_path: Path, workers_find_plog: dict[str, str]
) -> None:
    """On a cluster of its own: the driver of the other tests leaves no core free on theirs."""
    path = tmp_path / "warehouse"
    where = "--bootstrap-server", broker.bootstrap, "--topic", "source", "--path", str(path)
    with Standalone(tmp_path, workers_find_plog) as cluster:
        done = submit(workers_find_plog, "load_parquet.py", *where, master=cluster.url)
        logs = [worker.log for worker in cluster.workers.values()]
    assert done.returncode == 0, done.stderr
    assert f"Loaded: {RECORDS:,} records" in done.stdout
    loaded = [int(value) for value in pq.read_table(path).column("value").to_pylist()]
    assert sorted(loaded) == list(range(RECORDS))
    for log in logs:
        assert "for load parquet" in log


def test_nothing_is_seen_of_an_attempt_that_fails_and_of_one_that_is_overtaken(
    broker: BrokerProcess, driver: Driver, checkpoint: str
) -> None:
    Order(driver, broker, "spoil", "sink", checkpoint).wait_for("copied")
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


def test_topic_is_read_and_copied_while_an_executor_and_a_worker_are_killed(
    cluster: Standalone, broker: BrokerProcess, driver: Driver, checkpoint: str
) -> None:
    chance = random.Random(run_seed())
    copies = Order(driver, broker, "copy", "sink", checkpoint)
    copies.wait_for("batch 1")
    assert f"{RECORDS} rows, topics source, sum {sum(range(RECORDS))}" in copies.said
    one, other = (cluster.workers[host] for host in chance.sample(WORKER_HOSTS, 2))
    time.sleep(chance.uniform(0, 0.5))
    (executor,) = one.executors()
    executor.kill()
    copies.wait_for("batch 4")
    time.sleep(chance.uniform(0, 0.5))
    assert "copied" not in copies.said
    other.kill()
    copies.wait_for("copied")
    check(broker.bootstrap)
