"""The writer behind `BatchSink`, without Spark: a batch whose run dies at each request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from plog.errors import ConfigError
from plog.spark import links, sink
from plog.spark.decisions import CheckpointRewound, Fenced, SecondWrite
from plog.spark.sink_options import BATCH_OPTION, QUERY_OPTION, RUN_OPTION, SinkOptions
from tests.servers import BrokerProcess
from tests.spark.test_two_phases import TASKS, Run, batches, read, rounds

NewTopic = Callable[..., str]
SCHEMA = StructType([StructField("value", BinaryType()), StructField("partition", IntegerType())])
_numbers = itertools.count()


class BatchRun(Run):
    """A run whose batches come from foreachBatch."""

    def writer(self, batch: int) -> sink.ForeachBatchWriter:
        links._links.clear()  # the process of an earlier run may have died in the middle of a call
        made = sink.writer(
            {
                "kafka.bootstrap.servers": self.options.bootstrap_servers,
                "topic": self.topic,
                QUERY_OPTION: self.query,
                RUN_OPTION: self.name,
                BATCH_OPTION: str(batch),
            },
            SCHEMA,
            overwrite=False,
        )
        assert isinstance(made, sink.ForeachBatchWriter)
        return made

    def part(self, batch: int, number: int) -> sink.TaskResult:
        """Write a task's records of a batch."""
        values = [b"%d-%d-%d" % (batch, number, n) for n in range(3)]
        partitions = pa.array([number % TASKS] * 3, pa.int32())
        rows = pa.record_batch({"value": pa.array(values), "partition": partitions})
        return self.writer(batch).write(iter([rows]))

    def run(self, batch: int) -> None:
        """Write a batch and commit it, unless it is committed."""
        self.writer(batch).commit([self.part(batch, number) for number in range(TASKS)])


@pytest.fixture
def start(
    broker: BrokerProcess, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], BatchRun]]:
    """Start runs of one new query, one after the other."""
    monkeypatch.setattr(sink, "set_up_worker", lambda: None)  # this process is no worker of Spark
    query, topic = f"counts/foreach-{next(_numbers)}", new_topic(TASKS)
    runs: list[BatchRun] = []

    def begin() -> BatchRun:
        runs.append(BatchRun(SinkOptions(broker.bootstrap), query, topic, f"run-{len(runs)}"))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


@pytest.mark.parametrize("sent", [pytest.param(False, marks=pytest.mark.long), True])
def test_run_dies_at_any_request_and_each_batch_is_written_once(
    broker: BrokerProcess, start: Callable[[], Run], monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    run, last = rounds(start, monkeypatch, ((step, sent) for step in itertools.count(1)))
    assert last > 10
    assert sorted(read(broker, run.topic)) == batches(*range(last + 1))


def test_later_run_fences_an_earlier_one_that_writes_the_same_batch(
    broker: BrokerProcess, start: Callable[[], BatchRun]
) -> None:
    early, late = start(), start()
    early.run(0)
    parts = [early.part(1, number) for number in range(TASKS)]
    late.run(1)
    with pytest.raises(Fenced):
        early.writer(1).commit(parts)
    with pytest.raises(Fenced):
        early.part(2, 0)
    assert sorted(read(broker, early.topic)) == batches(0, 1)


def test_older_checkpoint_is_refused(broker: BrokerProcess, start: Callable[[], BatchRun]) -> None:
    before, again = start(), start()
    for batch in range(3):
        before.run(batch)
    with pytest.raises(CheckpointRewound, match="batch 2 is already committed"):
        again.run(1)
    again.run(2)
    assert sorted(read(broker, before.topic)) == batches(0, 1, 2)


def test_rows_of_a_committed_batch_are_read_to_their_end(start: Callable[[], BatchRun]) -> None:
    """Spark saves the state of an aggregation only then."""
    before, again = start(), start()
    before.run(0)
    rows = iter([pa.record_batch({"value": pa.array([b"v"])})] * 3)
    assert again.writer(0).write(rows).already_committed
    assert list(rows) == []


def test_second_write_in_one_run_is_an_error(
    broker: BrokerProcess, start: Callable[[], BatchRun]
) -> None:
    """Its rows are skipped, whether its tasks begin before the first commit or after it."""
    run = start()
    run.run(0)
    with pytest.raises(SecondWrite, match="is already committed by this run"):
        run.run(0)
    run.run(1)
    with pytest.raises(SecondWrite):
        run.run(0)
    later = start()
    later.run(1)  # committed by an earlier run
    assert sorted(read(broker, run.topic)) == batches(0, 1)


def test_second_write_whose_tasks_end_after_the_first_commit_is_an_error(
    broker: BrokerProcess, start: Callable[[], BatchRun]
) -> None:
    run = start()

    def rows() -> Iterator[pa.RecordBatch]:
        run.run(0)
        yield pa.record_batch({"value": pa.array([b"second"])})

    part = run.writer(0).write(rows())
    assert part.already_committed
    with pytest.raises(SecondWrite):
        run.writer(0).commit([part])
    assert sorted(read(broker, run.topic)) == batches(0)


def test_batch_that_fails_leaves_nothing(
    broker: BrokerProcess, start: Callable[[], BatchRun]
) -> None:
    run = start()
    run.writer(0).abort([run.part(0, 0), None])
    assert read(broker, run.topic) == []
    run.run(0)
    assert sorted(read(broker, run.topic)) == batches(0)


def test_batch_without_the_report_of_a_task_is_not_committed(
    broker: BrokerProcess, start: Callable[[], BatchRun]
) -> None:
    run = start()
    reports = [run.part(0, 0), None]
    with pytest.raises(sink.InconsistentTasks, match="1 of the 2 tasks of batch 0 sent no report"):
        run.writer(0).commit(reports)
    with pytest.raises(sink.InconsistentTasks, match="1 of the 1 tasks of batch 0 sent no report"):
        run.writer(0).commit([None])
    run.writer(0).abort(reports)
    assert read(broker, run.topic) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({BATCH_OPTION: "1"}, "belong together: only BatchSink sets them"),
        (
            {QUERY_OPTION: "q", RUN_OPTION: "r", BATCH_OPTION: "-1"},
            "batchSink.batch: -1 is below 0",
        ),
    ],
)
def test_incomplete_batch_is_refused(options: dict[str, str], words: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t", **options}
    with pytest.raises(ConfigError, match=words):
        sink.writer(given, SCHEMA, overwrite=False)


def test_stream_of_the_sink_does_not_take_the_batch_of_another() -> None:
    given = {QUERY_OPTION: "q", RUN_OPTION: "r", BATCH_OPTION: "1"}
    with pytest.raises(ConfigError, match="applies to foreachBatch only"):
        sink.stream_writer({"kafka.bootstrap.servers": "h:1", "topic": "t", **given}, SCHEMA)
