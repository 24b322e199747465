"""Attempts at the tasks of a batch, each in a process of its own: retries, twins and zombies.

No JVM here: what Spark tells a task is put into its context, and what its driver calls is called.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from plog.client.consumer import Consumer
from plog.spark import sink
from plog.spark.sink import BATCH, QUERY, RUN, PlogStreamWriter, TaskResult
from plog.types import TopicPartition
from tests.servers import BrokerProcess
from tests.spark.test_sink import read
from tests.waiting import until

NewTopic = Callable[..., str]
SCHEMA = StructType([StructField("value", BinaryType())])
ASKS = "asks for rows"
PATIENCE_S = 60
_numbers = itertools.count()
# Workers are forked by Spark's daemon, too.
FORK = multiprocessing.get_context("fork")


def write(pipe: Connection, writer: PlogStreamWriter, told: dict[str, str]) -> None:
    """Write what comes by the pipe, as a task does; say what has come of it."""
    task = TaskContext._getOrCreate()
    task._localProperties = told

    def rows() -> Iterator[pa.RecordBatch]:
        while True:
            pipe.send(ASKS)
            values = pipe.recv()
            if values is None:
                return
            yield pa.record_batch({"value": pa.array(values, pa.binary())})

    try:
        pipe.send(writer.write(rows()))
    except Exception as fault:  # noqa: BLE001
        pipe.send(str(fault))


class Attempt:
    """One attempt at a task."""

    def __init__(self, writer: PlogStreamWriter, told: dict[str, str]) -> None:
        self._pipe, other = FORK.Pipe()
        self._process = FORK.Process(target=write, args=(other, writer, told), daemon=True)
        self._process.start()
        other.close()

    def hear(self) -> Any:
        assert self._pipe.poll(PATIENCE_S), "it says nothing"
        return self._pipe.recv()

    def begin(self) -> None:
        """Wait until it has been let write, and wants its rows."""
        assert self.hear() == ASKS

    def take(self, *values: bytes) -> None:
        """Let it have rows, until it wants more."""
        self._pipe.send(values)
        self.begin()

    def end(self) -> TaskResult | str:
        """Let it come to its end; return what it tells the driver, or its failure."""
        self._pipe.send(None)
        told = self.hear()
        self._process.join(PATIENCE_S)
        return told

    def run(self, *values: bytes) -> TaskResult:
        """Write these rows."""
        self.begin()
        self.take(*values)
        told = self.end()
        assert isinstance(told, TaskResult), told
        return told

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


class Query:
    """A query that writes to a topic with one partition, from its driver."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self._broker, self._topic = broker, topic
        self._told = {QUERY: f"attempts-{next(_numbers)}", RUN: "run"}
        self._at = TopicPartition(topic, 0)
        options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
        self.writer = sink.stream_writer(options, SCHEMA)
        self.attempts: list[Attempt] = []

    def attempt(self, batch: int) -> Attempt:
        self.attempts.append(Attempt(self.writer, {**self._told, BATCH: str(batch)}))
        return self.attempts[-1]

    def until_written(self, count: int) -> None:
        """Wait until so many records and markers are in the log."""
        with Consumer(self._broker.bootstrap) as consumer:
            until(lambda: consumer.end_offsets([self._at])[self._at] >= count, f"{count} there")

    def seen(self) -> list[bytes]:
        """Return what readers of committed records see; nothing is left open."""
        return [record.value or b"" for record in read(self._broker, self._topic)]


@pytest.fixture
def query(broker: BrokerProcess, new_topic: NewTopic) -> Iterator[Query]:
    running = Query(broker, new_topic())
    yield running
    for attempt in running.attempts:
        attempt.kill()


def test_of_two_attempts_that_both_write_one_is_seen(query: Query) -> None:
    first, twin = query.attempt(0), query.attempt(0)
    first.run(b"first")
    query.writer.commit([twin.run(b"twin")], 0)
    assert query.seen() == [b"twin"]


def test_nothing_is_seen_of_an_attempt_that_died(query: Query) -> None:
    first = query.attempt(0)
    first.begin()
    first.take(b"first")
    query.until_written(1)
    first.kill()
    query.writer.commit([query.attempt(0).run(b"retried")], 0)
    assert query.seen() == [b"retried"]


@pytest.mark.parametrize("batches", [1, 2])
def test_nothing_is_seen_of_a_zombie_that_goes_on_after_the_commit(
    query: Query, batches: int
) -> None:
    zombie = query.attempt(0)
    zombie.begin()
    zombie.take(b"zombie")
    query.until_written(1)
    for batch in range(batches):
        query.writer.commit([query.attempt(batch).run(b"%d" % batch)], batch)
    zombie.take(b"too late")
    told = zombie.end()
    # Before the marker of its end comes, what it writes is taken, and ended by that with the rest.
    assert isinstance(told, str) or told.already_committed, told
    assert query.seen() == [b"%d" % batch for batch in range(batches)]


@pytest.mark.parametrize("batches", [1, 2])
def test_nothing_is_left_by_a_zombie_that_begins_to_write_after_the_commit(
    query: Query, batches: int
) -> None:
    """Nobody else would end its transaction: it was not open when others were looked for."""
    zombie = query.attempt(0)
    zombie.begin()
    for batch in range(batches):
        query.writer.commit([query.attempt(batch).run(b"%d" % batch)], batch)
    zombie.take(b"zombie")
    told = zombie.end()
    assert isinstance(told, TaskResult), told
    assert told.already_committed
    assert query.seen() == [b"%d" % batch for batch in range(batches)]


def test_zombie_that_died_after_the_commit_is_cleaned_up_with_the_next_batch(query: Query) -> None:
    zombie = query.attempt(0)
    zombie.begin()
    query.writer.commit([query.attempt(0).run(b"0")], 0)
    zombie.take(b"zombie")
    query.until_written(3)
    zombie.kill()
    query.writer.commit([query.attempt(1).run(b"1")], 1)
    assert query.seen() == [b"0", b"1"]


def test_batch_that_is_given_up_leaves_nothing_of_attempts_that_told_nothing(query: Query) -> None:
    zombie, other = query.attempt(0), query.attempt(0)
    zombie.begin()
    zombie.take(b"zombie")
    query.until_written(1)
    query.writer.abort([other.run(b"other"), None], 0)
    assert query.seen() == []
