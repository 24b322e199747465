"""Spark by plog's source and sink on a live Kafka: nothing of what they ask is plog's alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plog.client.admin import Admin
from plog.client.producer import Producer
from plog.client.transaction_admin import TransactionAdmin
from plog.spark.decision_log import DecisionWriter
from plog.spark.decisions import Fenced, commit_batch
from plog.spark.open_transactions import TransactionLost
from plog.spark.sink_options import SinkOptions
from tests.compat.clients import Confluent
from tests.compat.live_kafka import KraftKafka
from tests.spark.copy_query import copy
from tests.spark.test_source import RECORDS
from tests.spark.test_two_phases import TASKS, Run, batches, read
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


ALONE = """log.dirs={directory}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftKafka]:
    place = tmp_path_factory.mktemp("kafka")
    running = KraftKafka(place / "server", ALONE.format(directory=place / "data"))
    yield running
    running.stop()


def rows_of(spark: Any, kafka: KraftKafka, topic: str, **options: str) -> Any:
    return (
        spark.read.format("plog")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", topic)
        .options(**options)
        .load()
    )


def test_rows_of_a_kafka_are_those_that_were_written(spark: Any, kafka: KraftKafka) -> None:
    Confluent().produce(kafka.bootstrap, "rows", RECORDS, codec="zstd")
    rows = rows_of(spark, kafka, "rows", includeHeaders="true").orderBy("offset").collect()
    found = [
        (row.key, row.value, tuple((header.key, header.value) for header in row.headers or ()))
        for row in rows
    ]
    assert found == [(sent.key, sent.value, tuple(sent.headers)) for sent in RECORDS]
    late = rows_of(spark, kafka, "rows", startingTimestamp="3").selectExpr("min(offset)")
    assert late.first()[0] == min(
        offset
        for offset, sent in enumerate(RECORDS)
        if sent.timestamp is None or sent.timestamp > 2
    )


def test_stream_copies_a_topic_of_a_kafka_exactly_once(
    spark: Any, kafka: KraftKafka, tmp_path: Path
) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("source", partitions=TASKS)
        admin.create_topic("target", partitions=TASKS)
    written = []
    for turn in range(2):
        more = [b"%d" % n for n in range(turn * 1_000, turn * 1_000 + 500)]
        written += more
        with Producer(kafka.bootstrap) as producer:
            for n, value in enumerate(more):
                producer.send("source", value, partition=n % TASKS)
        copy(spark, kafka.bootstrap, "source", "target", str(tmp_path / "cp"), rows_per_batch=200)
        assert sorted(read(kafka, "target")) == sorted(written)
    with TransactionAdmin(kafka.bootstrap) as admin:
        # Its last record comes behind the markers.
        until(lambda: {one.state for one in admin.transactions()} == {"CompleteCommit"}, "complete")


def test_batches_stand_once_on_a_kafka(kafka: KraftKafka) -> None:
    options = SinkOptions(kafka.bootstrap)
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("t", partitions=TASKS)
    names = (f"run-{n}" for n in itertools.count())

    def start() -> Run:
        return Run(options, "query", "t", next(names))

    run = start()
    run.run(0)
    run.run(1)
    # A driver that died before it decided, and turns up late.
    late, left = run, run.write(2)
    run = start()
    run.run(2)
    with pytest.raises((Fenced, TransactionLost)):
        late.phases().commit(2, left)
    # One that died after it decided, and had committed one of two transactions.
    left = run.write(3)
    log = run.log()
    with DecisionWriter(log, options) as driver:
        last = log.last()
        assert last is not None
        driver.write(commit_batch(last, 3, left))
    with TransactionAdmin(kafka.bootstrap) as admin:
        admin.end(left[0], commit=True)
    run = start()
    assert run.write(3) == []
    # A twin that lost.
    written = run.write(4)
    run.task(4, 0)
    run.phases().commit(4, written)
    assert sorted(read(kafka, "t")) == batches(0, 1, 2, 3, 4)
