"""The source against a real broker, its reader called as Spark calls it, but without a JVM."""

from __future__ import annotations

import json
import pickle
import socket
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.errors import (
    ConfigError,
    NetworkException,
    OffsetOutOfRange,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from plog.protocol.api_keys import ApiKey
from plog.protocol.messages.fetch import FetchRequest
from plog.spark import range_reader
from plog.spark.arrow import BASE_SCHEMA, FULL_SCHEMA
from plog.spark.offsets import NoLaterRecord, OffsetRange, share_out, split
from plog.spark.options import SourceOptions, parse
from plog.spark.source import PlogDataSource, PlogReader
from plog.spark.task_reader import BATCH_ROWS
from plog.types import ZERO_UUID, TopicPartition
from tests.compat.clients import CODECS, Confluent, Sent
from tests.compat.recorder import Recorder, body_of
from tests.servers import BrokerProcess

HOUR_MS = 3_600_000
T0_MS = 1_700_000_000_000


def reader_of(broker: BrokerProcess, schema: StructType = FULL_SCHEMA, **options) -> PlogReader:
    given = {key.replace("__", "."): str(value) for key, value in options.items()}
    return PlogReader(parse({"kafka.bootstrap.servers": broker.bootstrap, **given}), schema)


def batches_of(reader: PlogReader):
    """Read every task, each after a journey to an executor."""
    for task in reader.partitions():
        there, wanted = pickle.loads(pickle.dumps((reader, task)))
        for batch in there.read(wanted):
            batch.validate(full=True)
            yield batch


def rows_of(broker: BrokerProcess, schema: StructType = FULL_SCHEMA, **options) -> list[dict]:
    reader = reader_of(broker, schema, **options)
    return [row for batch in batches_of(reader) for row in batch.to_pylist()]


def offsets_of(broker: BrokerProcess, **options) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows_of(broker, **options):
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


def at(timestamp_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)


def fill(
    broker: BrokerProcess, topic: str, counts: dict[int, int], *, size: int = 1, step_ms: int = 1
) -> None:
    """Produce so many records to each partition, step_ms between the timestamps of two."""
    with Producer(broker.bootstrap, linger_ms=20) as producer:
        for partition, count in counts.items():
            for index in range(count):
                producer.send(
                    topic, b"v" * size, partition=partition, timestamp_ms=T0_MS + index * step_ms
                )


# -- rows

RECORDS = [
    Sent(b"key", b"value", (("h", b"1"), ("h", b"2"), ("empty", b""), ("null", None))),
    Sent(None, b"no key"),
    Sent(b"tombstone", None),
    Sent(None, None),
    Sent(b"", b"", timestamp=2),
    Sent(bytes(range(256)), bytes(range(256)) * 40, (("ünïcode", b"\xff"),), timestamp=T0_MS + 1),
    Sent(b"early", b"before 1970", timestamp=1),
]


@pytest.mark.parametrize("codec", CODECS)
def test_rows_are_what_confluent_kafka_produced(broker, new_topic, codec):
    topic = new_topic()
    Confluent().produce(broker.bootstrap, topic, RECORDS * 3, codec=codec)
    assert rows_of(broker, subscribe=topic) == [
        {
            "key": sent.key,
            "value": sent.value,
            "topic": topic,
            "partition": 0,
            "offset": offset,
            "timestamp": at(sent.timestamp),
            "timestampType": 0,
            "headers": [{"key": key, "value": value} for key, value in sent.headers] or None,
        }
        for offset, sent in enumerate(RECORDS * 3)
    ]


def test_rows_are_what_our_own_client_produced(broker, new_topic):
    topic = new_topic(partitions=3)
    with Producer(broker.bootstrap, compression_type="zstd") as producer:
        sent = {}
        for index in range(5000):
            headers = [("n", str(index).encode())] if index % 3 == 0 else []
            delivery = producer.send(
                topic, b"v%d" % index, key=b"k%d" % index, headers=headers, timestamp_ms=index
            )
            sent[index] = delivery
    expected = {
        (metadata.partition, metadata.offset): index
        for index, delivery in sent.items()
        for metadata in [delivery.result()]
    }
    rows = rows_of(broker, subscribe=topic)
    assert len(rows) == 5000
    for row in rows:
        index = expected[row["partition"], row["offset"]]
        assert (row["key"], row["value"]) == (b"k%d" % index, b"v%d" % index)
        assert row["timestamp"] == at(index)
        assert (row["headers"] is not None) == (index % 3 == 0)


def test_append_time_says_so_in_timestamp_type(broker, new_topic):
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before = datetime.now(UTC)
    fill(broker, topic, {0: 3})
    rows = rows_of(broker, subscribe=topic)
    assert [row["timestampType"] for row in rows] == [1, 1, 1]
    assert all(
        before - timedelta(seconds=1) < row["timestamp"] <= datetime.now(UTC) for row in rows
    )


@pytest.mark.parametrize("column", FULL_SCHEMA.names)
def test_narrow_schema_gives_that_column_alone(broker, new_topic, column):
    topic = new_topic()
    Confluent().produce(broker.bootstrap, topic, RECORDS)
    narrow = StructType([FULL_SCHEMA[column]])
    everything = rows_of(broker, subscribe=topic)
    assert rows_of(broker, narrow, subscribe=topic) == [{column: row[column]} for row in everything]


def test_schema_may_order_columns_as_it_likes(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 2})
    schema = StructType([FULL_SCHEMA["offset"], FULL_SCHEMA["value"]])
    assert rows_of(broker, schema, subscribe=topic) == [
        {"offset": 0, "value": b"v"},
        {"offset": 1, "value": b"v"},
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType([]), "the schema is empty"),
        (StructType([StructField("value", StringType())]), "unknown column value string"),
        (StructType([StructField("price", LongType())]), "unknown column price bigint"),
        (StructType([StructField("offset", IntegerType())]), "unknown column offset int"),
        (StructType([StructField("key", BinaryType(), nullable=False)]), "key can be null"),
    ],
)
def test_schema_of_other_columns_is_refused(schema, message):
    with pytest.raises(ConfigError, match=message):
        PlogReader(SourceOptions("h:1", topics=("t",)), schema)


def test_schema_has_headers_only_when_asked():
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
    assert PlogDataSource(options).schema() == BASE_SCHEMA
    assert PlogDataSource(options | {"includeHeaders": "true"}).schema() == FULL_SCHEMA


def test_records_larger_than_every_limit_come_whole(broker, new_topic):
    topic = new_topic(partitions=3)
    sent = [Sent(b"%d" % n, bytes([n]) * size) for n, size in enumerate([10 << 20, 1, 10 << 20, 5])]
    for partition in range(3):
        Confluent().produce(broker.bootstrap, topic, sent, partition=partition)
    rows = rows_of(
        broker,
        subscribe=topic,
        kafka__fetch__max__bytes=1 << 20,
        kafka__max__partition__fetch__bytes=1 << 16,
    )
    assert sorted((row["partition"], row["offset"]) for row in rows) == [
        (partition, offset) for partition in range(3) for offset in range(4)
    ]
    assert all(row["value"] == sent[row["offset"]].value for row in rows)


def test_batches_are_large_and_bounded(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 23_000}, size=100)
    reader = reader_of(broker, subscribe=topic, maxRecordsPerPartition=1 << 30)
    sizes = [batch.num_rows for batch in batches_of(reader)]
    assert sum(sizes) == 23_000
    assert max(sizes) == BATCH_ROWS
    assert len(sizes) <= 7


def test_empty_topic_has_one_task_and_no_rows(broker, new_topic):
    topic = new_topic(partitions=2)
    assert [task.ranges for task in reader_of(broker, subscribe=topic).partitions()] == [[]]
    assert rows_of(broker, subscribe=topic) == []


def test_thousand_partitions_are_read_by_few_tasks(broker, new_topic):
    topic = new_topic(partitions=1000)
    fill(broker, topic, dict.fromkeys(range(1000), 2))
    reader = reader_of(broker, subscribe=topic)
    assert len(reader.partitions()) <= 64
    found = offsets_of(broker, subscribe=topic)
    assert found == {partition: [0, 1] for partition in range(1000)}


# -- what is subscribed


def test_pattern_covers_every_topic_it_is_found_in(broker, new_topic):
    mine, other = new_topic(prefix="orders-eu-"), new_topic(prefix="prices-")
    also = new_topic(prefix="orders-us-")
    for topic in (mine, other, also):
        fill(broker, topic, {0: 1})
    for pattern, topics in [("orders-", {mine, also}), (f"^{mine}$", {mine}), ("no-such", set())]:
        rows = rows_of(broker, subscribePattern=pattern)
        assert {row["topic"] for row in rows} == topics
        assert len(rows) == len(topics)


def test_several_topics_and_assigned_partitions(broker, new_topic):
    one, two = new_topic(partitions=2), new_topic(partitions=2)
    for topic in (one, two):
        fill(broker, topic, {0: 1, 1: 2})
    assert len(rows_of(broker, subscribe=f"{one},{two}")) == 6
    rows = rows_of(broker, assign=json.dumps({one: [1], two: [0]}))
    assert sorted((row["topic"], row["partition"]) for row in rows) == sorted(
        [(one, 1), (one, 1), (two, 0)]
    )


def test_what_does_not_exist_is_named(broker, new_topic):
    topic = new_topic()
    retries = {"fetchOffset__numRetries": 2, "fetchOffset__retryIntervalMs": 0}
    with pytest.raises(UnknownTopicOrPartition, match="no-such"):
        rows_of(broker, subscribe=f"{topic},no-such", **retries)
    with pytest.raises(UnknownTopicOrPartition, match=f"{topic}-7"):
        rows_of(broker, assign=json.dumps({topic: [0, 7]}), **retries)
    # Asking has not brought it into being.
    with Admin(broker.bootstrap) as admin:
        assert "no-such" not in admin.topics()


def test_no_broker_is_a_network_error_after_the_retries(broker):
    with pytest.raises(NetworkException, match=r"127\.0\.0\.1:1"):
        PlogReader(
            parse(
                {
                    "kafka.bootstrap.servers": "127.0.0.1:1",
                    "subscribe": "t",
                    "fetchOffset.retryIntervalMs": "1",
                }
            ),
            FULL_SCHEMA,
        ).partitions()


def test_settings_of_the_client_are_those_of_its_requests(tmp_path):
    given = {
        "kafka.client.id": "mine",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.bytes": "70000",
        "kafka.max.partition.fetch.bytes": "60000",
        "kafka.fetch.max.wait.ms": "7",
    }
    broker = BrokerProcess(tmp_path)
    recorder = Recorder(broker.port)
    broker.overrides["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{recorder.port}"
    try:
        with broker:
            with Admin(broker.bootstrap) as admin:
                admin.create_topic("t")
            fill(broker, "t", {0: 3})
            recorder.exchanges.clear()
            assert len(rows_of(broker, subscribe="t", **given)) == 3
    finally:
        recorder.close()
    asked = recorder.exchanges
    assert {one.header.client_id for one in asked} == {"mine"}
    fetches = [body_of(one, FetchRequest) for one in asked if one.header.api_key == ApiKey.FETCH]
    assert fetches
    for fetch in fetches:
        assert (fetch.isolation_level, fetch.max_bytes, fetch.max_wait_ms) == (1, 70_000, 7)
        assert [part.partition_max_bytes for part in fetch.topics[0].partitions] == [60_000]


def test_request_that_nobody_answers_ends_after_its_time():
    given = {"subscribe": "t", "kafka.request.timeout.ms": "100", "fetchOffset.numRetries": "1"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        options = parse({"kafka.bootstrap.servers": address, **given})
        with pytest.raises(NetworkException, match=f"{address} did not answer"):
            PlogReader(options, FULL_SCHEMA).partitions()


# -- ranges


@pytest.fixture(scope="module")
def hours(broker: BrokerProcess) -> str:
    """A topic with 10 records in partition 0, 5 in 1, none in 2, an hour between two."""
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("hours", partitions=3)
    fill(broker, "hours", {0: 10, 1: 5}, step_ms=HOUR_MS)
    return "hours"


def per_partition(**values: int) -> str:
    return json.dumps({"hours": {name[1:]: value for name, value in values.items()}})


RANGES = [
    ({}, range(10), range(5)),
    ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(10), range(5)),
    ({"startingOffsets": per_partition(p0=3, p1=-2, p2=-2)}, range(3, 10), range(5)),
    ({"endingOffsets": per_partition(p0=3, p1=-1, p2=0)}, range(3), range(5)),
    (
        {
            "startingOffsets": per_partition(p0=2, p1=4, p2=0),
            "endingOffsets": per_partition(p0=4, p1=4, p2=-1),
        },
        range(2, 4),
        [],
    ),
    ({"endingTimestamp": T0_MS + 3 * HOUR_MS}, range(3), range(3)),
    ({"endingTimestamp": T0_MS + 3 * HOUR_MS + 1}, range(4), range(4)),
    ({"endingTimestamp": T0_MS + 7 * HOUR_MS}, range(7), range(5)),
    ({"endingTimestamp": T0_MS - 1}, [], []),
    (
        {"endingOffsetsByTimestamp": per_partition(p0=T0_MS + HOUR_MS, p1=T0_MS, p2=T0_MS)},
        range(1),
        [],
    ),
    (
        {
            "startingTimestamp": T0_MS + 4 * HOUR_MS,
            "startingOffsetsByTimestampStrategy": "latest",
        },
        range(4, 10),
        range(4, 5),
    ),
    (
        {
            "startingTimestamp": T0_MS + 8 * HOUR_MS,
            "endingTimestamp": T0_MS + 2 * HOUR_MS,
            "startingOffsetsByTimestampStrategy": "latest",
        },
        [],
        [],
    ),
    (
        {
            "startingOffsetsByTimestamp": per_partition(p0=T0_MS + 8 * HOUR_MS, p1=0, p2=0),
            "startingOffsetsByTimestampStrategy": "latest",
            "startingOffsets": per_partition(p0=0, p1=0, p2=0),
        },
        range(8, 10),
        range(5),
    ),
]


@pytest.mark.parametrize(("options", "first", "second"), RANGES)
def test_range_is_the_one_asked_for(broker, hours, options, first, second):
    expected = {index: list(wanted) for index, wanted in enumerate((first, second)) if list(wanted)}
    assert offsets_of(broker, subscribe=hours, **options) == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"startingTimestamp": T0_MS},
            NoLaterRecord,
            "hours-2 has no record at or after timestamp 1700000000000; set startingOffsets",
        ),
        (
            {"startingOffsetsByTimestamp": per_partition(p0=0, p1=T0_MS + 9 * HOUR_MS, p2=0)},
            NoLaterRecord,
            "hours-1 has no record",
        ),
        (
            {"startingOffsets": per_partition(p0=0, p2=0)},
            ConfigError,
            "no offset given for hours-1; give one for every partition",
        ),
        (
            {"endingOffsetsByTimestamp": per_partition(p0=0, p1=0, p2=0, p3=0)},
            ConfigError,
            "an offset is given for hours-3, which the query does not read",
        ),
        (
            {"endingOffsets": per_partition(p0=11, p1=-1, p2=-1)},
            OffsetOutOfRange,
            "offsets 0 to 11 are out of range for hours-0, which has offsets 0 to 10; set ",
        ),
        (
            {"startingOffsets": per_partition(p0=12, p1=0, p2=0)},
            OffsetOutOfRange,
            "offsets 12 to 10 are out of range for hours-0, which has offsets 0 to 10",
        ),
    ],
)
def test_range_that_cannot_be_is_refused(broker, hours, options, error, message):
    with pytest.raises(error, match=message):
        rows_of(broker, subscribe=hours, **options)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"endingOffsets": per_partition(p0=11, p1=-1, p2=-1)}, range(10)),
        ({"startingOffsets": per_partition(p0=12, p1=0, p2=0)}, []),
    ],
)
def test_range_is_cut_to_what_is_there_where_loss_is_none(broker, hours, options, first):
    found = offsets_of(broker, subscribe=hours, failOnDataLoss="false", **options)
    assert found.get(0, []) == list(first)
    assert found[1] == list(range(5))


def test_deleted_records_are_a_loss_only_if_asked_for(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 10})
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    assert offsets_of(broker, subscribe=topic) == {0: list(range(4, 10))}
    asked = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 2}})}
    with pytest.raises(
        OffsetOutOfRange, match=r"offsets 2 to 10 are out of range for .* has offsets 4 to 10"
    ):
        rows_of(broker, **asked)
    assert offsets_of(broker, failOnDataLoss="false", **asked) == {0: list(range(4, 10))}
    with Admin(broker.bootstrap) as admin:  # nothing is left, as of a topic that has aged out
        admin.delete_records({TopicPartition(topic, 0): 10})
    for end in ({}, {"endingOffsets": json.dumps({topic: {"0": 10}})}):
        with pytest.raises(OffsetOutOfRange, match="which has offsets 10 to 10"):
            rows_of(broker, **asked, **end)
        assert offsets_of(broker, failOnDataLoss="false", **asked, **end) == {}


def test_plan_is_what_was_there_when_it_was_made(broker, new_topic):
    topic = new_topic()
    fill(broker, topic, {0: 5})
    reader = reader_of(broker, subscribe=topic)
    tasks = reader.partitions()
    fill(broker, topic, {0: 5})
    found = [row["offset"] for t in tasks for batch in reader.read(t) for row in batch.to_pylist()]
    assert found == list(range(5))


# -- tasks


def ranges(*sizes: int) -> list[OffsetRange]:
    return [
        OffsetRange(TopicPartition("t", index), 100, 100 + size, ZERO_UUID)
        for index, size in enumerate(sizes)
    ]


def check(shares: list[list[OffsetRange]], *sizes: int) -> list[int]:
    """See that shares have each record of the ranges once; return how many each has."""
    flat = sorted(r for share in shares for r in share)
    assert all(r.start < r.end for r in flat)
    for whole in ranges(*sizes):
        parts = [r for r in flat if r.partition == whole.partition]
        assert [r.start for r in parts[1:]] == [r.end for r in parts[:-1]]
        assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
    for share in shares:
        assert len({r.partition for r in share}) == len(share)
    return [sum(r.end - r.start for r in share) for share in shares]


@pytest.mark.parametrize(
    ("sizes", "tasks", "options", "expected"),
    [
        ([10], 1, {}, [10]),
        ([10], 2, {}, [5, 5]),
        ([1] * 1000, 4, {}, [250] * 4),
        ([7, 1, 1, 1], 2, {}, [5, 5]),
        ([3], 8, {}, [1, 1, 1]),
        ([], 8, {}, []),
        ([100], 2, {"min_partitions": 10}, [10] * 10),
        ([10], 2, {"min_partitions": 7}, [1, 1, 2, 1, 2, 1, 2]),
        ([101], 2, {"min_partitions": 100}, [1] * 99 + [2]),
        ([3], 2, {"min_partitions": 7}, [1] * 3),
        ([100], 20, {"min_partitions": 10}, [5] * 20),
        ([50, 50], 2, {"max_records_per_partition": 20}, [20] * 5),
        ([50, 50], 10, {"max_records_per_partition": 20}, [10] * 10),
    ],
)
def test_ranges_of_a_batch_query_are_cut_evenly(sizes, tasks, options, expected):
    shares = split(ranges(*sizes), SourceOptions("h:1", **options), tasks)
    assert check(shares, *sizes) == expected


@pytest.mark.parametrize(
    ("sizes", "tasks", "expected"),
    [
        ([10], 2, [[0]]),
        ([5, 9, 3], 2, [[1], [0, 2]]),
        ([1] * 6, 4, [[0, 4], [1, 5], [2], [3]]),
        ([7, 1, 1, 1], 2, [[0], [1, 2, 3]]),
        ([], 8, []),
    ],
)
def test_partitions_of_a_stream_are_not_cut(sizes, tasks, expected):
    shares = share_out(ranges(*sizes), SourceOptions("h:1"), tasks)
    assert [[r.partition.partition for r in share] for share in shares] == expected
    assert sorted(r for share in shares for r in share) == sorted(ranges(*sizes))


@pytest.mark.parametrize(
    ("sizes", "tasks", "options", "expected"),
    [
        # Where there are enough partitions none is cut: they keep their order.
        ([9, 5, 1], 2, {"min_partitions": 1}, [9, 6]),
        ([9, 5, 1], 2, {"min_partitions": 3}, [9, 5, 1]),
        ([9, 5], 8, {"max_records_per_partition": 9}, [9, 5]),
        ([100], 2, {"min_partitions": 10}, [10] * 10),
        ([100], 20, {"min_partitions": 10}, [10] * 10),
        ([30, 10], 1, {"min_partitions": 4}, [10] * 4),
        # Each for itself: neither a small one, nor those that are as large as each other.
        ([100, 3, 100], 2, {"min_partitions": 4}, [53, 50, 50, 50]),
        ([100, 100, 100], 2, {"min_partitions": 4}, [100, 100, 100]),
        ([3], 2, {"min_partitions": 7}, [1] * 3),
        # Those that are larger are, into equal parts.
        ([100], 2, {"max_records_per_partition": 25}, [25] * 4),
        ([50, 50], 10, {"max_records_per_partition": 20}, [17, 17, 17, 17, 16, 16]),
        ([50, 3], 2, {"max_records_per_partition": 20}, [17, 17, 19]),
        # A task has no more, either.
        ([6, 6, 6], 1, {"max_records_per_partition": 10}, [6, 6, 6]),
        ([6, 4, 6], 1, {"max_records_per_partition": 10}, [6, 10]),
        ([40], 2, {"max_records_per_partition": 20, "min_partitions": 4}, [10] * 4),
        ([40], 2, {"max_records_per_partition": 10, "min_partitions": 2}, [10] * 4),
    ],
)
def test_partitions_of_a_stream_are_cut_where_the_options_ask_for_it(
    sizes, tasks, options, expected
):
    shares = share_out(ranges(*sizes), SourceOptions("h:1", **options), tasks)
    found = check(shares, *sizes)
    assert sorted(found) == sorted(expected)


# -- while the query runs


SMALL_FETCHES = {"kafka__max__partition__fetch__bytes": 2000, "kafka__fetch__max__bytes": 8000}


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_broker_that_restarts_meanwhile_costs_no_record_and_doubles_none(tmp_path, end):
    broker = BrokerProcess(tmp_path).start()
    try:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", partitions=3)
        fill(broker, "t", dict.fromkeys(range(3), 12_000), size=100)
        reader = reader_of(broker, subscribe="t", **SMALL_FETCHES)
        (task, *others) = reader.partitions()
        batches = (batch for wanted in (task, *others) for batch in reader.read(wanted))
        found = [next(batches), next(batches)]
        getattr(broker, end)()
        back = threading.Timer(0.5, broker.start)
        back.start()
        found += batches
        back.join()
        offsets: dict[int, list[int]] = {}
        for batch in found:
            for row in batch.select(["partition", "offset"]).to_pylist():
                offsets.setdefault(row["partition"], []).append(row["offset"])
        assert offsets == {partition: list(range(12_000)) for partition in range(3)}
    finally:
        broker.kill()


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_deleted_meanwhile(broker, new_topic, fail):
    topic = new_topic()
    fill(broker, topic, {0: 30_000}, size=100)
    reader = reader_of(broker, subscribe=topic, failOnDataLoss=fail, **SMALL_FETCHES)
    found = []

    def read() -> None:
        deleted = False
        for task in reader.partitions():
            for batch in reader.read(task):
                found.extend(batch.column("offset").to_pylist())
                if not deleted:
                    deleted = True
                    with Admin(broker.bootstrap) as admin:
                        admin.delete_records({TopicPartition(topic, 0): 20_000})

    if fail == "true":
        with pytest.raises(OffsetOutOfRange, match="records below 20000 were deleted"):
            read()
    else:
        read()
        before = [offset for offset in found if offset < 20_000]
        assert before == list(range(len(before)))
        assert 0 < len(before) < 15_000
        assert found[len(before) :] == list(range(20_000, 30_000))


def create_again(admin: Admin, topic: str) -> None:
    """Create a topic whose deletion may still be under way."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return admin.create_topic(topic, partitions=1)
        except TopicAlreadyExists:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("anew", [True, False])
def test_topic_deleted_meanwhile(broker, new_topic, monkeypatch, fail, anew):
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_GRACE_S", 0.3)
    topic = new_topic()
    fill(broker, topic, {0: 10})
    reader = reader_of(broker, subscribe=topic, failOnDataLoss=fail)
    tasks = reader.partitions()
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic(topic)
        if anew:
            create_again(admin, topic)
            fill(broker, topic, {0: 10})

    def read() -> int:
        return sum(batch.num_rows for task in tasks for batch in reader.read(task))

    if fail == "true":
        with pytest.raises(OffsetOutOfRange if anew else UnknownTopicOrPartition, match=topic):
            read()
    else:
        assert read() == 0


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("records", [10, 40_000])
def test_topic_created_anew_while_a_task_reads(broker, new_topic, fail, records):
    topic = new_topic()
    fill(broker, topic, {0: 30_000}, size=100)
    reader = reader_of(broker, subscribe=topic, failOnDataLoss=fail, **SMALL_FETCHES)
    found: list[bytes] = []

    def read() -> None:
        for task in reader.partitions():
            for batch in reader.read(task):
                if not found:
                    with Admin(broker.bootstrap) as admin:
                        admin.delete_topic(topic)
                        create_again(admin, topic)
                    fill(broker, topic, {0: records}, size=99)
                found.extend(batch.column("value").to_pylist())

    if fail == "true":
        with pytest.raises(OffsetOutOfRange, match="its topic was deleted and recreated"):
            read()
    else:
        read()
    assert 0 < len(found) < 30_000
    assert set(map(len, found)) == {100}
