"""The job that writes the records of a time range into another topic, all of them or none."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from plog.client.consumer import ConsumerRecord
from plog.client.producer import Producer
from plog.errors import ConfigError, UnknownTopicOrPartition
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.spark.activity_jobs import share
from tests.spark.conftest import ROOT
from tests.spark.marks import DEAR
from tests.spark.submitted import JOBS, configured, submit
from tests.spark.test_sink import read

pytestmark = DEAR
HOUR_MS = 3_600_000
T0_MS = 1_372_636_800_000
"""2013-07-01."""
NewTopic = Callable[..., str]


@pytest.fixture(scope="module")
def job(plane: Plane) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(JOBS)
        yield importlib.import_module("replay")


@pytest.fixture
def source(broker: BrokerProcess, new_topic: NewTopic) -> str:
    """A topic of two partitions, each with 24 records an hour apart, and a late one at the end."""
    topic = new_topic(2)
    with Producer(broker.bootstrap) as producer:
        for partition in range(2):
            for hour in [*range(24), 5]:
                producer.send(
                    topic, b"%d" % hour, key=b"key %d" % partition, partition=partition,
                    timestamp_ms=T0_MS + hour * HOUR_MS, headers=[("p", b"%d" % partition)],
                )  # fmt: skip
    return topic


def by_key(records: list[ConsumerRecord]) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record.value)
    return found


def wanted(job: ModuleType, broker: BrokerProcess, topic: str, **more: Any) -> Any:
    return job.Range(broker.bootstrap, topic, **more)


def test_time_range_is_written_with_keys_and_headers_in_its_order(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic, source: str, job: ModuleType
) -> None:
    target = new_topic(3)
    some = wanted(job, broker, source, start_ms=T0_MS + 3 * HOUR_MS, end_ms=T0_MS + 10 * HOUR_MS)
    counted = job.replay(spark, some, target, time_header="at")
    assert [tuple(one) for one in counted] == [
        (partition, 8, 3, 24, "2013-07-01 03:00:00", "2013-07-01 09:00:00")
        for partition in range(2)
    ]
    records = read(broker, target)
    hours = [3, 4, 5, 6, 7, 8, 9, 5]
    assert by_key(records) == {b"key %d" % p: [b"%d" % hour for hour in hours] for p in range(2)}
    for record in records:
        hour = int(record.value or b"")
        at = b"%d" % (T0_MS + hour * HOUR_MS)
        assert record.key is not None
        assert record.headers == (("p", record.key[-1:]), ("at", at))


def test_partition_that_is_read_by_many_tasks_is_written_in_its_order(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic, job: ModuleType
) -> None:
    """Of any keys, values and headers, none too."""
    source, target = new_topic(), new_topic()
    # Two tasks read half each; that of the second half would be done long before the other.
    sent: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
        (b"large", b"v" * 500_000, (("n", b"%d" % n),)) for n in range(10)
    ]
    for n in range(10):
        key, value = None if n % 2 else b"%d" % n, None if n % 3 else b""
        sent.append((key, value, ((f"h{n}", None if n % 4 else b""),) if n % 5 else ()))
    with Producer(broker.bootstrap) as producer:
        for key, value, headers in sent:
            producer.send(source, value, key=key, headers=headers)
    # The producer puts records without keys elsewhere, and behind others, where it may choose.
    counted = job.replay(spark, wanted(job, broker, source), target, keep_partitions=True)
    assert [one.records for one in counted] == [20]
    assert [(one.key, one.value, one.headers) for one in read(broker, target)] == sent


def test_range_that_an_open_transaction_cuts_is_refused(
    spark: Any,
    broker: BrokerProcess,
    new_topic: NewTopic,
    job: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "WAIT_S", 0.0)
    source, target = new_topic(2), new_topic()
    at = {"partition": 1}
    with (
        Producer(broker.bootstrap, transactional_id=f"{source}-id") as open_yet,
        Producer(broker.bootstrap) as producer,
    ):
        open_yet.init_transactions()
        open_yet.begin_transaction()
        producer.send(source, b"first", timestamp_ms=T0_MS, **at)
        producer.flush()
        open_yet.send(source, b"open", timestamp_ms=T0_MS + 2 * HOUR_MS, **at)
        open_yet.flush()
        producer.send(source, b"last", timestamp_ms=T0_MS + 3 * HOUR_MS, **at)
        producer.flush()
        for hours in (None, (0, 4), (1, 4), (3, 4)):
            start_ms, end_ms = (
                (None, None) if hours is None else (T0_MS + hour * HOUR_MS for hour in hours)
            )
            some = wanted(job, broker, source, start_ms=start_ms, end_ms=end_ms)
            words = f"offsets {2 if hours == (3, 4) else 1} to 2 of {source}-1 wait for the end of"
            with pytest.raises(ConfigError, match=words) as fault:
                job.replay(spark, some, target, confirm=lambda _: pytest.fail("asked"))
        for way_out in ("plog transactions", "--until", "--isolation-level=read_uncommitted"):
            assert way_out in str(fault.value)

        def values(**more: Any) -> list[bytes | None]:
            topic = new_topic()
            job.replay(spark, wanted(job, broker, source, **more), topic)
            return [one.value for one in read(broker, topic)]

        # What waits is not asked for.
        assert values(end_ms=T0_MS + 2 * HOUR_MS) == [b"first"]
        assert values(start_ms=T0_MS + 4 * HOUR_MS) == []
        assert values(condition="partition = 0") == []
        assert values(isolation_level="read_uncommitted") == [b"first", b"open", b"last"]
        # It may end within the time that is waited.
        monkeypatch.setattr(job, "WAIT_S", 30.0)
        ends = threading.Timer(2.0, open_yet.commit_transaction)
        ends.start()
        assert values() == [b"first", b"open", b"last"]
        ends.join()


def test_filter_takes_some_and_select_makes_others_of_them(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic, source: str, job: ModuleType
) -> None:
    target = new_topic(2)
    some = wanted(job, broker, source, condition="partition = 1 AND cast(value AS string) > '8'")
    select = ["concat('again ', cast(value AS string)) AS value"]
    job.replay(spark, some, target, select=select, keep_partitions=True)
    assert [(one.partition, one.key, one.value) for one in read(broker, target)] == [
        (1, None, b"again 9")
    ]


def test_records_that_come_after_the_count_are_left_out(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic, source: str, job: ModuleType
) -> None:
    target = new_topic()

    def meanwhile(counted: list[Any]) -> bool:
        assert sum(one.records for one in counted) == 50
        with Producer(broker.bootstrap) as producer:
            producer.send(source, b"later", partition=0)
        return True

    job.replay(spark, wanted(job, broker, source), target, confirm=meanwhile)
    assert len(read(broker, target)) == 50


def test_nothing_is_written_that_is_not_confirmed(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic, source: str, job: ModuleType
) -> None:
    target = new_topic()
    counted = job.replay(spark, wanted(job, broker, source), target, confirm=lambda counted: False)
    assert [one.records for one in counted] == [25, 25]
    assert read(broker, target) == []


def test_run_that_fails_leaves_nothing_and_the_next_one_writes_all(
    spark: Any, broker: BrokerProcess, new_topic: NewTopic, source: str, job: ModuleType
) -> None:
    target = new_topic()
    # The last of all records fails, when its task has written the others.
    fails = "if(partition = 1 AND offset = 24, raise_error('not this one'), value)"
    with pytest.raises(Exception, match="not this one"):
        job.replay(
            spark, wanted(job, broker, source), target, select=[f"cast({fails} AS binary) AS value"]
        )
    assert read(broker, target) == []
    job.replay(spark, wanted(job, broker, source), target)
    assert len(read(broker, target)) == 50


@pytest.mark.parametrize("start_ms", [None, T0_MS])
def test_topic_without_records_of_that_time_is_not_asked_about(
    spark: Any,
    broker: BrokerProcess,
    new_topic: NewTopic,
    job: ModuleType,
    start_ms: int | None,
) -> None:
    empty, target = new_topic(2), new_topic()
    some = wanted(job, broker, empty, start_ms=start_ms)
    assert job.replay(spark, some, target, confirm=lambda _: pytest.fail("asked")) == []


def test_what_cannot_be_written_is_said_before_it_is_counted(
    spark: Any,
    broker: BrokerProcess,
    new_topic: NewTopic,
    source: str,
    job: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = new_topic(1)
    monkeypatch.setattr(job, "count", lambda _: pytest.fail("counted"))
    some = wanted(job, broker, source)
    with pytest.raises(ConfigError, match="cannot be replayed into itself"):
        job.replay(spark, some, source)
    with pytest.raises(ConfigError, match=r"has 2 partitions, but .* only 1"):
        job.replay(spark, some, target, keep_partitions=True)
    with pytest.raises(ConfigError, match="unknown column offset"):
        job.replay(spark, some, target, select=["value", "offset"])
    with pytest.raises(ConfigError, match=r"--time-header.* a column headers, which --select"):
        job.replay(spark, some, target, select=["key", "value"], time_header="at")
    with pytest.raises(UnknownTopicOrPartition, match="plog topics create no-such-topic"):
        job.replay(spark, some, "no-such-topic")


@pytest.mark.parametrize(
    ("timeout", "words"),
    [
        ("1ms", "took longer than --transaction-timeout=1ms"),
        ("16m", "--transaction-timeout=16m is above the brokers' transaction.max.timeout.ms"),
    ],
)
def test_transaction_that_is_open_for_too_long_is_said_with_the_option_for_it(
    spark: Any,
    broker: BrokerProcess,
    new_topic: NewTopic,
    source: str,
    job: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    timeout: str,
    words: str,
) -> None:
    target = new_topic()
    share(spark, monkeypatch)

    def run(*arguments: str) -> Result:
        given = ["--bootstrap-server", broker.bootstrap, "--topic", source, "--to", target, "--yes"]
        return CliRunner().invoke(job.main, [*given, *arguments], catch_exceptions=False)

    done = run("--transaction-timeout", timeout)
    assert (done.exit_code, done.stderr.count("Error: ")) == (1, 1), done.output
    assert words in done.stderr
    assert read(broker, target) == []
    assert run("--transaction-timeout", "15m").exit_code == 0
    assert len(read(broker, target)) == 50


def test_example_of_a_config_file_is_read(job: ModuleType) -> None:
    given = ["--config", str(ROOT / "config" / "replay.toml")]
    with job.main.make_context("job", given) as example:
        read_by = dict(example.params)
    with job.main.make_context("job", ["--topic", "flights", "--to", "flights-again"]) as plain:
        defaults = dict(plain.params)
    written = {
        "start_ms": T0_MS,
        "end_ms": T0_MS + 31 * 24 * HOUR_MS,
        "condition": "get_json_object(cast(value AS string), '$.carrier') = 'UA'",
        "time_header": "replayed-timestamp",
    }
    assert read_by == defaults | written


@pytest.mark.long
def test_spark_submit_asks_before_it_writes(
    broker: BrokerProcess,
    new_topic: NewTopic,
    source: str,
    workers_find_plog: dict[str, str],
    tmp_path: Path,
) -> None:
    target = new_topic(2)
    config = configured(
        "replay.toml",
        tmp_path,
        bootstrap_server=f'"{broker.bootstrap}"',
        topic=f'"{source}"',
        to=f'"{target}"',
    )

    def run(*arguments: str) -> str:
        ended = submit(workers_find_plog, "replay.py", "--config", str(config), *arguments)
        assert ended.returncode == (1 if "nonsense" in arguments else 0), ended.stderr
        return ended.stdout + ended.stderr

    everything = ("--filter", "true")
    assert "Nothing written. Pass --yes" in run(*everything)
    assert read(broker, target) == []
    assert f"50 records written to {target}" in run(*everything, "--yes")
    assert len(read(broker, target)) == 50
    assert "No records in this range" in run("--until", "2013-07-01")
    said = run("--filter", "nonsense")
    assert "Error: [UNRESOLVED_COLUMN" in said
    assert "Traceback" not in said
