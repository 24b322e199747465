"""The job that loads topics into Parquet: each record once, whoever dies at whichever step."""

from __future__ import annotations

import importlib
import itertools
import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.errors import ConfigError, UnknownTopicOrPartition
from plog.types import TopicPartition
from tests.agreement.harness import run_seed
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.several_brokers import until_topic_is_known
from tests.spark.activity_jobs import share
from tests.spark.driver import Driver
from tests.spark.jvm import by_itself
from tests.spark.marks import DEAR
from tests.spark.submitted import JOBS, configured
from tests.waiting import until

pytestmark = DEAR
DAY_MS = 86_400_000
T0_MS = 1_372_636_800_000
"""2013-07-01."""
NewTopic = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def jobs_are_found(plane: Plane) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(JOBS)
        yield


@pytest.fixture(scope="module")
def job(jobs_are_found: None) -> ModuleType:
    return importlib.import_module("load_parquet")


@pytest.fixture(scope="module")
def stores(jobs_are_found: None) -> ModuleType:
    return importlib.import_module("parquet_store")


@pytest.fixture(scope="module")
def filesystems(jobs_are_found: None) -> ModuleType:
    return importlib.import_module("filesystems")


class Warehouse:
    """A directory that topics are loaded into, and what is asked of it here."""

    def __init__(
        self, spark: Any, broker: BrokerProcess, job: ModuleType, path: Path, **settings: float
    ) -> None:
        self.spark, self.broker, self.job, self.path = spark, broker, job, path
        self.store = job.Store(job.files_at(spark, str(path)), **settings)

    def load(self, *topics: str, isolation: str = "read_committed", **options: Any) -> int:
        """Load topics; return how many records were."""
        subscription = {
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "kafka.isolation.level": isolation,
            "subscribe": ",".join(topics),
        }
        loaded = self.job.load(self.spark, self.store, subscription, **options)
        return sum(one.records for one in loaded)

    def rows(self, *columns: str) -> list[tuple]:
        rows = self.job.read(self.spark, str(self.path)).select(*columns).collect()
        return sorted(tuple(row) for row in rows)

    def values(self) -> list[int]:
        """Return the values, as `send` makes them."""
        return sorted(int(value) for (value,) in self.rows("value"))

    def plain(self) -> list[int]:
        """Return the values as they are seen without the manifest."""
        table = pq.read_table(self.path, columns=["value"], partitioning=None)
        return sorted(map(int, table.column("value").to_pylist()))


@pytest.fixture
def warehouse(spark: Any, broker: BrokerProcess, job: ModuleType, tmp_path: Path) -> Warehouse:
    return Warehouse(spark, broker, job, tmp_path / "warehouse")


@pytest.fixture
def send(broker: BrokerProcess) -> Callable[..., None]:
    """Produce numbers, turn by turn to the partitions, a day apart from `day` on."""

    def send(topic: str, numbers: range, partitions: int = 1, days: int = 1) -> None:
        with Producer(broker.bootstrap) as producer:
            for number in numbers:
                producer.send(
                    topic, b"%d" % number, key=b"k", partition=number % partitions,
                    timestamp_ms=T0_MS + number % days * DAY_MS,
                )  # fmt: skip

    return send


Send = Callable[..., None]


# -- loading ---------------------------------------------------------------------------------------


def test_records_are_loaded_with_all_that_they_have(
    broker: BrokerProcess, new_topic: NewTopic, warehouse: Warehouse
) -> None:
    topic = new_topic(2, prefix="007")  # a name that Spark would take for a number
    late = T0_MS + DAY_MS - 1
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"v", key=b"k", partition=1, timestamp_ms=late, headers=[("h", b"1")])
        producer.send(topic, None, partition=1, timestamp_ms=late + 1)
        producer.send(topic, b"", partition=0, timestamp_ms=0)
    zone = warehouse.spark.conf.get("spark.sql.session.timeZone")
    warehouse.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert warehouse.load(topic) == 3
    finally:
        warehouse.spark.conf.set("spark.sql.session.timeZone", zone)
    with Admin(broker.bootstrap) as admin:
        topic_id = str(admin.topic(topic).topic_id)
    rows = warehouse.job.read(warehouse.spark, str(warehouse.path))
    assert {column: kind for column, kind in rows.dtypes if column in ("topic", "date")} == {
        "topic": "string", "date": "date",
    }  # fmt: skip
    assert sorted(
        (row.partition, row.offset, row.key, row.value, row.headers, row.date, row.topic)
        for row in rows.collect()
    ) == [
        (0, 0, None, b"", None, date(1970, 1, 1), topic),
        (1, 0, b"k", b"v", [("h", b"1")], date(2013, 7, 1), topic),
        (1, 1, None, None, None, date(2013, 7, 2), topic),
    ]
    assert warehouse.rows("topicId", "timestampType") == [(topic_id, 0)] * 3


def test_each_run_goes_on_where_the_last_one_was(
    new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    topic, other = new_topic(3), new_topic()
    send(topic, range(30), 3, days=2)
    assert warehouse.load(topic, other) == 30
    assert warehouse.load(topic, other) == 0
    send(topic, range(30, 40), 3)
    send(other, range(40, 50))
    assert warehouse.load(topic) == 10
    assert warehouse.load(topic, other) == 10
    assert warehouse.values() == warehouse.plain() == list(range(50))
    assert warehouse.store.state().number == 3


def test_load_of_many_steps_keeps_those_that_were_done(
    new_topic: NewTopic, send: Send, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    send(topic, range(50), 2)
    write, calls = warehouse.job.write, itertools.count()

    def dies_at_the_third(*arguments: Any) -> Any:
        if next(calls) == 2:
            raise Died
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(warehouse.job, "write", dies_at_the_third)
        with pytest.raises(Died):
            warehouse.load(topic, most=20)
    assert len(warehouse.values()) == 32
    assert warehouse.load(topic, most=20) == 18
    assert warehouse.values() == list(range(50))


def test_steps_of_a_plan_make_it_up(job: ModuleType) -> None:
    at = [TopicPartition("t", number) for number in range(3)]
    todo = job.Plan({at[0]: 5, at[1]: 0, at[2]: 7}, {at[0]: 105, at[1]: 1, at[2]: 7}, {"t": ""})
    found = job.steps(todo, 10)
    assert len(found) == 11
    assert found[-1] == todo.ends
    assert found == sorted(found, key=lambda ends: ends[at[0]])
    assert max(b[at[0]] - a[at[0]] for a, b in itertools.pairwise(found)) == 10
    assert job.steps(todo, 1000) == [todo.ends]


def test_empty_topic_is_known_and_its_first_records_come(
    broker: BrokerProcess, new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    topic = new_topic(2)
    assert warehouse.load(topic) == 0
    assert warehouse.rows("topic", "date", "value") == []
    assert warehouse.store.state().topics[topic].next == {0: 0, 1: 0}
    assert warehouse.load(topic) == 0
    assert warehouse.store.state().number == 1
    send(topic, range(3), 2)
    assert warehouse.load(topic) == 3
    with pytest.raises(UnknownTopicOrPartition):
        warehouse.load("no-such-topic")


def test_partitions_that_come_later_are_loaded_from_their_start(
    broker: BrokerProcess, new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    topic = new_topic(1)
    send(topic, range(5))
    assert warehouse.load(topic) == 5
    with Admin(broker.bootstrap) as admin:
        admin.create_partitions(topic, 3)
        until(lambda: len(admin.topic(topic).partitions) == 3, "the partitions are there")
    send(topic, range(5, 15), 3)
    assert warehouse.load(topic, start_ms=T0_MS + DAY_MS) == 10  # nothing is that late
    assert warehouse.values() == list(range(15))


def test_what_no_transaction_committed_is_left_out(
    broker: BrokerProcess, new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    topic = new_topic(1)
    with Producer(broker.bootstrap, transactional_id=f"{topic}-id") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"-1", partition=0)
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"0", partition=0)
        producer.begin_transaction()
        producer.send(topic, b"1", partition=0)
        producer.flush()
        assert warehouse.load(topic) == 1
        producer.commit_transaction()
    until(lambda: warehouse.load(topic) == 1, "the transaction is ended")
    assert warehouse.values() == [0, 1]


def test_what_was_loaded_of_an_open_transaction_is_neither_lost_nor_loaded_again(
    broker: BrokerProcess, new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    topic = new_topic(1)
    send(topic, range(2))
    with Producer(broker.bootstrap, transactional_id=f"{topic}-id") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"2", partition=0)
        producer.flush()
        assert warehouse.load(topic, isolation="read_uncommitted") == 3
        number = warehouse.store.state().number
        # Readers of committed records see the partition's end before it.
        assert warehouse.load(topic) == 0
        assert warehouse.store.state().number == number
        producer.commit_transaction()
    send(topic, range(3, 4))
    until(lambda: warehouse.load(topic) == 1, "the transaction is ended")
    assert warehouse.values() == [0, 1, 2, 3]


def test_records_that_the_log_has_lost_stay_until_it_is_loaded_again(
    spark: Any, job: ModuleType, plane: Plane, tmp_path: Path
) -> None:
    from plog.spark.offsets import DataLoss

    with BrokerProcess(tmp_path) as broker:
        warehouse = Warehouse(spark, broker, job, tmp_path / "warehouse")
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=1, configs={"retention.ms": "-1"})
        until_topic_is_known(broker.bootstrap, "t")

        def send(numbers: range) -> None:
            with Producer(broker.bootstrap) as producer:
                for number in numbers:
                    producer.send("t", b"%d" % number, timestamp_ms=T0_MS)

        log = broker.partition_dir("t-0")
        (segment,) = log.glob("*.log")
        send(range(5))
        size = segment.stat().st_size
        send(range(5, 10))
        assert warehouse.load("t") == 10
        broker.kill()
        (log.parent / "durable-ends").unlink()  # else it would be offline, and say why
        os.truncate(segment, size)
        broker.start()
        with pytest.raises(DataLoss, match="loaded up to offset 10, but now has offsets 0 to 5"):
            warehouse.load("t")
        assert warehouse.load("t", fail_on_data_loss=False) == 0
        assert warehouse.values() == list(range(10))
        send(range(10, 13))
        assert warehouse.load("t") == 3
        assert warehouse.values() == list(range(13))
        assert warehouse.store.state().topics["t"].next == {0: 8}
        assert warehouse.load("t", start_ms=0) == 8
        assert warehouse.values() == [*range(5), *range(10, 13)]


def test_records_that_are_gone_are_told_of(
    broker: BrokerProcess, new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    from plog.spark.offsets import DataLoss

    topic = new_topic(1)
    send(topic, range(5))
    assert warehouse.load(topic) == 5
    send(topic, range(5, 10))
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 7})
    with pytest.raises(DataLoss, match="loaded up to offset 5, but now has offsets 7 to 10"):
        warehouse.load(topic)
    assert warehouse.load(topic, fail_on_data_loss=False) == 3
    assert warehouse.values() == [0, 1, 2, 3, 4, 7, 8, 9]


@pytest.mark.parametrize("path", ["s3a://bucket/warehouse", "gs://bucket/warehouse"])
def test_object_store_is_refused(filesystems: ModuleType, spark: Any, path: str) -> None:
    with pytest.raises(ConfigError, match="use a path on HDFS or a local disk"):
        filesystems.files_at(spark, path)


def test_records_that_go_while_others_are_loaded_are_told_of(
    broker: BrokerProcess,
    new_topic: NewTopic,
    send: Send,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(1)
    send(topic, range(10))
    plan, gone = warehouse.job.plan, 0

    def plan_of_what_goes(*arguments: Any, **options: Any) -> Any:
        planned = plan(*arguments, **options)
        with Admin(broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(topic, 0): gone})
        return planned

    monkeypatch.setattr(warehouse.job, "plan", plan_of_what_goes)
    gone = 3
    with pytest.raises(Exception, match="which has offsets 3 to 10"):
        warehouse.load(topic)
    gone = 7
    assert warehouse.load(topic, start_ms=-1, fail_on_data_loss=False) == 3
    assert warehouse.values() == [7, 8, 9]


@pytest.mark.parametrize(
    ("recreated", "values"), [("keep", [0, 1, 2, 3, 4, 7, 8]), ("replace", [7, 8])]
)
def test_topic_that_was_created_anew_is_told_by_its_id(
    broker: BrokerProcess,
    new_topic: NewTopic,
    send: Send,
    warehouse: Warehouse,
    recreated: str,
    values: list[int],
) -> None:
    topic = new_topic(1)
    send(topic, range(5))
    assert warehouse.load(topic) == 5
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(topic)
        until(lambda: topic not in admin.topics(), "the topic is gone")
        admin.create_topic(topic, partitions=1)
    send(topic, range(7, 9))
    with pytest.raises(warehouse.job.Recreated, match="deleted and recreated"):
        warehouse.load(topic)
    assert warehouse.load(topic, recreated=recreated) == 2
    assert warehouse.values() == values
    assert warehouse.load(topic) == 0
    # The old topic's records are no part of what is loaded again.
    assert warehouse.load(topic, start_ms=T0_MS) == 2
    assert warehouse.values() == values
    assert len(set(warehouse.rows("topicId"))) == (2 if recreated == "keep" else 1)


def test_topic_that_is_created_anew_while_it_is_loaded_is_not(
    broker: BrokerProcess,
    new_topic: NewTopic,
    send: Send,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(1)
    send(topic, range(5))
    write = warehouse.job.write

    def slowly(*arguments: Any) -> Any:
        files = write(*arguments)
        with Admin(broker.bootstrap) as admin:
            admin.delete_topic(topic)
            until(lambda: topic not in admin.topics(), "the topic is gone")
            admin.create_topic(topic, partitions=1)
        return files

    with monkeypatch.context() as patched:
        patched.setattr(warehouse.job, "write", slowly)
        with pytest.raises(warehouse.job.Recreated, match="while it was loaded"):
            warehouse.load(topic)
    assert warehouse.store.state().number == 0
    assert list((warehouse.path / "_loading").iterdir()) == []


# -- loading again ---------------------------------------------------------------------------------


def test_reload_replaces_what_was_loaded_from_a_time_on(
    broker: BrokerProcess, new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    topic, other = new_topic(2), new_topic()
    send(topic, range(20), 2, days=4)
    send(other, range(100, 103))
    assert warehouse.load(topic, other) == 23
    before = warehouse.job.read(warehouse.spark, str(warehouse.path))
    # Of partition 0 that begins at its offset 1 (day 2), of partition 1 at the same (day 3).
    assert warehouse.load(topic, start_ms=T0_MS + 2 * DAY_MS) == 18
    state = warehouse.store.state()
    assert (state.kind, state.topics[topic].next) == ("reload", {0: 10, 1: 10})
    assert warehouse.values() == [*range(20), *range(100, 103)]
    assert len(set(warehouse.rows("topic", "partition", "offset"))) == 23
    # Who had begun to read reads on, as long as files are kept.
    assert before.count() == 23
    assert len(warehouse.plain()) > 23


def test_reload_keeps_what_cannot_be_read_again(
    broker: BrokerProcess, new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    topic = new_topic(1)
    send(topic, range(10))
    assert warehouse.load(topic) == 10
    send(topic, range(10, 12))
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    assert warehouse.load(topic, start_ms=-1) == 8  # before 1970
    assert warehouse.values() == list(range(12))


def test_first_load_from_a_time_has_nothing_before_it(
    new_topic: NewTopic, send: Send, warehouse: Warehouse
) -> None:
    topic = new_topic(1)
    send(topic, range(4), days=4)
    assert warehouse.load(topic, start_ms=T0_MS + 2 * DAY_MS) == 2
    assert warehouse.load(topic) == 0
    assert warehouse.load(topic, start_ms=0) == 4
    assert warehouse.values() == [0, 1, 2, 3]


# -- compaction ------------------------------------------------------------------------------------


def test_compaction_puts_small_files_together(
    spark: Any,
    broker: BrokerProcess,
    job: ModuleType,
    new_topic: NewTopic,
    send: Send,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(2)
    for begin in (0, 12, 24):
        send(topic, range(begin, begin + 12), 2, days=3)
        assert warehouse.load(topic) == 12
    columns = ("topic", "date", "partition", "offset", "key", "value", "timestamp", "topicId")
    rows, before = warehouse.rows(*columns), job.read(spark, str(warehouse.path))
    files = len(warehouse.store.state().files)
    assert warehouse.store.kept() == {}
    share(spark, monkeypatch)
    begun_ms = round(time.time() * 1000)
    told = CliRunner().invoke(job.main, ["--compact", "--path", str(warehouse.path)])
    assert told.exit_code == 0, told.output
    assert re.match(rf"{files} files of .* became 3 of", told.stdout)
    assert warehouse.rows(*columns) == rows
    assert before.count() == 36
    # Who reads without the manifest finds them twice, for a day; it is said until when.
    assert warehouse.plain() == sorted([*range(36), *range(36)])
    kept = warehouse.store.kept()
    assert len(kept) == files
    (until_ms,) = set(kept.values())
    assert 0 <= until_ms - begun_ms - DAY_MS < 600_000
    assert f"until {importlib.import_module('job').utc_text(until_ms)} (UTC)" in told.stdout
    assert f'load_parquet.read(spark, "{warehouse.path}")' in told.stdout
    days = {"2013-07-01", "2013-07-02", "2013-07-03"}
    assert {one.date for one in warehouse.store.state().files} == days
    assert job.compact(spark, warehouse.store).files == 0
    # Loading goes on; some time after, the small files are deleted, and so are their directories.
    send(topic, range(36, 40), 2)
    later = Warehouse(spark, broker, job, warehouse.path, keep_s=0)
    assert later.load(topic) == 4
    assert later.values() == later.plain() == list(range(40))
    assert not list(warehouse.path.glob("load=000001/topic*"))
    assert later.store.state().replaced == {}


def test_bins_are_of_one_topic_and_date_and_not_too_large(
    job: ModuleType, stores: ModuleType
) -> None:
    def some(name: str, topic: str, day: str, size: int) -> Any:
        return stores.File(name, topic, f"id-of-{topic}", day, size, {})

    files = [
        *(some(f"a{n}", "t", "2013-07-01", 40) for n in range(5)),
        *(some(f"b{n}", "t", "2013-07-02", 10) for n in range(3)),
        some("large", "t", "2013-07-02", 75),
        some("alone", "other", "2013-07-02", 1),
    ]
    found = [[one.path for one in some] for some in job.bins(files, 100)]
    assert found == [["a0", "a1"], ["a2", "a3"], ["b0", "b1", "b2"]]


# -- whoever dies ----------------------------------------------------------------------------------


class Died(BaseException):
    """The process is gone."""


class DyingFiles:
    """Files whose process dies at a step: before it is done, or after."""

    def __init__(self, files: Any, step: int, *, done: bool) -> None:
        self.root, self._files = files.root, files
        self._step, self._done, self.count = step, done, 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.count += 1
            if self.count > self._step or (self.count == self._step and not self._done):
                raise Died
            answer = getattr(self._files, name)(*arguments)
            if self.count == self._step:
                raise Died
            return answer

        return call


@pytest.mark.parametrize(
    ("what", "done"),
    [
        # Who dies before a step leaves behind what who dies after the one before it does.
        pytest.param("load", False, marks=pytest.mark.long),
        ("load", True),
        ("compaction", True),
        pytest.param("reload", True, marks=pytest.mark.long),
    ],
)
def test_whoever_dies_at_whichever_step_each_record_is_there_once(
    spark: Any,
    broker: BrokerProcess,
    job: ModuleType,
    new_topic: NewTopic,
    send: Send,
    tmp_path: Path,
    what: str,
    done: bool,
) -> None:
    topic = new_topic(2)
    warehouse = Warehouse(spark, broker, job, tmp_path / "warehouse", keep_s=0)
    alive, sent = warehouse.store.files, 20
    send(topic, range(20), 2)
    warehouse.load(topic)
    send(topic, range(20, 30), 2)
    warehouse.load(topic)
    loaded = sent = 30
    dead_but_done = 0
    for step in itertools.count(1):
        if what == "load":
            send(topic, range(sent, sent + 2), 2)
            sent += 2
        warehouse.store.files = dying = DyingFiles(alive, step, done=done)
        number, died = job.Store(alive).state().number, False
        try:
            if what == "compaction":
                job.compact(spark, warehouse.store)
            else:
                warehouse.load(topic, start_ms=T0_MS if what == "reload" else None)
        except Died:
            died = True
        warehouse.store.files = alive
        # Each run either did nothing or all of it.
        state = warehouse.store.state()
        if state.number > number:
            loaded = sent
            dead_but_done += died
            assert warehouse.values() == list(range(loaded))
        assert sum(one.rows for one in state.files) == loaded
        if not died:
            assert dying.count < step
            break
    assert step > 8
    assert dead_but_done >= done
    warehouse.load(topic)
    assert warehouse.values() == list(range(sent))
    warehouse.store.clean()
    assert warehouse.plain() == list(range(sent))
    assert list((warehouse.path / "_loading").iterdir()) == []


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_each_record_is_there_once_whoever_is_killed(
    broker: BrokerProcess,
    new_topic: NewTopic,
    send: Send,
    warehouse: Warehouse,
    workers_find_plog: dict[str, str],
    tmp_path: Path,
    kills: int,
) -> None:
    """The job with all of its processes, at any moment of a load of many steps."""
    chance, records = random.Random(run_seed()), 400 * (kills + 1)
    topic = new_topic(3, retention_ms=-1)
    send(topic, range(records), 3, days=2)
    command = [
        str(JOBS / "load_parquet.py"), "--bootstrap-server", broker.bootstrap,
        "--path", str(warehouse.path), "--topic", topic, "--step", "100",
    ]  # fmt: skip

    environment = by_itself(workers_find_plog)

    def steps_done() -> int:
        return warehouse.store.state().number

    for _ in range(kills):
        before = steps_done()
        loader = Driver(tmp_path, environment, *command)
        try:
            until(lambda: loader.has_ended or steps_done() > before, "a step", 120)  # noqa: B023
            time.sleep(chance.uniform(0, 0.6))
        finally:
            loader.kill()
        # Whole steps are seen, by who asks for them.
        assert warehouse.store.state().topics[topic].next.keys() == {0, 1, 2}
        assert warehouse.values() == sorted(set(warehouse.values()))
    assert 0 <= warehouse.load(topic) < records
    assert warehouse.values() == list(range(records))


def test_rows_that_are_missing_in_the_files_are_noticed(
    new_topic: NewTopic, send: Send, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.readwriter import DataFrameWriter

    topic = new_topic(1)
    send(topic, range(4), days=2)
    parquet = DataFrameWriter.parquet

    def loses(self: Any, path: str) -> None:
        parquet(self, path)
        shutil.rmtree(next(Path(path.removeprefix("file://")).glob("topic=*/date=2013-07-02")))

    with monkeypatch.context() as patched:
        patched.setattr(DataFrameWriter, "parquet", loses)
        with pytest.raises(warehouse.job.Unfinished, match=r"4 rows .* the files have 2"):
            warehouse.load(topic)
    assert warehouse.load(topic) == 4


# -- the store -------------------------------------------------------------------------------------


@pytest.fixture(params=["local", "hadoop"])
def files(
    request: pytest.FixtureRequest, spark: Any, filesystems: ModuleType, tmp_path: Path
) -> Any:
    root = tmp_path / "a store"
    if request.param == "local":
        return filesystems.LocalFiles(root)
    return filesystems.HadoopFiles(spark, f"file://{root}")


@pytest.fixture
def store(stores: ModuleType, files: Any) -> Any:
    return stores.Store(files)


def step(stores: ModuleType, store: Any, topic: str, end: int, begin: int | None = None) -> Any:
    """Write the files of a step, and return what makes it one."""
    work = store.begin()
    store.files.write(f"{work}/topic={topic}/date=2013-07-01/{end}.parquet", b"rows")
    at = [None if o is None else stores.Position("id", {0: o}) for o in (begin, end)]
    path = f"topic={topic}/date=2013-07-01/{end}.parquet"
    file = stores.File(path, topic, "id", "2013-07-01", 4, {0: stores.Span(0, end - 1, end)})
    before = {} if at[0] is None else {topic: at[0]}
    return work, stores.Change("load", before, {topic: at[1]}, [file])


def test_runs_that_finish_together_come_one_behind_the_other(
    stores: ModuleType, store: Any
) -> None:
    assert store.state() == stores.State()
    runs = [("a", 1), ("b", 2), ("a", 3)]
    one, other, same = (step(stores, store, topic, end) for topic, end in runs)
    store.commit(*one)
    with pytest.raises(stores.Conflict, match="another run has loaded a meanwhile"):
        store.commit(*same)
    state = store.commit(*other)
    assert state == store.state()
    assert [file.path.partition("/")[0] for file in state.files] == ["load=000001", "load=000002"]
    store.commit(*step(stores, store, "a", 5, begin=1))
    assert store.state().topics == {
        "a": stores.Position("id", {0: 5}), "b": stores.Position("id", {0: 2}),
    }  # fmt: skip


def test_name_that_is_taken_is_not_given_again(
    stores: ModuleType, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = step(stores, store, "a", 1), step(stores, store, "b", 2)
    write = store.files.write

    def late(path: str, data: bytes) -> None:
        write(path, data)
        monkeypatch.undo()
        stores.Store(store.files).commit(*one)

    monkeypatch.setattr(store.files, "write", late)
    assert store.commit(*other).number == 2
    assert len(store.state().files) == 2


def test_run_whose_files_were_cleaned_away_does_not_count(stores: ModuleType, store: Any) -> None:
    slow = step(stores, store, "a", 1)
    stores.Store(store.files, keep_s=0).clean()
    with pytest.raises(stores.Conflict, match="took longer than --keep"):
        store.commit(*slow)
    assert store.state() == stores.State()


def test_what_was_replaced_stays_for_some_time(stores: ModuleType, files: Any) -> None:
    now = [1000.0]
    store = stores.Store(files, keep_s=60, clock=lambda: now[0])
    store.commit(*step(stores, store, "a", 1))
    (path,) = (one.path for one in store.state().files)
    work, change = step(stores, store, "a", 2, begin=1)
    store.commit(work, stores.replace(change, drop=[path]))
    now[0] += 59
    store.clean()
    assert files.read(path) == b"rows"
    assert store.kept() == {path: 1_060_000}
    now[0] += 1
    store.clean()
    assert store.kept() == {}
    with pytest.raises(FileNotFoundError):
        files.read(path)
    assert files.names("load=000001") == ["_manifest.json"]
    store.commit(*step(stores, store, "a", 3, begin=2))
    assert store.state().replaced == {}


def test_manifest_of_a_later_version_is_refused(stores: ModuleType, store: Any) -> None:
    store.files.write("load=000001/_manifest.json", b'{"version": 2}')
    with pytest.raises(ValueError, match="version 2; this plog reads version 1"):
        store.state()


# -- as a script -----------------------------------------------------------------------------------


def test_script_loads_what_a_config_file_says(
    broker: BrokerProcess,
    new_topic: NewTopic,
    send: Send,
    warehouse: Warehouse,
    run_script: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    send(topic, range(1200), 2)
    config = configured(
        "load-parquet.toml",
        tmp_path,
        bootstrap_server=f'"{broker.bootstrap}"',
        topic=f'["{topic}"]',
        path=f'"{warehouse.path}"',
    )
    ended = run_script("load_parquet.py", "--config", str(config), "--step", "5000")
    assert ended.returncode == 0, ended.stderr
    assert "Loaded: 1,200 records" in ended.stdout
    assert "until" not in ended.stdout  # nothing was replaced
    rows = [line.split() for line in ended.stdout.splitlines() if line.split()[:1] == [topic]]
    assert rows == [[topic, "0", "0", "600", "600"], [topic, "1", "0", "600", "600"]]
    assert warehouse.values() == list(range(1200))


@pytest.mark.long
def test_all_flights_are_loaded_and_compacted(broker: BrokerProcess, warehouse: Warehouse) -> None:
    events = importlib.import_module("flights_events")
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("all-flights", partitions=6, configs={"retention.ms": "-1"})
    assert events.load(broker.bootstrap, "all-flights", lambda _: None) == events.FLIGHTS
    assert warehouse.load("all-flights", most=200_000) == events.FLIGHTS
    rows = warehouse.job.read(warehouse.spark, str(warehouse.path))
    wanted = {
        carrier: (flights, cancelled)
        for carrier, (flights, cancelled, *_) in events.expected_report().items()
    }

    def report() -> dict[str, tuple[int, int]]:
        flights = rows.selectExpr(
            "get_json_object(cast(value as string), '$.carrier') as carrier",
            "get_json_object(cast(value as string), '$.dep_time') as departed",
        )
        found = flights.groupBy("carrier").agg({"*": "count", "departed": "count"}).collect()
        return {
            row.carrier: (row["count(1)"], row["count(1)"] - row["count(departed)"])
            for row in found
        }

    assert report() == wanted
    done = warehouse.job.compact(warehouse.spark, warehouse.store)
    days = {one.date for one in warehouse.store.state().files}
    assert done.into == len(warehouse.store.state().files) == len(days) == 366  # in UTC
    rows = warehouse.job.read(warehouse.spark, str(warehouse.path))
    assert report() == wanted
    assert rows.where(f"date != date '{datetime(2013, 7, 1, tzinfo=UTC).date()}'").count() > 0
