"""The sink's batches on a live Kafka: nothing of how they come to stand is plog's alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.client.transaction_admin import TransactionAdmin
from plog.spark.decision_log import DecisionWriter
from plog.spark.decisions import Fenced, commit_batch
from plog.spark.open_transactions import TransactionLost
from plog.spark.sink_options import SinkOptions
from tests.compat.live_kafka import KraftKafka
from tests.spark.test_two_phases import TASKS, Run, batches, read

ALONE = """log.dirs={directory}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KraftKafka]:
    running = KraftKafka(tmp_path / "kafka", ALONE.format(directory=tmp_path / "data"))
    yield running
    running.stop()


@pytest.mark.timeout(400)
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
