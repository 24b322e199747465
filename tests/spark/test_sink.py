"""The sink, as Spark calls it: what is written where, and a batch of a stream only once."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from plog.client.consumer import Consumer, ConsumerRecord
from plog.client.producer import Producer
from plog.client.transaction_admin import ONGOING, TransactionAdmin
from plog.types import TopicPartition
from tests.servers import BrokerProcess
from tests.spark.marks import DEAR
from tests.whole_topic import read_topic

pytestmark = DEAR

NewTopic = Callable[..., str]
_numbers = itertools.count()


def read(
    broker: BrokerProcess, topic: str, isolation_level: str = "read_committed"
) -> list[ConsumerRecord]:
    """Return the records that readers see, once no transaction is open."""
    return read_topic(broker.bootstrap, topic, isolation_level)


def values(broker: BrokerProcess, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in read(broker, topic))


@pytest.fixture
def write(spark: Any, broker: BrokerProcess) -> Callable[..., None]:
    """Write rows of a schema in a batch query."""

    def write(rows: list[tuple], schema: str, parts: int = 2, **options: str) -> None:
        frame = spark.createDataFrame(rows, schema).repartition(parts)
        given = {key.replace("_", "."): value for key, value in options.items()}
        writer = frame.write.format("plog").mode("append")
        writer.option("kafka.bootstrap.servers", broker.bootstrap).options(**given).save()

    return write


# -- batch queries ---------------------------------------------------------------------------------


def test_rows_are_written_with_all_that_they_have(
    broker: BrokerProcess, new_topic: NewTopic, write: Callable[..., None]
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
    write(rows, schema)
    assert {
        (one.topic, one.partition, one.key, one.value, one.headers)
        for name in (topic, other)
        for one in read(broker, name)
    } == {
        (topic, 2, b"k", b"v", tuple(headers)),
        (topic, 1, None, b"w", ()),
        (other, 0, b"", None, ()),
    }


def test_keys_go_where_java_has_them_and_texts_are_utf_8(
    broker: BrokerProcess, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic, same = new_topic(7), new_topic(7)
    keys = [f"key {n} é" for n in range(50)]
    write([(key, f"ü {key}") for key in keys], "key string, value string", topic=topic)
    with Producer(broker.bootstrap) as producer:
        for key in keys:
            producer.send(same, f"ü {key}".encode(), key=key.encode())
    places = [
        {record.key: (record.partition, record.value) for record in read(broker, name)}
        for name in (topic, same)
    ]
    assert places[0] == places[1]
    assert len(places[0]) == 50


def test_option_goes_before_the_column(
    broker: BrokerProcess, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic, other = new_topic(), new_topic()
    write([(b"v", other), (b"w", None)], "value binary, topic string", topic=topic)
    assert values(broker, topic) == [b"v", b"w"]
    assert values(broker, other) == []


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_settings_of_the_client_are_its(
    broker: BrokerProcess, new_topic: NewTopic, write: Callable[..., None], codec: str
) -> None:
    topic = new_topic()
    rows = [(b"x" * 1000,)] * 100
    write(rows, "value binary", topic=topic, kafka_compression_type=codec, kafka_linger_ms="1")
    assert values(broker, topic) == [b"x" * 1000] * 100
    (segment,) = broker.partition_dir(f"{topic}-0").glob("*.log")
    assert segment.stat().st_size < 50_000


def test_thousands_of_rows_of_many_tasks(
    broker: BrokerProcess, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic(3)
    rows = [(b"%d" % n, b"v%d" % n) for n in range(30_000)]
    write(rows, "key binary, value binary", parts=5, topic=topic)
    assert values(broker, topic) == sorted(value for _, value in rows)


def test_at_least_once_needs_no_transactions(
    broker: BrokerProcess, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic()
    write([(b"v",)] * 10, "value binary", topic=topic, delivery="at-least-once", kafka_acks="1")
    assert values(broker, topic) == [b"v"] * 10
    assert len(read(broker, topic)) == read(broker, topic)[-1].offset + 1  # no marker behind them


def test_transactions_may_last_as_long_as_they_are_told(
    broker: BrokerProcess, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic()
    prefix = f"of-{topic}-"
    more = {"transactionalIdPrefix": prefix, "kafka_transaction_timeout_ms": "77000"}
    write([(b"v",)], "value binary", parts=1, topic=topic, **more)
    with TransactionAdmin(broker.bootstrap) as admin:
        ids = [one.transactional_id for one in admin.transactions()]
        (mine,) = [one for one in ids if one.startswith(prefix)]
        assert admin.describe(mine).timeout_ms == 77_000


WRONG = [
    ("value long", {}, "column value is bigint; cast it to binary or string"),
    ("value binary, when timestamp", {}, "unknown column when"),
    ("key binary", {}, "column value is missing"),
    ("value binary, partition long", {}, "column partition is bigint; cast it to int"),
    ("value binary, headers map<string, binary>", {}, "column headers is map<string,binary>"),
    ("value binary", {"subscribe": "t"}, "unknown option subscribe for the sink"),
    (
        "value binary",
        {"deliver": "x"},
        "unknown option deliver for the sink; did you mean delivery?",
    ),
    (
        "value binary",
        {"delivery": "twice"},
        "delivery: invalid value 'twice': use exactly-once or at-least-once",
    ),
    (
        "value binary",
        {"kafka_acks": "1"},
        "kafka.acks=1 conflicts with exactly-once delivery; use kafka.acks=all, or",
    ),
    (
        "value binary",
        {"kafka_transactional_id": "x"},
        "set their prefix with transactionalIdPrefix",
    ),
    ("value binary", {"kafka_batch_size": "-1"}, "kafka.batch.size: -1 is below 0"),
    ("value binary", {"topic": "a/b"}, "topic: invalid topic name 'a/b': use 1-249"),
]


@pytest.mark.parametrize(("schema", "options", "words"), WRONG)
def test_what_cannot_be_written_is_refused_by_name(
    write: Callable[..., None], schema: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=re.escape(words)):
        write([], schema, **{"topic": "t", **options})


def test_topic_has_to_be_told(write: Callable[..., None], new_topic: NewTopic) -> None:
    with pytest.raises(Exception, match="no topic: set the option topic, or add a column topic"):
        write([(b"v",)], "value binary")
    with pytest.raises(Exception, match="column topic is null in 1 of"):
        write([(b"v", new_topic()), (b"v", None)], "value binary, topic string", parts=1)


def test_nothing_stands_of_what_failed(
    broker: BrokerProcess, new_topic: NewTopic, write: Callable[..., None]
) -> None:
    topic = new_topic()
    rows = [(b"v", topic, 0)] * 100 + [(b"v", topic, 5)]
    with pytest.raises(Exception, match="partition"):
        write(rows, "value binary, topic string, partition int", parts=1, kafka_max_block_ms="500")
    assert values(broker, topic) == []
    with TransactionAdmin(broker.bootstrap) as admin:
        assert admin.transactions(states=[ONGOING]) == []


def test_topics_are_not_overwritten(spark: Any, broker: BrokerProcess, new_topic: NewTopic) -> None:
    frame = spark.createDataFrame([(b"v",)], "value binary").write.format("plog")
    frame = frame.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", new_topic())
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        frame.mode("overwrite").save()


# -- streams ---------------------------------------------------------------------------------------


@pytest.fixture
def copy(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Copy a topic in a stream, up to its end; again with the same checkpoint it goes on."""
    running = []

    def copy(source: str, sink: str, checkpoint: str = "checkpoint", **options: str) -> Any:
        rows = (
            spark.readStream.format("plog")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", options.pop("limit", "1000"))
            .option("minPartitions", options.pop("parts", "2"))
            .load()
        )
        given = {key.replace("_", "."): value for key, value in options.items()}
        query = (
            rows.select("key", "value")
            .writeStream.format("plog")
            .option("kafka.bootstrap.servers", broker.bootstrap)
            .option("topic", sink)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .options(**given)
            .trigger(availableNow=True)
            .start()
        )
        running.append(query)
        query.awaitTermination()
        return query

    yield copy
    for query in running:
        query.stop()


def fill(broker: BrokerProcess, topic: str, start: int, count: int, partitions: int = 2) -> None:
    with Producer(broker.bootstrap) as producer:
        for n in range(start, start + count):
            producer.send(topic, b"%d" % n, key=b"k%d" % n, partition=n % partitions)


def numbered(count: int) -> list[bytes]:
    return sorted(b"%d" % n for n in range(count))


def test_stream_is_written_once_and_goes_on_from_its_checkpoint(
    broker: BrokerProcess, new_topic: NewTopic, copy: Callable[..., Any]
) -> None:
    source, sink = new_topic(2), new_topic(3)
    fill(broker, source, 0, 2500)
    copy(source, sink)
    assert values(broker, sink) == numbered(2500)
    fill(broker, source, 2500, 500)
    copy(source, sink)
    assert values(broker, sink) == numbered(3000)


@pytest.mark.parametrize("parts", ["2", "5"])
def test_batch_that_is_delivered_again_is_written_once(
    broker: BrokerProcess, new_topic: NewTopic, copy: Callable[..., Any], tmp_path: Path, parts: str
) -> None:
    """Spark delivers a batch again that its log of commits does not have: the driver died."""
    source, sink = new_topic(2), new_topic(2)
    fill(broker, source, 0, 1500)
    copy(source, sink)
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert [path.name for path in commits] == ["0", "1"]
    commits[-1].unlink()
    (commits[-1].parent / ".1.crc").unlink(missing_ok=True)
    fill(broker, source, 1500, 100)
    copy(source, sink, parts=parts)
    assert values(broker, sink) == numbered(1600)


@pytest.mark.parametrize("limit", ["1000", "50"])
def test_checkpoint_that_is_one_batch_old_is_told(
    broker: BrokerProcess, new_topic: NewTopic, copy: Callable[..., Any], tmp_path: Path, limit: str
) -> None:
    """Its next batch has the number of one that stands, and is planned anew.

    It has more records then, or as many others: partitions share a limit by what they have.
    """
    source, sink = new_topic(2), new_topic(2)
    fill(broker, source, 0, 50)
    copy(source, sink)
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    shutil.copytree(checkpoint, backup)
    fill(broker, source, 50, 50)
    copy(source, sink, limit=limit)
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    fill(broker, source, 100, 30, partitions=1)
    with pytest.raises(
        StreamingQueryException, match=r"batch 1 .* already committed, but Spark planned"
    ):
        copy(source, sink, limit=limit)
    assert values(broker, sink) == numbered(100)
    copy(source, sink, limit=limit, failOnChangedBatch="false")
    fill(broker, source, 130, 20)
    copy(source, sink)
    found = set(values(broker, sink))
    assert found >= {b"%d" % n for n in range(130, 150)}
    assert limit == "50" or found == {b"%d" % n for n in [*range(100), *range(130, 150)]}


def test_at_least_once_writes_it_again(
    broker: BrokerProcess, new_topic: NewTopic, copy: Callable[..., Any], tmp_path: Path
) -> None:
    source, sink = new_topic(2), new_topic(2)
    fill(broker, source, 0, 100)
    copy(source, sink, delivery="at-least-once")
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    copy(source, sink, delivery="at-least-once")
    assert values(broker, sink) == sorted(numbered(100) * 2)


def test_queries_do_not_get_into_each_others_way(
    broker: BrokerProcess, new_topic: NewTopic, copy: Callable[..., Any]
) -> None:
    source, sink = new_topic(2), new_topic(2)
    fill(broker, source, 0, 100)
    for name in ("one", "other"):
        copy(source, sink, name, limit="50")
    assert values(broker, sink) == sorted(numbered(100) * 2)
    with TransactionAdmin(broker.bootstrap) as admin:
        assert admin.transactions(states=[ONGOING]) == []


def test_decisions_are_in_a_topic_of_ones_own(
    broker: BrokerProcess, new_topic: NewTopic, copy: Callable[..., Any]
) -> None:
    source, sink = new_topic(2), new_topic(2)
    fill(broker, source, 0, 10)
    mine = f"decisions-{next(_numbers)}"
    query = copy(source, sink, decisionsTopic=mine, transactionalIdPrefix="mine-")
    with Consumer(broker.bootstrap) as consumer:
        assert consumer.partitions_for(mine) == [TopicPartition(mine, n) for n in range(16)]
    assert {record.key for record in read(broker, mine)} == {str(query.id).encode()}
    with TransactionAdmin(broker.bootstrap) as admin:
        ids = [one.transactional_id for one in admin.transactions()]
    assert f"mine-{query.id}-driver" in ids
    assert any(one.startswith(f"mine-{query.id}-task-") for one in ids)
