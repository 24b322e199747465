"""Streams inside Spark: triggers, checkpoints, and topics that change under a running query."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Row

from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.client.producer import Producer
from plog.types import TopicPartition
from tests.compat.clients import Confluent
from tests.servers import BrokerProcess
from tests.spark.marks import DEAR
from tests.spark.test_session import load
from tests.spark.test_source import RECORDS, create_again, fill
from tests.waiting import until

pytestmark = DEAR


def stream(spark, broker: BrokerProcess, **options):
    reader = spark.readStream.format("plog").option("kafka.bootstrap.servers", broker.bootstrap)
    for key, value in options.items():
        reader = reader.option(key.replace("__", "."), value)
    return reader.load()


class Query:
    """A query whose sink notes, for each batch, the offsets of each partition."""

    def __init__(self, frame, checkpoint: Path, **trigger) -> None:
        self.batches: list[dict[tuple[str, int], list[int]]] = []
        self.checkpoint = checkpoint
        self.query = (
            frame.select("topic", "partition", "offset")
            .writeStream.foreachBatch(self._note)
            .option("checkpointLocation", str(checkpoint))
            .trigger(**trigger or {"processingTime": "0 seconds"})
            .start()
        )

    def _note(self, frame, _number: int) -> None:
        batch: dict[tuple[str, int], list[int]] = {}
        for topic, partition, offset in sorted(map(tuple, frame.collect())):
            batch.setdefault((topic, partition), []).append(offset)
        if batch:
            self.batches.append(batch)

    @property
    def seen(self) -> dict[tuple[str, int], list[int]]:
        found: dict[tuple[str, int], list[int]] = {}
        for batch in self.batches:
            for at, offsets in batch.items():
                found.setdefault(at, []).extend(offsets)
        return found

    def wait_for(self, expected, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while self.seen != expected:
            fault = self.query.exception()
            assert fault is None, str(fault)
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.05)

    def finish(self) -> Query:
        assert self.query.awaitTermination(120)
        return self

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()


def offset_lines(checkpoint: Path) -> list[str]:
    files = sorted(
        (path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()),
        key=lambda path: int(path.name),
    )
    return [path.read_text("utf-8").splitlines()[2] for path in files]


def test_stream_waits_for_enough_records_or_for_long_enough(spark, broker, new_topic, tmp_path):
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 5, 1: 9})
    source = {
        "assign": json.dumps({topic: [0, 1]}),
        "startingOffsets": json.dumps({topic: {"0": 3, "1": -2}}),
        "minOffsetsPerTrigger": 10,
    }
    with Query(stream(spark, broker, **source), tmp_path / "enough") as ran:
        ran.wait_for({(topic, 0): [3, 4], (topic, 1): list(range(9))})
        fill(broker, topic, {0: 4})
        time.sleep(1)  # for it to go wrong
        fill(broker, topic, {1: 6})
        expected = {(topic, 0): list(range(3, 9)), (topic, 1): list(range(15))}
        ran.wait_for(expected)
        assert [sum(map(len, batch.values())) for batch in ran.batches] == [11, 10]
        fill(broker, topic, {0: 2})
    soon = source | {"maxTriggerDelay": "1s"}
    with Query(stream(spark, broker, **soon), tmp_path / "enough") as ran:
        # Spark begins with the last batch again, if it was stopped before its commit was written.
        until(lambda: ran.seen.get((topic, 0), [])[-2:] == [9, 10], "the rest after a second")


def test_available_now_goes_by_limits_to_the_end_that_was(spark, broker, new_topic, tmp_path):
    topic = new_topic(partitions=12)
    fill(broker, topic, {0: 1000, 2: 500, 10: 500})
    source = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 700}
    ran = Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish()
    assert [sum(map(len, batch.values())) for batch in ran.batches] == [700, 700, 600]
    assert all(len(batch) == 3 for batch in ran.batches)
    assert ran.seen == {(topic, p): list(range(n)) for p, n in {0: 1000, 2: 500, 10: 500}.items()}
    lines = offset_lines(tmp_path)
    assert len(lines) == 3
    for line in lines:
        told = json.loads(line)
        assert line == json.dumps(told, sort_keys=True)
        assert {int(p) for p in told[topic]} == set(range(12))
    assert json.loads(lines[-1])[topic]["0"] == 1000

    # The next run goes on from the checkpoint.
    fill(broker, topic, {2: 3})
    ran = Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish()
    assert ran.batches == [{(topic, 2): [500, 501, 502]}]
    assert Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish().seen == {}


def test_new_partitions_and_topics_join_at_their_start(spark, broker, new_topic, tmp_path):
    first = new_topic(prefix="grows-")
    fill(broker, first, {0: 5})
    frame = stream(spark, broker, subscribePattern="^grows-")
    with Query(frame, tmp_path) as query:  # from the latest offsets on
        until(lambda: offset_lines_there(tmp_path), "a first batch")
        fill(broker, first, {0: 2})
        query.wait_for({(first, 0): [5, 6]})
        with Admin(broker.bootstrap) as admin:
            admin.create_partitions(first, 2)
        fill(broker, first, {1: 3})
        second = new_topic(prefix="grows-")
        fill(broker, second, {0: 4})
        query.wait_for({(first, 0): [5, 6], (first, 1): [0, 1, 2], (second, 0): [0, 1, 2, 3]})


def offset_lines_there(checkpoint: Path) -> bool:
    return (checkpoint / "offsets" / "0").exists()


def seen_of(topic: str, counts: dict[int, int]) -> dict[tuple[str, int], list[int]]:
    return {(topic, partition): list(range(count)) for partition, count in counts.items()}


def test_all_that_is_available_is_what_came_during_the_first_batch_too(
    spark, broker, new_topic, tmp_path
):
    topic = new_topic()
    fill(broker, topic, {0: 5})
    running, goes_on = threading.Event(), threading.Event()
    found: list[int] = []

    def slow(frame, number: int) -> None:
        found.extend(row.offset for row in frame.collect())
        running.set()
        assert goes_on.wait(60)

    query = (
        stream(spark, broker, subscribe=topic)  # from the latest offset on
        .writeStream.foreachBatch(slow)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        assert running.wait(60)
        fill(broker, topic, {0: 2})
        threading.Timer(0.5, goes_on.set).start()
        query.processAllAvailable()
        assert found == [5, 6]
    finally:
        goes_on.set()
        query.stop()


@pytest.mark.parametrize(
    ("option", "value", "tasks"), [("minPartitions", 5, 5), ("maxRecordsPerPartition", 30, 4)]
)
def test_partition_is_cut_into_tasks_that_lose_nothing(
    spark, broker, new_topic, tmp_path, option, value, tasks
):
    topic = new_topic()
    fill(broker, topic, {0: 100})
    seen: list[tuple[int, list[int]]] = []

    def note(frame, _number: int) -> None:
        cut = frame.rdd.getNumPartitions()
        seen.append((cut, [row.offset for row in frame.select("offset").collect()]))

    options = {"subscribe": topic, "startingOffsets": "earliest", option: value}
    query = (
        stream(spark, broker, **options)
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert seen == [(tasks, list(range(100)))]


def test_once_reads_what_is_there_in_one_batch(spark, broker, new_topic, tmp_path):
    topic = new_topic(partitions=2)
    fill(broker, topic, {0: 30, 1: 20})
    source = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 7}
    ran = Query(stream(spark, broker, **source), tmp_path, once=True).finish()
    assert ran.batches == [seen_of(topic, {0: 30, 1: 20})]
    assert len(offset_lines(tmp_path)) == 1
    assert Query(stream(spark, broker, **source), tmp_path, once=True).finish().batches == []


def test_query_goes_on_from_its_checkpoint_and_tells_a_group(spark, broker, new_topic, tmp_path):
    topic = new_topic(partitions=2)
    group = f"lag-of-{topic}"
    source = {"subscribe": topic, "startingOffsets": "latest", "commitOffsetsToGroup": group}
    fill(broker, topic, {0: 5})
    with Query(
        stream(spark, broker, **source), tmp_path, processingTime="100 milliseconds"
    ) as query:
        until(lambda: offset_lines_there(tmp_path), "a first batch")
        fill(broker, topic, {0: 2, 1: 1})
        query.wait_for({(topic, 0): [5, 6], (topic, 1): [0]})
        fill(broker, topic, {1: 2})
        query.wait_for({(topic, 0): [5, 6], (topic, 1): [0, 1, 2]})
        with GroupAdmin(broker.bootstrap) as admin:
            behind = {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 1}
            until(lambda: admin.committed(group) == behind, "one batch behind")
        query.query.processAllAvailable()  # or the last batch may come again
    lines = len(offset_lines(tmp_path))
    fill(broker, topic, {0: 1})
    with Query(stream(spark, broker, **source), tmp_path) as query:
        query.wait_for({(topic, 0): [7]})
        time.sleep(1.2)  # idle: nothing is planned
        progress = query.query.lastProgress
        assert progress is not None
        assert json.loads(offset_lines(tmp_path)[-1]) == {topic: {"0": 8, "1": 3}}
        assert len(offset_lines(tmp_path)) == lines + 1


def test_rows_of_a_stream_are_those_of_a_batch_query(spark, broker, new_topic, tmp_path):
    topic = new_topic()
    Confluent().produce(broker.bootstrap, topic, RECORDS * 3, codec="zstd")
    options = {"subscribe": topic, "includeHeaders": True}
    rows: list[Row] = []
    query = (
        stream(spark, broker, startingOffsets="earliest", **options)
        .writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    expected = load(spark, broker, **options).collect()
    assert len(expected) == 3 * len(RECORDS)
    assert sorted(rows, key=lambda row: row.offset) == sorted(expected, key=lambda row: row.offset)


def test_aborted_records_and_markers_are_gaps(spark, broker, new_topic, tmp_path):
    topic = new_topic()
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for n in range(4):
            producer.begin_transaction()
            producer.send(topic, b"v", partition=0).result()
            (producer.abort_transaction if n % 2 else producer.commit_transaction)()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result()
        frame = stream(
            spark,
            broker,
            subscribe=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=3,
            kafka__isolation__level="read_committed",
        )
        with Query(frame, tmp_path) as query:
            query.wait_for({(topic, 0): [0, 4]})
            producer.commit_transaction()
            query.wait_for({(topic, 0): [0, 4, 8]})


@pytest.mark.usefixtures("plane")
def test_broker_that_restarts_under_a_query_costs_nothing(spark, tmp_path):
    (tmp_path / "broker").mkdir()
    with BrokerProcess(tmp_path / "broker") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=2)
        frame = stream(spark, broker, subscribe="t", startingOffsets="earliest")
        with Query(frame, tmp_path / "checkpoint") as query:
            for round_ in range(1, 4):
                fill(broker, "t", {0: 50, 1: 20})
                query.wait_for(seen_of("t", {0: 50 * round_, 1: 20 * round_}))
                broker.kill()
                if round_ == 2:
                    time.sleep(1)  # while the query asks
                broker.start()


def test_topic_that_is_created_anew_under_a_query(spark, broker, new_topic, tmp_path):
    topic = new_topic()
    source = {"subscribe": topic, "startingOffsets": "earliest"}
    fill(broker, topic, {0: 3})
    with Query(stream(spark, broker, **source), tmp_path) as query:
        query.wait_for(seen_of(topic, {0: 3}))
        with Admin(broker.bootstrap) as admin:
            admin.delete_topic(topic)
            create_again(admin, topic)
        fill(broker, topic, {0: 5})
        until(lambda: query.query.exception() is not None, "an end of the query")
        fault = str(query.query.exception())
        assert topic in fault
        assert "was deleted and recreated while the query ran" in fault
        assert "failOnDataLoss=false" in fault
    # Who says so goes on; this run tells the new topic by its end alone, if at all.
    source["failOnDataLoss"] = "false"
    with Query(stream(spark, broker, **source), tmp_path) as query:
        until(lambda: query.seen or len(offset_lines(tmp_path)) > 2, "a batch")
        with Admin(broker.bootstrap) as admin:
            admin.delete_topic(topic)
            create_again(admin, topic)
        fill(broker, topic, {0: 4})
        until(lambda: query.seen.get((topic, 0), [])[-4:] == [0, 1, 2, 3], "the new topic")


def test_deleted_topic_and_aged_out_records(spark, broker, new_topic, tmp_path):
    kept, gone = new_topic(), new_topic()
    source = {"subscribe": f"{kept},{gone}", "startingOffsets": "earliest"}
    fill(broker, kept, {0: 3})
    fill(broker, gone, {0: 2})
    Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish()
    fill(broker, kept, {0: 7})
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(kept, 0): 6})
    with pytest.raises(StreamingQueryException, match=f"{kept}-0 from offset 3 to 6 were deleted"):
        Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish()
    source["failOnDataLoss"] = "false"
    ran = Query(stream(spark, broker, **source), tmp_path, availableNow=True).finish()
    assert ran.seen == {(kept, 0): [6, 7, 8, 9]}
    with Query(stream(spark, broker, **source), tmp_path) as query:
        with Admin(broker.bootstrap) as admin:
            admin.delete_topic(gone)
        fill(broker, kept, {0: 1})
        query.wait_for({(kept, 0): [10]})
        until(lambda: json.loads(offset_lines(tmp_path)[-1]) == {kept: {"0": 11}}, "no trace of it")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "t", "endingOffsets": "latest"}, "endingOffsets applies to batch"),
        ({"subscribe": "t", "kafka.group.id": "g"}, "commitOffsetsToGroup to a group name"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: 0 is not above 0"),
        ({"subscribe": "no-such", "fetchOffset.retryIntervalMs": "0"}, "topic 'no-such' does not"),
    ],
)
def test_wrong_options_end_the_query_and_are_named(spark, broker, tmp_path, options, message):
    with pytest.raises((StreamingQueryException, AnalysisException), match=message):
        Query(stream(spark, broker, **options), tmp_path, availableNow=True).finish()


def test_idle_source_does_not_hold_up_a_busy_one(spark, broker, new_topic, tmp_path):
    idle, busy = new_topic(), new_topic()
    fill(broker, busy, {0: 20})
    source = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 5}
    both = stream(spark, broker, subscribe=idle, **source).union(
        stream(spark, broker, subscribe=busy, **source)
    )
    with Query(both, tmp_path) as query:
        query.wait_for(seen_of(busy, {0: 20}))
        fill(broker, idle, {0: 3})
        query.wait_for(seen_of(busy, {0: 20}) | seen_of(idle, {0: 3}))
