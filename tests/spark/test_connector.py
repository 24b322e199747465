"""Spark's own Kafka connector works against plog as against Kafka, and reads what `plog` reads.

What is asked of both formats has one expected answer. One JVM has both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructType

from plog.client.admin import Admin
from plog.client.consumer import Consumer, ConsumerRecord
from plog.client.producer import Producer
from plog.spark import sink
from plog.types import TopicPartition
from tests.servers import BrokerProcess
from tests.spark import connector_queries as queries
from tests.spark.connector_queries import Connector, Options, Row
from tests.spark.marks import DEAR
from tests.spark.test_sink import read

pytestmark = DEAR

NewTopic = Callable[..., str]
BOTH = pytest.mark.parametrize("source", ["kafka", "plog"])
BEGUN_MS = 1_700_000_000_000
COUNT, STEP_MS = 10, 1000
"""Of records in each of two partitions, the second half a step later."""


@pytest.fixture
def at(broker: BrokerProcess) -> Callable[..., Options]:
    """Make options: where the broker is, and others, with _ for the dots of `kafka.`."""

    def at(**options: str) -> Options:
        given = {
            name.replace("_", ".") if name.startswith("kafka_") else name: value
            for name, value in options.items()
        }
        return {"kafka.bootstrap.servers": broker.bootstrap, **given}

    return at


# -- batch queries ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def history(broker: BrokerProcess) -> list[Row]:
    """Fill a topic; return what is in it."""
    topic = "history"
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    rows = []
    with Producer(broker.bootstrap) as producer:
        for partition in range(2):
            for n in range(COUNT):
                at_ms = BEGUN_MS + n * STEP_MS + partition * STEP_MS // 2
                headers = (("n", b"%d" % n), ("null", None), ("n", b"")) if n % 2 else ()
                key, value = (b"k" if n % 3 else None), (b"%d" % n if n != 5 else None)
                producer.send(
                    topic, value, key=key, headers=headers, partition=partition, timestamp_ms=at_ms
                )
                rows.append(Row(topic, partition, n, at_ms, 0, key, value, headers or None))
    return rows


def later(steps: float) -> int:
    return BEGUN_MS + int(steps * STEP_MS)


def by_partition(first: int, second: int) -> str:
    return json.dumps({"history": {"0": first, "1": second}})


ASKED: dict[str, tuple[Options, Callable[[Row], bool]]] = {
    "everything": ({}, lambda _: True),
    "startingTimestamp": ({"startingTimestamp": str(later(3))}, lambda row: row.at_ms >= later(3)),
    "endingTimestamp": ({"endingTimestamp": str(later(7.2))}, lambda row: row.at_ms < later(7.2)),
    "offsetsByTimestamp": (
        {
            "startingOffsetsByTimestamp": by_partition(later(2.1), later(4.5)),
            "endingOffsetsByTimestamp": by_partition(later(8), later(99)),
        },
        lambda row: (later(2.1) <= row.at_ms < later(8), row.at_ms >= later(4.5))[row.partition],
    ),
    "no later record": (
        {
            "startingTimestamp": str(later(9.2)),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        lambda row: row.at_ms >= later(9.2),
    ),
    "offsets": (
        {"startingOffsets": by_partition(4, -2), "endingOffsets": by_partition(-1, 6)},
        lambda row: (row.offset >= 4, row.offset < 6)[row.partition],
    ),
    "assign": (
        {"assign": '{"history": [1]}', "startingOffsets": '{"history": {"1": 8}}'},
        lambda row: row.partition == 1 and row.offset >= 8,
    ),
}


@BOTH
@pytest.mark.parametrize("asked", ASKED)
def test_rows_are_those_that_were_asked_for(
    connector: Connector, history: list[Row], at: Callable[..., Options], source: str, asked: str
) -> None:
    options, is_wanted = ASKED[asked]
    where = {} if "assign" in options else {"subscribe": "history"}
    found = connector(queries.read, source, at(**where, **options, includeHeaders="true"))
    assert found == [row for row in history if is_wanted(row)]


@BOTH
def test_headers_are_left_out_unless_asked_for(
    connector: Connector, history: list[Row], at: Callable[..., Options], source: str
) -> None:
    found = connector(queries.read, source, at(subscribe="history"))
    assert found == [row._replace(headers=None) for row in history]


@BOTH
def test_no_later_record_is_an_error(
    connector: Connector, history: list[Row], at: Callable[..., Options], source: str
) -> None:
    late = at(subscribe="history", startingTimestamp=str(later(9.2)))
    assert str(later(9.2)) in connector(queries.refusal, source, late)


@BOTH
def test_topics_are_found_by_a_pattern(
    connector: Connector,
    broker: BrokerProcess,
    new_topic: NewTopic,
    at: Callable[..., Options],
    source: str,
) -> None:
    topics = [new_topic(prefix=f"{source}-pattern-") for _ in range(2)]
    with Producer(broker.bootstrap) as producer:
        for name in (*topics, new_topic(prefix=f"{source}-other-")):
            producer.send(name, name.encode())
    found = connector(queries.read, source, at(subscribePattern=f"{source}-pattern-.*"))
    assert [(row.topic, row.value) for row in found] == [(name, name.encode()) for name in topics]


@BOTH
def test_partitions_are_cut_for_more_tasks(
    connector: Connector, history: list[Row], at: Callable[..., Options], source: str
) -> None:
    few = connector(queries.tasks, source, at(subscribe="history"))
    many = connector(queries.tasks, source, at(subscribe="history", minPartitions="5"))
    assert len(few) == 2
    assert len(many) >= 5
    assert sum(few) == sum(many) == len(history)


@BOTH
def test_records_that_are_gone_are_lost_data(
    connector: Connector,
    broker: BrokerProcess,
    new_topic: NewTopic,
    at: Callable[..., Options],
    source: str,
) -> None:
    topic = new_topic()
    with Producer(broker.bootstrap) as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n)
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    options = at(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 1}}))
    assert connector(queries.refusal, source, options)
    found = connector(queries.read, source, {**options, "failOnDataLoss": "false"})
    assert [row.offset for row in found] == list(range(4, 10))


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_are_written_with_all_that_they_have(
    connector: Connector,
    broker: BrokerProcess,
    new_topic: NewTopic,
    at: Callable[..., Options],
    compression: str,
) -> None:
    topic, other = new_topic(3), new_topic(3)
    headers = [("a", b"1"), ("b", None), ("a", b"")]
    rows = [
        (b"k", b"v", topic, 2, headers),
        (None, b"w", topic, 1, None),
        (b"", None, other, 0, []),
    ]
    schema = (
        "key binary, value binary, topic string, partition int, "
        "headers array<struct<key: string, value: binary>>"
    )
    connector(queries.write, "kafka", rows, schema, at(kafka_compression_type=compression))
    assert {
        (one.topic, one.partition, one.key, one.value, one.headers)
        for name in (topic, other)
        for one in read(broker, name)
    } == {
        (topic, 2, b"k", b"v", tuple(headers)),
        (topic, 1, None, b"w", ()),
        (other, 0, b"", None, ()),
    }


def test_both_sinks_put_keys_into_the_same_partitions(
    connector: Connector, broker: BrokerProcess, new_topic: NewTopic, at: Callable[..., Options]
) -> None:
    rows = [(f"key {n} é", f"ü {n}") for n in range(50)]
    places = []
    for name in ("kafka", "plog"):
        topic = new_topic(7)
        connector(queries.write, name, rows, "key string, value string", at(topic=topic))
        places.append({one.key: (one.partition, one.value) for one in read(broker, topic)})
    assert places[0] == places[1]
    assert len(places[0]) == 50


# -- streams ---------------------------------------------------------------------------------------


def fill(broker: BrokerProcess, topic: str, numbers: range) -> None:
    with Producer(broker.bootstrap) as producer:
        for n in numbers:
            header = ("n", b"%d" % n)
            producer.send(topic, b"%d" % n, key=b"k%d" % n, headers=[header], partition=n % 3)


@pytest.mark.parametrize("target", ["kafka", "plog"])
def test_stream_goes_on_from_its_checkpoint(
    connector: Connector,
    broker: BrokerProcess,
    new_topic: NewTopic,
    at: Callable[..., Options],
    tmp_path: Path,
    target: str,
) -> None:
    source, copied = new_topic(3), new_topic(2)
    reads = at(
        subscribe=source,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="9",
        includeHeaders="true",
    )
    writes = at(topic=copied, checkpointLocation=str(tmp_path / "checkpoint"))
    done = 0
    for more, batches in ((27, [9, 9, 9]), (12, [9, 3])):
        fill(broker, source, range(done, done + more))
        done += more
        columns = ["key", "value", "headers"]
        assert connector(queries.copy, ("kafka", target), reads, writes, columns) == batches
        committed = {"kafka.isolation.level": "read_committed", "includeHeaders": "true"}
        found = connector(queries.read, "kafka", at(subscribe=copied, **committed))
        assert sorted((row.key, row.value, row.headers) for row in found) == sorted(
            (b"k%d" % n, b"%d" % n, (("n", b"%d" % n),)) for n in range(done)
        )


def test_source_and_sink_change_hands_on_one_checkpoint(
    connector: Connector,
    broker: BrokerProcess,
    new_topic: NewTopic,
    at: Callable[..., Options],
    tmp_path: Path,
) -> None:
    """Who moves, and moves back: batches that the other sink wrote are none of plog's decisions."""
    source, copied = new_topic(3), new_topic(2)
    reads = at(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="9")
    writes = at(topic=copied, checkpointLocation=str(tmp_path / "checkpoint"))
    done = 0
    for name in ("kafka", "plog", "kafka", "plog"):
        fill(broker, source, range(done, done + 18))
        done += 18
        connector(queries.copy, (name, name), reads, writes, ["key", "value"])
        committed = at(subscribe=copied, kafka_isolation_level="read_committed")
        assert values(connector(queries.read, "kafka", committed)) == sorted(
            b"%d" % n for n in range(done)
        )


# -- transactions ----------------------------------------------------------------------------------


def in_a_transaction(broker: BrokerProcess, topic: str, value: bytes, *, commit: bool) -> None:
    with Producer(broker.bootstrap, transactional_id=f"writer of {topic}") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(2):
            producer.send(topic, value, partition=partition)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()


class LeftOpen:
    """What a task of plog's sink has written, and nobody has committed."""

    def __init__(self, options: Options, value: bytes) -> None:
        schema = StructType().add("value", BinaryType()).add("partition", IntegerType())
        self._writer = sink.writer(options, schema, overwrite=False)
        rows = {"value": [value] * 2, "partition": pa.array([0, 1], pa.int32())}
        self._written = self._writer.write(iter([pa.RecordBatch.from_pydict(rows)]))

    def commit(self) -> None:
        self._writer.commit([self._written])

    def abort(self) -> None:
        self._writer.abort([self._written])


def values(rows: list[Row] | list[ConsumerRecord]) -> list[Any]:
    return sorted(row.value or b"" for row in rows)


@BOTH
def test_committed_records_are_read_up_to_what_is_open(
    connector: Connector,
    broker: BrokerProcess,
    new_topic: NewTopic,
    at: Callable[..., Options],
    tmp_path: Path,
    source: str,
) -> None:
    topic, copied = new_topic(2), new_topic()
    in_a_transaction(broker, topic, b"aborted", commit=False)
    in_a_transaction(broker, topic, b"one", commit=True)
    in_a_transaction(broker, topic, b"aborted", commit=False)
    left = LeftOpen(at(topic=topic), b"left open")
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"behind", partition=0)

    every = at(subscribe=topic)
    committed = at(subscribe=topic, kafka_isolation_level="read_committed")
    reads = {**committed, "startingOffsets": "earliest"}
    writes = at(topic=copied, checkpointLocation=str(tmp_path / "checkpoint"))

    def copy() -> list[bytes]:
        connector(queries.copy, (source, "kafka"), reads, writes, ["value"])
        return values(read(broker, copied))

    assert values(connector(queries.read, source, every)) == sorted(
        [b"aborted"] * 4 + [b"one"] * 2 + [b"left open"] * 2 + [b"behind"]
    )
    assert values(connector(queries.read, source, committed)) == [b"one"] * 2
    assert copy() == [b"one"] * 2

    left.commit()
    expected = sorted([b"one"] * 2 + [b"left open"] * 2 + [b"behind"])
    assert values(connector(queries.read, source, committed)) == expected
    assert copy() == expected

    LeftOpen(at(topic=topic), b"given up").abort()
    with Consumer(broker.bootstrap) as consumer:
        partitions = consumer.partitions_for(topic)
        ends = consumer.end_offsets(partitions)
    assert values(connector(queries.read, source, committed)) == expected
    assert copy() == expected
    assert sum(ends.values()) > len(expected)  # there is more, which was aborted
