"""Streams against a real broker, the reader called as Spark calls it, but without a JVM."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from plog.client.admin import Admin
from plog.client.connection import Connection
from plog.client.group_admin import GroupAdmin
from plog.client.metadata import PartitionInfo
from plog.client.producer import Producer
from plog.errors import (
    KafkaError,
    NetworkException,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from plog.spark import offsets, stream_source
from plog.spark.arrow import FULL_SCHEMA
from plog.spark.decision_log import CONFIGS, PARTITIONS
from plog.spark.offsets import DataLoss
from plog.spark.options import parse
from plog.spark.sink_options import DECISIONS_TOPIC
from plog.spark.source import PlogDataSource
from plog.spark.stream_source import IDLE_WAIT_S, PlogStreamReader
from plog.spark.topic_watch import TopicWatch
from plog.types import TopicPartition
from tests.servers import BrokerProcess
from tests.spark.test_source import T0_MS, create_again, fill
from tests.waiting import until

ONCE = ReadAllAvailable()


class Run:
    """One run of a query, batch after batch, on a checkpoint that later runs go on from."""

    def __init__(self, broker: BrokerProcess, checkpoint: list[dict], **options) -> None:
        given = {key.replace("__", "."): str(value) for key, value in options.items()}
        given = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "startingOffsets": "earliest",
            **given,
        }
        self.reader = PlogStreamReader(parse(given, streaming=True), FULL_SCHEMA)
        self.checkpoint = checkpoint
        self.limit = self.reader.getDefaultReadLimit()

    @property
    def start(self) -> dict:
        if not self.checkpoint:
            self.checkpoint.append(self.reader.initialOffset())
        return self.checkpoint[-1]

    def plan(self, limit=None) -> dict:
        end = self.reader.latestOffset(self.start, limit or self.limit)
        assert json.dumps(end) == json.dumps(end, sort_keys=True)
        return end

    def read(self, start: dict, end: dict) -> dict[int, list[int]]:
        """Return the offsets of each partition, read by tasks that made a journey."""
        found: dict[int, list[int]] = {}
        fresh = PlogStreamReader(self.reader.options, FULL_SCHEMA)
        for task in self.reader.partitions(start, end):
            there, wanted = pickle.loads(pickle.dumps((fresh, task)))
            for batch in there.read(wanted):
                batch.validate(full=True)
                for row in batch.to_pylist():
                    found.setdefault(row["partition"], []).append(row["offset"])
        return {partition: sorted(found[partition]) for partition in sorted(found)}

    def batch(self, limit=None) -> dict[int, list[int]]:
        start = self.start
        end = self.plan(limit)
        if end == start:
            return {}
        found = self.read(start, end)
        self.checkpoint.append(end)
        return found

    def batch_of_something(self) -> dict[int, list[int]]:
        deadline = time.monotonic() + 60
        while not (found := self.batch()):
            assert time.monotonic() < deadline
        return found


@contextmanager
def counted(monkeypatch) -> Iterator[list[str]]:
    """Count the requests of this process."""
    sent: list[str] = []
    send = Connection.send

    def note(self, request, *rest, **named):
        sent.append(type(request).__name__)
        return send(self, request, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send", note)
        yield sent


# -- limits and triggers


def test_limit_is_shared_out_and_the_rest_follows(broker, new_topic):
    topic = new_topic(partitions=3)
    fill(broker, topic, {0: 100, 1: 50, 2: 50})
    run = Run(broker, [], subscribe=topic, maxOffsetsPerTrigger=70)
    assert run.limit == ReadMaxRows(70)
    assert run.batch() == {0: list(range(35)), 1: list(range(18)), 2: list(range(17))}
    assert [sum(map(len, run.batch().values())) for _ in range(3)] == [70, 60, 0]


def test_once_reads_all_there_is_whatever_the_limit(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 100})
    run = Run(broker, [], subscribe=topic, maxOffsetsPerTrigger=7, minOffsetsPerTrigger=5)
    assert run.batch(ONCE) == {0: list(range(100))}
    started = time.monotonic()
    assert run.batch(ONCE) == {}
    assert time.monotonic() - started < IDLE_WAIT_S  # does not wait for more


def test_available_now_ends_where_it_began(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 100})
    run = Run(broker, [], subscribe=topic, maxOffsetsPerTrigger=60, minOffsetsPerTrigger=50)
    run.reader.prepareForTriggerAvailableNow()
    assert run.batch() == {0: list(range(60))}
    fill(broker, topic, {0: 100})
    with Admin(broker.bootstrap) as admin:
        admin.create_partitions(topic, 2)
    assert run.batch() == {0: list(range(60, 100))}
    started = time.monotonic()
    assert run.batch() == {}
    assert time.monotonic() - started < IDLE_WAIT_S
    again = Run(broker, run.checkpoint, subscribe=topic)
    again.reader.prepareForTriggerAvailableNow()
    assert again.batch() == {0: list(range(100, 200))}


def test_available_now_waits_for_a_topic_that_is_not_known_yet(broker, new_topic, monkeypatch):
    """As of a broker that has just started; a run that read nothing would end well."""
    topic = new_topic()
    fill(broker, topic, {0: 3})
    run = Run(broker, [{topic: {"0": 1}}], subscribe=topic)
    look, looks = TopicWatch.look, itertools.count()

    def forgetful(self, *age):
        look(self, *age)
        if next(looks) < 2:
            self.found = []

    monkeypatch.setattr(TopicWatch, "look", forgetful)
    run.reader.prepareForTriggerAvailableNow()
    assert next(looks) > 2
    assert run.batch() == {0: [1, 2]}


def test_available_now_from_the_latest_offset_reads_nothing_and_remembers_it(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 10})
    run = Run(broker, [], subscribe=topic, startingOffsets="latest")
    run.reader.prepareForTriggerAvailableNow()
    fill(broker, topic, {0: 3})
    assert run.batch() == {}
    assert run.checkpoint == [{topic: {"0": 13}}]


def test_small_batches_are_held_back_until_enough_or_late(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 3})
    options = {"minOffsetsPerTrigger": 10, "maxTriggerDelay": "1500ms"}
    run = Run(broker, [], subscribe=topic, **options)
    assert run.limit == ReadMinRows(10)
    first = time.monotonic()
    assert run.batch() == {0: [0, 1, 2]}  # the first one is let go, as in Spark
    fill(broker, topic, {0: 4})
    assert run.batch() == {}
    assert run.batch_of_something() == {0: [3, 4, 5, 6]}
    assert time.monotonic() - first > 1.3
    fill(broker, topic, {0: 12})
    second = time.monotonic()
    assert run.batch_of_something() == {0: list(range(7, 19))}
    assert time.monotonic() - second < 1.4


# -- idle


def test_idle_stream_asks_little_and_wakes_at_once(broker, new_topic, monkeypatch):
    topic = new_topic(partitions=20)
    fill(broker, topic, {0: 1})
    run = Run(broker, [], subscribe=topic)
    monkeypatch.setattr(stream_source, "POLLING_GAP_S", 60)  # on a busy machine too
    assert run.batch() == {0: [0]}
    assert run.batch() == {}
    with counted(monkeypatch) as sent:
        started = time.monotonic()
        calls = 0
        while time.monotonic() - started < 3:
            assert run.batch() == {}
            calls += 1
    # For each half second a fetch that waits, and for each second a look at the topics; the time
    # that is over may be more than 3 s on a busy machine, but not the calls.
    assert sent.count("FetchRequest") <= calls + 1
    assert sent.count("MetadataRequest") <= calls / 2 + 2
    assert {*sent} <= {"FetchRequest", "MetadataRequest", "ApiVersionsRequest"}
    assert calls <= 7

    def produce() -> None:
        time.sleep(0.1)
        fill(broker, topic, {7: 1})

    producing = threading.Thread(target=produce)
    producing.start()
    assert run.batch_of_something() == {7: [0]}
    producing.join()


def test_idle_stream_does_not_hold_up_another(broker, new_topic, monkeypatch):
    topic = new_topic()
    run = Run(broker, [], subscribe=topic)
    monkeypatch.setattr(stream_source, "POLLING_GAP_S", 0)
    assert run.batch() == {}
    with counted(monkeypatch) as sent:
        for _ in range(10):  # a batch of the other one is between them
            assert run.batch() == {}
    assert "FetchRequest" not in sent
    assert sent.count("ListOffsetsRequest") == 10
    fill(broker, topic, {0: 1})
    assert run.batch() == {0: [0]}


def test_stream_that_waits_for_enough_does_not_hold_up_another(broker, new_topic, monkeypatch):
    topic = new_topic()
    fill(broker, topic, {0: 1})
    run = Run(broker, [], subscribe=topic, minOffsetsPerTrigger=10)
    assert run.batch() == {0: [0]}
    fill(broker, topic, {0: 1})
    slept: list[float] = []
    monkeypatch.setattr(stream_source.time, "sleep", slept.append)
    monkeypatch.setattr(stream_source, "POLLING_GAP_S", 0)
    for _ in range(3):  # a batch of the other one is between them
        assert run.batch() == {}
    assert slept == []
    monkeypatch.setattr(stream_source, "POLLING_GAP_S", 60)
    assert run.batch() == {}
    assert slept


def test_fetches_wait_at_every_leader_and_stay_there(broker, new_topic, monkeypatch):
    topic = new_topic(partitions=3)
    run = Run(broker, [], subscribe=topic)
    watch = run.reader.watch
    watch.look()
    # One broker stands for three, one for each partition.
    cluster = watch._cluster
    node_id, open_ = next(iter(cluster.nodes)), cluster.open
    monkeypatch.setattr(
        cluster, "leader", lambda at: PartitionInfo(10 + at.partition, 0, [], [], 0)
    )
    monkeypatch.setattr(cluster, "open", lambda _: open_(node_id))
    at = {TopicPartition(topic, index): 0 for index in range(3)}
    with counted(monkeypatch) as sent:
        assert not watch.wait(at, 0.3)
        assert sent.count("FetchRequest") <= 6
    fill(broker, topic, {1: 1})
    until(lambda: watch.wait(at, 0.3))
    assert watch.wait(at, 0.3)  # as long as nobody goes on from there
    at[TopicPartition(topic, 1)] = 1
    # What was asked from before is no news any more.
    until(lambda: not watch.wait(at, 0.3))
    filling = threading.Timer(0.1, fill, (broker, topic, {2: 1}))
    filling.start()
    until(lambda: watch.wait(at, 30))
    filling.join()
    watch.start_over()
    assert watch.wait(at, 30)


def test_reader_is_pickled_only_before_it_has_connections():
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    reader = PlogDataSource(options).streamReader(FULL_SCHEMA)
    assert isinstance(pickle.loads(pickle.dumps(reader)), PlogStreamReader)
    reader.stop()


# -- where it begins


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, {"0": 0, "1": 0}),
        ({"startingOffsets": "latest"}, {"0": 10, "1": 5}),
        ({"startingOffsets": '{"TOPIC": {"0": 3, "1": -1}}'}, {"0": 3, "1": 5}),
        ({"startingOffsets": '{"TOPIC": {"0": -2, "1": -1}}'}, {"0": 0, "1": 5}),
        ({"startingTimestamp": T0_MS + 4}, {"0": 4, "1": 4}),
        (
            {"startingTimestamp": T0_MS + 7, "startingOffsetsByTimestampStrategy": "latest"},
            {"0": 7, "1": 5},
        ),
        (
            {"startingOffsetsByTimestamp": f'{{"TOPIC": {{"0": {T0_MS + 2}, "1": {T0_MS}}}}}'},
            {"0": 2, "1": 0},
        ),
    ],
)
def test_stream_begins_where_the_options_say(broker, new_topic, options, expected):
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 10, 1: 5})
    given = {key: str(value).replace("TOPIC", topic) for key, value in options.items()}
    assert Run(broker, [], subscribe=topic, **given).start == {topic: expected}


def test_first_batch_from_the_latest_offset_that_is_repeated_loses_nothing(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 10})
    run = Run(broker, [], subscribe=topic, startingOffsets="latest")
    start = run.start
    fill(broker, topic, {0: 5})
    first = run.plan()
    assert first == start == {topic: {"0": 10}}  # written down; and now the driver is killed
    again = Run(broker, [], subscribe=topic, startingOffsets="latest")
    assert again.start == {topic: {"0": 15}}
    assert again.read(again.start, first) == {}
    again.checkpoint.append(first)
    assert again.batch() == {0: [10, 11, 12, 13, 14]}


def test_partition_that_comes_before_the_first_batch_joins_behind_it(broker, new_topic):
    topic = new_topic()
    run = Run(broker, [], subscribe=topic, startingOffsets="latest")
    start = run.start
    with Admin(broker.bootstrap) as admin:
        admin.create_partitions(topic, 2)
    fill(broker, topic, {1: 5})
    first = run.plan()
    assert first == start == {topic: {"0": 0}}  # written down; and now the driver is killed
    again = Run(broker, [], subscribe=topic, startingOffsets="latest")
    assert again.read(again.start, first) == {}
    again.checkpoint.append(first)
    assert again.batch_of_something() == {1: [0, 1, 2, 3, 4]}


def test_second_batch_reads_what_came_during_the_first(broker, new_topic):
    """Spark asks for the initial offset twice: when it plans the first batch, and when it runs."""
    topic = new_topic()
    fill(broker, topic, {0: 10})
    run = Run(broker, [], subscribe=topic, startingOffsets="latest")
    first = run.plan()
    fill(broker, topic, {0: 5})
    assert run.reader.initialOffset() == run.start == first
    assert run.read(run.start, first) == {}
    run.checkpoint.append(first)
    assert run.plan() == {topic: {"0": 15}}


def test_batch_behind_a_first_one_that_is_repeated_reads_what_came_since(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 10})
    run = Run(broker, [], subscribe=topic, startingOffsets="latest")
    first = run.plan()  # written down; and now the driver is killed
    again = Run(broker, [], subscribe=topic, startingOffsets="latest")
    assert again.read(again.start, first) == {}
    again.checkpoint.append(first)
    fill(broker, topic, {0: 5})
    assert again.plan() == {topic: {"0": 15}}


@pytest.mark.parametrize("strict", [True, False])
def test_start_that_is_not_there_yet(broker, new_topic, caplog, strict):
    topic = new_topic()
    fill(broker, topic, {0: 5})
    offsets = json.dumps({topic: {"0": 6}})
    run = Run(broker, [], subscribe=topic, startingOffsets=offsets, failOnDataLoss=strict)
    if strict:
        with pytest.raises(
            OffsetOutOfRange,
            match=f"startingOffsets=6 is out of range for {topic}-0, which has offsets 0 to 5",
        ):
            run.reader.initialOffset()
        return
    assert run.batch() == {}
    fill(broker, topic, {0: 3})
    assert run.batch_of_something() == {0: [5, 6, 7]}
    assert "ends at offset 5" in caplog.text


def test_start_behind_an_open_transaction_is_there(broker, new_topic):
    topic = new_topic()
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"v").result()
        options = {"kafka__isolation__level": "read_committed"}
        offsets = json.dumps({topic: {"0": 1}})
        run = Run(broker, [], subscribe=topic, startingOffsets=offsets, **options)
        assert run.batch() == {}
        assert run.start == {topic: {"0": 1}}
        producer.abort_transaction()


@pytest.mark.parametrize("late", [{}, {0: 1}])
def test_strategy_leaves_alone_where_a_time_was_found(broker, new_topic, late):
    """The first batch reads nothing of those partitions alone that had no later record."""
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 10, 1: 5})
    options = {"startingTimestamp": T0_MS + 7, "startingOffsetsByTimestampStrategy": "latest"}
    run = Run(broker, [], subscribe=topic, **options)
    assert run.start == {topic: {"0": 7, "1": 5}}
    fill(broker, topic, {**late, 1: 1})
    assert run.batch(ONCE) == {0: list(range(7, 10 + len(late)))}
    assert run.batch(ONCE) == {1: [5]}


def test_wrong_topic_is_told_before_anything_begins(broker):
    run = Run(broker, [], subscribe="no-such", fetchOffset__retryIntervalMs=0)
    with pytest.raises(UnknownTopicOrPartition, match="no-such"):
        run.reader.initialOffset()


@pytest.mark.parametrize(
    ("subscribed", "said"),
    [("no-b", "topic 'no-b' does not exist"), ("no-b,no-a", "topics 'no-a', 'no-b' do not exist")],
)
def test_missing_topics_are_named(broker, subscribed, said):
    run = Run(broker, [], subscribe=subscribed)
    run.reader.watch.look()
    with pytest.raises(UnknownTopicOrPartition, match=f"^{said}$"):
        run.reader.watch.require_topics()


def test_checkpoint_of_another_order_of_keys_goes_on(broker, new_topic):
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 3, 1: 4})
    run = Run(broker, [{topic: {"1": 2, "0": 1}}], subscribe=topic)
    assert run.batch() == {0: [1, 2], 1: [2, 3]}


# -- the same batch again


def test_batch_that_is_repeated_has_the_same_tasks(broker, new_topic):
    topic = new_topic(partitions=5)
    fill(broker, topic, {0: 100, 3: 40, 4: 1})
    run = Run(broker, [], subscribe=topic, maxOffsetsPerTrigger=77, minPartitions=4)
    start, end = run.start, run.plan()
    tasks = [task.ranges for task in run.reader.partitions(start, end)]
    assert len(tasks) == 4
    fill(broker, topic, {1: 50})
    again = Run(broker, [], subscribe=topic, maxOffsetsPerTrigger=77, minPartitions=4)
    assert [task.ranges for task in again.reader.partitions(start, end)] == tasks


# -- growth


def test_new_partitions_and_topics_join_at_their_start_under_the_limit(broker, new_topic):
    topic = new_topic(prefix="joins-")
    fill(broker, topic, {0: 5})
    run = Run(broker, [], subscribePattern="joins-", maxOffsetsPerTrigger=10)
    assert run.batch() == {0: [0, 1, 2, 3, 4]}
    with Admin(broker.bootstrap) as admin:
        admin.create_partitions(topic, 2)
    other = new_topic(prefix="joins-")
    fill(broker, topic, {1: 8})
    fill(broker, other, {0: 8})
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(other, 0): 2})
    batches = []
    until(
        lambda: (
            batches.append(run.batch()) or run.start == {topic: {"0": 5, "1": 8}, other: {"0": 8}}
        )
    )
    assert all(sum(map(len, batch.values())) <= 10 for batch in batches)
    assert sum(len(offsets) for batch in batches for offsets in batch.values()) == 8 + 6


@pytest.mark.parametrize("streaming", [True, False])
def test_pattern_finds_no_topic_that_is_not_the_users(broker, new_topic, streaming):
    """Each batch of a sink writes a decision, which would be news for its own source."""
    topic = new_topic(prefix="finds-")
    fill(broker, topic, {0: 1})
    with GroupAdmin(broker.bootstrap) as groups:
        groups.commit("finds", {TopicPartition(topic, 0): 1})
    with Admin(broker.bootstrap) as admin:
        if DECISIONS_TOPIC not in admin.topics():
            admin.create_topic(DECISIONS_TOPIC, partitions=PARTITIONS, configs=CONFIGS)
        admin.create_topic(f"{DECISIONS_TOPIC}-of-{topic}", partitions=1)
        assert "__consumer_offsets" in admin.topics()
    options = parse(
        {"kafka.bootstrap.servers": broker.bootstrap, "subscribePattern": f"^({topic}$|__)"},
        streaming=streaming,
    )
    with offsets.open_cluster(options) as cluster:
        found = offsets.existing_partitions(cluster, options)
    assert {partition.topic for partition in found} == {topic}


# -- loss


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(stream_source, "UNKNOWN_TOPIC_GRACE_S", 0.3)


@pytest.mark.parametrize("trigger", [None, ONCE])
def test_deleted_topic(broker, new_topic, impatient, caplog, trigger):
    topic, other = new_topic(), new_topic()
    fill(broker, topic, {0: 3})
    fill(broker, other, {0: 3})
    strict = Run(broker, [], subscribe=f"{topic},{other}")
    strict.batch()
    lenient = Run(
        broker, list(strict.checkpoint), subscribe=f"{topic},{other}", failOnDataLoss=False
    )
    lenient.batch(trigger)
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(topic)
    fill(broker, other, {0: 1})

    def loses(run: Run) -> bool:
        run.batch(trigger)
        return topic not in run.start

    with pytest.raises(
        DataLoss, match=f"{topic}-0 is gone.*up to offset 3: its topic was deleted.*"
    ):
        until(lambda: loses(strict))
    until(lambda: loses(lenient))
    assert lenient.start == {other: {"0": 4}}
    assert f"{topic}-0 is gone" in caplog.text
    with Admin(broker.bootstrap) as admin:
        create_again(admin, topic)
    fill(broker, topic, {0: 2})
    found: list[dict] = []
    until(lambda: found.append(lenient.batch(trigger)) or found[-1] == {0: [0, 1]})


@pytest.mark.usefixtures("impatient")
def test_topic_that_was_missed_before_and_after_an_outage_is_not_deleted(
    broker, new_topic, monkeypatch, caplog
):
    """Between two glances it may have been there: only one that stays missing is gone."""
    topic = new_topic()
    fill(broker, topic, {0: 3})
    run = Run(broker, [], subscribe=topic, failOnDataLoss=False)
    assert run.batch() == {0: [0, 1, 2]}
    there = offsets.existing_partitions
    glances: list[object] = [[], NetworkException("away"), NetworkException("away"), [], None]

    def stale(*given):
        glance = glances.pop(0) if len(glances) > 1 else None
        if isinstance(glance, Exception):
            time.sleep(0.2)
            raise glance
        return there(*given) if glance is None else glance

    monkeypatch.setattr(offsets, "existing_partitions", stale)
    while len(glances) > 1:
        run.reader.watch.start_over()
        assert run.batch() == {}
    run.reader.watch.start_over()
    fill(broker, topic, {0: 2})
    assert run.batch_of_something() == {0: [3, 4]}
    assert "is gone" not in caplog.text


@pytest.mark.parametrize("trigger", [None, ONCE])
@pytest.mark.usefixtures("impatient")
def test_topic_that_is_unknown_for_a_moment_after_an_outage(
    broker, new_topic, monkeypatch, trigger
):
    """A broker that comes back may not know its topics at once, however long it was away."""
    topic = new_topic()
    fill(broker, topic, {0: 3})
    run = Run(broker, [], subscribe=topic)
    assert run.batch() == {0: [0, 1, 2]}
    fill(broker, topic, {0: 2})
    ends, faults = TopicWatch.ends, [NetworkException("away")] * 2
    faults.append(UnknownTopicOrPartition("not yet"))

    def failing(self, partitions):
        if faults:
            time.sleep(0.7)
            raise faults.pop(0)
        return ends(self, partitions)

    monkeypatch.setattr(TopicWatch, "ends", failing)
    until(lambda: run.batch(trigger) == {0: [3, 4]})
    assert not faults


def test_topic_that_is_not_asked_for_any_more(broker, new_topic, caplog):
    topic, other = new_topic(), new_topic()
    fill(broker, topic, {0: 3})
    both = Run(broker, [], subscribe=f"{topic},{other}")
    both.batch()
    start, end = both.checkpoint
    fill(broker, other, {0: 2})
    strict = Run(broker, [end], subscribe=other)
    with pytest.raises(
        DataLoss, match=f"{topic}-0.*up to offset 3: subscribe, .* no longer includes it"
    ):
        strict.batch()
    with pytest.raises(
        DataLoss, match=f"{topic}-0 cannot be read.*: subscribe, .* no longer includes it"
    ):
        strict.read(start, end)
    lenient = Run(broker, [end], subscribe=other, failOnDataLoss=False)
    assert lenient.batch() == {0: [0, 1]}
    assert lenient.start == {other: {"0": 2}}
    assert "no longer includes it" in caplog.text


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("planned", [False, True])
def test_topic_of_many_partitions_is_deleted(broker, new_topic, caplog, planned):
    """All of them are waited for at once, before a batch and for one that is planned."""
    topic, other = new_topic(partitions=12), new_topic()
    fill(broker, topic, dict.fromkeys(range(12), 2))
    run = Run(broker, [], subscribe=f"{topic},{other}", failOnDataLoss=False)
    start, end = run.start, run.plan()
    if not planned:
        run.checkpoint.append(end)
    fill(broker, other, {0: 1})
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(topic)
        until(lambda: topic not in admin.topics())
    run.reader.watch.start_over()
    if planned:
        assert run.read(start, end) == {}
    else:
        assert run.batch(ONCE) == {0: [0]}
        assert run.start == {other: {"0": 1}}
    assert caplog.text.count("its topic was deleted") == 12


def test_checkpoint_of_a_pattern_that_found_decisions_goes_on(broker, new_topic):
    """As `kafka` finds them."""
    topic = new_topic(prefix="goes-on-")
    fill(broker, topic, {0: 3})
    checkpoint = [{DECISIONS_TOPIC: {"7": 5}, topic: {"0": 1}}]
    run = Run(broker, checkpoint, subscribePattern=f"^({topic}$|__)")
    assert run.batch() == {0: [1, 2]}
    assert run.start == {topic: {"0": 3}}
    later = {DECISIONS_TOPIC: {"7": 6}, topic: {"0": 3}}
    assert run.read(checkpoint[0], later) == {0: [1, 2]}


@pytest.mark.parametrize("records", [2, 10])
def test_topic_created_anew_is_told_by_its_id(broker, new_topic, caplog, records):
    topic = new_topic()
    fill(broker, topic, {0: 5})
    strict = Run(broker, [], subscribe=topic)
    strict.batch()
    lenient = Run(broker, list(strict.checkpoint), subscribe=topic, failOnDataLoss=False)
    lenient.batch()
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(topic)
        create_again(admin, topic)
    fill(broker, topic, {0: records})
    # By the next look at the topics, or by the tasks if they come first.
    with pytest.raises((DataLoss, OffsetOutOfRange), match="was deleted and recreated while the"):
        until(lambda: strict.batch() and False)
    caplog.set_level(logging.WARNING)
    found: list[dict] = []
    until(lambda: found.append(lenient.batch()) or found[-1])
    assert found[-1] == {0: list(range(records))}
    assert "reads the new topic from its start" in caplog.text


@pytest.mark.usefixtures("impatient")
def test_topic_created_anew_with_fewer_partitions(broker, new_topic, caplog):
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 2, 1: 3})
    run = Run(broker, [], subscribe=topic, failOnDataLoss=False)
    run.batch()
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(topic)
        create_again(admin, topic)
    fill(broker, topic, {0: 4})
    found: list[dict] = []
    until(lambda: found.append(run.batch()) or run.start == {topic: {"0": 4}})
    assert [one for one in found if one] == [{0: [0, 1, 2, 3]}]
    assert f"{topic}-1 is gone" in caplog.text
    assert "fewer partitions" in caplog.text


def test_topic_created_anew_is_read_from_its_start_whatever_fails_meanwhile(
    broker, new_topic, monkeypatch
):
    topic = new_topic()
    fill(broker, topic, {0: 5})
    run = Run(broker, [], subscribe=topic, failOnDataLoss=False)
    assert run.batch() == {0: list(range(5))}
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(topic)
        create_again(admin, topic)
    fill(broker, topic, {0: 7})
    run.reader.watch.look(0)
    starts, failures = TopicWatch.starts, iter(["for a moment"])

    def failing(self: TopicWatch, partitions):
        for failure in failures:
            raise NetworkException(failure)
        return starts(self, partitions)

    monkeypatch.setattr(TopicWatch, "starts", failing)
    assert run.batch_of_something() == {0: list(range(7))}
    assert not list(failures)


def test_topic_created_anew_between_plan_and_tasks(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 5})
    strict = Run(broker, [], subscribe=topic)
    lenient = Run(broker, [], subscribe=topic, failOnDataLoss=False)
    plans = [(run, run.start, run.plan()) for run in (strict, lenient)]
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(topic)
        create_again(admin, topic)
    fill(broker, topic, {0: 7})
    for run, _, _ in plans:
        run.reader.watch.look(0)
    with pytest.raises(DataLoss, match="recreated while the query ran"):
        strict.read(*plans[0][1:])
    assert lenient.read(*plans[1][1:]) == {}
    lenient.checkpoint.append(plans[1][2])
    assert lenient.batch() == {}
    found: list[dict] = []
    until(lambda: found.append(lenient.batch()) or found[-1] == {0: list(range(7))})


def test_offsets_behind_an_open_transaction_are_waited_for(broker, new_topic, caplog):
    topic = new_topic()
    fill(broker, topic, {0: 5})
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(3):
            producer.send(topic, b"v")
        producer.flush()
        everything = Run(broker, [], subscribe=topic)
        assert everything.batch() == {0: list(range(8))}
        committed = {"subscribe": topic, "kafka__isolation__level": "read_committed"}
        run = Run(broker, list(everything.checkpoint), **committed)
        lenient = Run(broker, list(everything.checkpoint), **committed, failOnDataLoss=False)
        for one in (run, lenient):
            assert one.batch() == {}
            assert one.start == {topic: {"0": 8}}
        begin, end = everything.checkpoint
        assert begin == {topic: {"0": 0}}
        producer.commit_transaction()
        # Planned before, by a run that read everything.
        assert run.read(begin, end) == {0: list(range(8))}
    fill(broker, topic, {0: 2})
    for one in (run, lenient):
        assert one.batch_of_something() == {0: [9, 10]}
    assert not caplog.records


def test_log_that_ends_before_the_checkpoint(broker, new_topic, caplog):
    topic = new_topic()
    fill(broker, topic, {0: 5})
    checkpoint = [{topic: {"0": 40}}]
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at offset 5, but the query resumes at 40"):
        Run(broker, list(checkpoint), subscribe=topic).batch()
    lenient = Run(broker, list(checkpoint), subscribe=topic, failOnDataLoss=False)
    assert lenient.batch() == {}
    assert lenient.start == {topic: {"0": 5}}
    fill(broker, topic, {0: 2})
    assert lenient.batch_of_something() == {0: [5, 6]}
    assert "continues at the end of the log" in caplog.text
    # The same of a batch that is repeated.
    begin, end = {topic: {"0": 3}}, {topic: {"0": 40}}
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at offset 7, but a repeated batch"):
        Run(broker, [], subscribe=topic).read(begin, end)
    again = Run(broker, [], subscribe=topic, failOnDataLoss=False)
    assert again.read(begin, end) == {0: [3, 4, 5, 6]}


def test_records_that_aged_out(broker, new_topic, caplog):
    topic = new_topic()
    fill(broker, topic, {0: 10})
    checkpoint = [{topic: {"0": 2}}]
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    with pytest.raises(DataLoss, match=f"records of {topic}-0 from offset 2 to 6 were deleted"):
        Run(broker, list(checkpoint), subscribe=topic).batch()
    lenient = Run(broker, list(checkpoint), subscribe=topic, failOnDataLoss=False)
    assert lenient.batch() == {0: [6, 7, 8, 9]}
    assert "its log begins at 6" in caplog.text


# -- gaps


def test_committed_records_end_at_the_last_stable_offset(broker, new_topic):
    topic = new_topic()
    run = Run(broker, [], subscribe=topic, kafka__isolation__level="read_committed")
    dirty = Run(broker, [], subscribe=topic)
    with Producer(broker.bootstrap, transactional_id=f"{topic}-1") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"committed", partition=0).result()
        assert run.batch() == {}
        assert dirty.batch() == {0: [0]}
        waiting = threading.Timer(0.2, producer.commit_transaction)
        waiting.start()
        assert run.batch_of_something() == {0: [0]}
        waiting.join()
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0).result()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"committed", partition=0)
    # 0 and its marker, an aborted record and its marker, a record and its marker.
    found: list[int] = []
    until(lambda: found.extend(run.batch().get(0, [])) or run.start == {topic: {"0": 6}})
    assert found == [4]
    assert run.batch() == {}
    dirty.batch_of_something()
    assert dirty.start == {topic: {"0": 6}}


@pytest.mark.usefixtures("plane")
def test_compacted_gaps_are_passed_over(tmp_path):
    with BrokerProcess(tmp_path, overrides={"log.cleaner.backoff.ms": 10}) as broker:
        with Admin(broker.bootstrap) as admin:
            configs = {
                "cleanup.policy": "compact",
                "segment.bytes": "2000",
                "min.cleanable.dirty.ratio": "0.01",
            }
            admin.create_topic("t", partitions=1, configs=configs)
        with Producer(broker.bootstrap) as producer:
            for n in range(300):
                producer.send("t", b"v" * 30, key=b"%d" % (n % 5), partition=0).result()
        run = Run(broker, [], subscribe="t", maxOffsetsPerTrigger=50)
        until(lambda: len(run.read({"t": {"0": 0}}, {"t": {"0": 200}}).get(0, [])) < 100)
        batches = [run.batch() for _ in range(6)]
        assert run.start == {"t": {"0": 300}}
        found = [offset for batch in batches for offset in batch.get(0, [])]
        assert found == sorted(set(found))
        assert len(found) < 200
        assert found[-5:] == [295, 296, 297, 298, 299]


# -- groups


def test_consumed_offsets_are_committed_to_a_group(broker, new_topic):
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 5, 1: 7})
    run = Run(broker, [], subscribe=topic, commitOffsetsToGroup="lag-of-a-stream")
    run.batch()
    fill(broker, topic, {1: 2})
    run.reader.commit(run.start)
    with GroupAdmin(broker.bootstrap) as admin:
        committed = admin.committed("lag-of-a-stream")
        assert committed == {TopicPartition(topic, 0): 5, TopicPartition(topic, 1): 7}
        lags = admin.lags(dict(committed), T0_MS)
        assert [lags[at].records for at in sorted(lags)] == [0, 2]
        assert admin.describe("lag-of-a-stream").members == []


def test_commit_that_fails_is_a_line_in_the_log(broker, new_topic, caplog, monkeypatch):
    topic = new_topic()
    fill(broker, topic, {0: 1})
    quiet = Run(broker, [], subscribe=topic)
    quiet.batch()
    with counted(monkeypatch) as sent:
        quiet.reader.commit(quiet.start)
    assert sent == []
    run = Run(broker, [], subscribe=topic, commitOffsetsToGroup="g")
    run.reader.commit({"no-such-topic": {"0": 1}})
    assert "cannot commit offsets to group 'g'" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


# -- brokers that go


@pytest.mark.usefixtures("plane")
def test_broker_that_is_away_is_waited_for(tmp_path, caplog):
    with BrokerProcess(tmp_path) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=2)
        fill(broker, "t", {0: 5})
        run = Run(broker, [], subscribe="t")
        assert run.batch() == {0: [0, 1, 2, 3, 4]}
        assert run.batch() == {}
        broker.kill()
        assert run.batch() == {}
        assert run.batch() == {}
        assert caplog.text.count("waiting for brokers: cannot connect") == 1
        broker.start()
        fill(broker, "t", {1: 3})
        assert run.batch_of_something() == {1: [0, 1, 2]}
        # Tasks and their plan wait too.
        fill(broker, "t", {0: 2})
        start = run.start
        end: dict = {}
        until(lambda: end.update(run.plan()) or end != start)
        broker.kill()
        starting = threading.Timer(1.0, broker.start)
        starting.start()
        assert run.read(start, end) == {0: [5, 6]}
        starting.join()


@pytest.mark.usefixtures("plane")
def test_broker_that_stays_away_ends_the_query(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=1)
        run = Run(broker, [], subscribe="t", kafkaConsumer__pollTimeoutMs=700)
        run.batch()
        broker.kill()
        with pytest.raises(KafkaError, match="cannot connect"):
            until(lambda: run.batch() and False)
        with pytest.raises(KafkaError, match="cannot connect"):
            run.batch(ONCE)
        broker.start()
