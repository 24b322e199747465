"""`BatchSink` in Spark's `foreachBatch`: update mode, replayed batches and older checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from plog.client.producer import Producer
from plog.errors import ConfigError
from plog.spark.batch_sink import BatchSink
from tests.servers import BrokerProcess
from tests.spark.marks import DEAR
from tests.spark.test_sink import read

pytestmark = DEAR

NewTopic = Callable[..., str]
OnBatch = Callable[[Any, int], None]


class Counts:
    """A query that counts a topic's records by key, in update mode."""

    def __init__(self, spark: Any, broker: BrokerProcess, source: str, checkpoint: Path) -> None:
        self._spark, self._broker = spark, broker
        self.source, self.checkpoint = source, checkpoint

    def fill(self, *keys: bytes) -> None:
        with Producer(self._broker.bootstrap) as producer:
            for key in keys:
                producer.send(self.source, b"v", key=key)

    def run(self, on_batch: OnBatch) -> None:
        rows = (
            self._spark.readStream.format("plog")
            .option("kafka.bootstrap.servers", self._broker.bootstrap)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .load()
        )
        counts = rows.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
        query = (
            counts.writeStream.outputMode("update")
            .foreachBatch(on_batch)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_commit(self, batch: int) -> None:
        """Have Spark deliver a batch again, as after the death of its driver."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def counts(spark: Any, broker: BrokerProcess, new_topic: NewTopic, tmp_path: Path) -> Counts:
    return Counts(spark, broker, new_topic(2), tmp_path / "checkpoint")


def rows(broker: BrokerProcess, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return sorted((one.key or b"", one.value or b"") for one in read(broker, topic))


def test_changes_are_written_once_by_every_sink_of_a_query(
    broker: BrokerProcess, new_topic: NewTopic, counts: Counts
) -> None:
    """A committed batch that comes again is skipped by one sink; the other has not written it."""
    topics = new_topic(), new_topic()
    sinks = [
        BatchSink(name).option("kafka.bootstrap.servers", broker.bootstrap).option("topic", topic)
        for name, topic in zip(("", "copy"), topics, strict=True)
    ]

    def both(batch: Any, batch_id: int) -> None:
        for sink in sinks:
            sink(batch, batch_id)

    counts.fill(b"a", b"b", b"a")
    counts.run(both)
    counts.fill(b"a")
    counts.run(sinks[0])
    counts.forget_commit(1)
    counts.fill(b"c")
    counts.run(both)
    expected = [(b"a", b"2"), (b"a", b"3"), (b"b", b"1"), (b"c", b"1")]
    assert [rows(broker, topic) for topic in topics] == [expected, expected]


@pytest.mark.long
def test_older_checkpoint_is_refused(
    broker: BrokerProcess, new_topic: NewTopic, counts: Counts, tmp_path: Path
) -> None:
    """Without Spark every run tests this: `test_foreach_batch_writer`."""
    topic, backup = new_topic(), tmp_path / "backup"
    sink = BatchSink(options={"kafka.bootstrap.servers": broker.bootstrap, "topic": topic})
    counts.fill(b"a")
    counts.run(sink)
    shutil.copytree(counts.checkpoint, backup)
    for _ in range(2):
        counts.fill(b"b")
        counts.run(sink)
    shutil.rmtree(counts.checkpoint)
    backup.rename(counts.checkpoint)
    counts.fill(b"c")
    with pytest.raises(
        StreamingQueryException,
        match=r"plog.*CheckpointRewound: .*batch 2 is already committed, but the query restarts at",
    ):
        counts.run(sink)
    assert rows(broker, topic) == [(b"a", b"1"), (b"b", b"1"), (b"b", b"2")]


def test_second_write_of_a_batch_is_refused(
    broker: BrokerProcess, new_topic: NewTopic, counts: Counts
) -> None:
    topic = new_topic()
    sink = BatchSink().options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": topic})

    def twice(batch: Any, batch_id: int) -> None:
        sink(batch, batch_id)
        sink(batch, batch_id)

    counts.fill(b"a")
    with pytest.raises(StreamingQueryException, match="call for batch 0 after a first one"):
        counts.run(twice)
    assert rows(broker, topic) == [(b"a", b"1")]


def test_call_outside_of_foreach_batch_is_refused(spark: Any, broker: BrokerProcess) -> None:
    sink = BatchSink().option("kafka.bootstrap.servers", broker.bootstrap).option("topic", "t")
    with pytest.raises(ConfigError, match="not foreachBatch's call for batch 3"):
        sink(spark.range(1), 3)
    of_connect = SimpleNamespace(sparkSession=object())  # it has no attribute sparkContext
    with pytest.raises(ConfigError, match="BatchSink does not support Spark Connect"):
        sink(of_connect, 3)
    with pytest.raises(ConfigError, match="plog sink: unknown option subject for the sink"):
        BatchSink().option("subject", "t")(spark.range(1), 0)
    with pytest.raises(ConfigError, match="invalid sink name 'a/b'"):
        BatchSink("a/b")
