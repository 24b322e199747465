"""`BatchSink` refuses a second call for a batch, without Spark: its rows would be skipped."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from plog.errors import ConfigError
from plog.spark import batch_sink
from plog.spark.batch_sink import BATCH, QUERY, RUN, BatchSink
from plog.spark.decisions import SecondWrite
from plog.spark.option_values import SERVERS
from plog.spark.sink_options import BATCH_OPTION, QUERY_OPTION, RUN_OPTION

_queries = (f"query-{number}" for number in itertools.count())


class StreamRun:
    """A run of a query, as `foreachBatch` shows it, and its saved batches.

    `on_save` is called inside `save()`.
    """

    def __init__(self, query: str) -> None:
        self.query, self.run = query, str(uuid.uuid4())
        self.saved: list[dict[str, str]] = []
        self.on_save: Callable[[], object] = lambda: None

    def batch(self, batch_id: int) -> Any:
        return _Batch(self, batch_id)

    def call(self, sink: BatchSink, batch_id: int) -> None:
        sink(self.batch(batch_id), batch_id)


class _Batch:
    """A DataFrame, its session, its context and its writer, as far as a sink uses them."""

    def __init__(self, run: StreamRun, batch_id: int) -> None:
        self._run = run
        self._properties = {QUERY: run.query, RUN: run.run, BATCH: str(batch_id)}
        self._options: dict[str, str] = {}
        self.sparkSession = self.sparkContext = self.write = self

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self._properties.get(name)

    def format(self, name: str) -> _Batch:
        assert name == "plog"
        return self

    def mode(self, name: str) -> _Batch:
        assert name == "append"
        return self

    def options(self, **options: str) -> _Batch:
        self._options = options
        return self

    def save(self) -> None:
        self._run.saved.append(self._options)
        self._run.on_save()


@pytest.fixture
def run() -> StreamRun:
    return StreamRun(next(_queries))


def sink_to(servers: str, name: str = "", **options: str) -> BatchSink:
    return BatchSink(name, {SERVERS: servers, "topic": "t", **options})


def identities(run: StreamRun) -> list[tuple[str, str, str]]:
    return [(one[QUERY_OPTION], one[RUN_OPTION], one[BATCH_OPTION]) for one in run.saved]


def test_each_batch_is_written_under_its_own_identity(run: StreamRun) -> None:
    sink = sink_to("h:1")
    for batch in range(3):
        run.call(sink, batch)
    assert identities(run) == [(run.query, run.run, str(batch)) for batch in range(3)]


@pytest.mark.parametrize("servers", ["h:1", "127.0.0.1:1", "g:1,h:1", "h:1,g:1", "another:1"])
def test_second_sink_without_a_name_is_refused_at_any_address(run: StreamRun, servers: str) -> None:
    run.call(sink_to("h:1"), 0)
    with pytest.raises(SecondWrite, match="call for batch 0 after a first one in the same"):
        run.call(sink_to(servers), 0)
    assert identities(run) == [(run.query, run.run, "0")]


def test_sinks_with_different_names_write_the_same_batch(run: StreamRun) -> None:
    for name in ("", "copy", "Copy"):
        run.call(sink_to("h:1", name), 0)
    expected = [run.query, f"copy/{run.query}", f"Copy/{run.query}"]
    assert [query for query, _, _ in identities(run)] == expected
    with pytest.raises(SecondWrite):
        run.call(sink_to("h:1", "copy"), 0)


def test_other_decisions_topic_does_not_replace_a_name(run: StreamRun) -> None:
    """The sinks would share their transactional ids."""
    run.call(sink_to("h:1"), 0)
    with pytest.raises(SecondWrite):
        run.call(sink_to("h:1", decisionsTopic="d"), 0)


def test_call_while_the_first_one_writes_is_refused(run: StreamRun) -> None:
    sink = sink_to("h:1")
    with ThreadPoolExecutor(1) as other_thread:

        def write_at_the_same_time() -> None:
            run.on_save = lambda: None
            with pytest.raises(SecondWrite):
                other_thread.submit(run.call, sink, 0).result(timeout=30)

        run.on_save = write_at_the_same_time
        run.call(sink, 0)
    assert len(run.saved) == 1


def test_call_after_a_failed_one_is_refused_until_the_next_run(run: StreamRun) -> None:
    """The failed call may have committed its batch. The next run finds that out."""
    sink = sink_to("h:1")

    def lose_the_response() -> None:
        raise ConnectionError("connection closed after the decision")

    run.on_save = lose_the_response
    with pytest.raises(ConnectionError):
        run.call(sink, 4)
    run.on_save = lambda: None
    with pytest.raises(SecondWrite, match="After a call that failed, let its error end the query"):
        run.call(sink, 4)
    restarted = StreamRun(run.query)
    restarted.call(sink, 4)
    assert identities(restarted) == [(run.query, restarted.run, "4")]


def test_call_after_one_for_a_later_batch_is_refused(run: StreamRun) -> None:
    """A thread that outlives its batch comes too late: later batches are committed."""
    sink = sink_to("h:1")
    for batch in (0, 2):
        run.call(sink, batch)
    for _ in range(2):
        with pytest.raises(SecondWrite, match="call for batch 1 after one for batch 2 in the same"):
            run.call(sink, 1)
    with pytest.raises(SecondWrite):
        run.call(sink, 2)
    run.call(sink, 3)
    assert len(run.saved) == 3


def test_thread_of_an_earlier_run_does_not_permit_a_second_write(run: StreamRun) -> None:
    sink, restarted = sink_to("h:1"), StreamRun(run.query)
    restarted.call(sink, 0)
    run.call(sink, 0)  # the writer refuses it: a later run has registered
    with pytest.raises(SecondWrite):
        restarted.call(sink, 0)


def test_invalid_call_does_not_count(run: StreamRun) -> None:
    with pytest.raises(ConfigError, match="unknown option subject"):
        run.call(sink_to("h:1", subject="t"), 0)
    run.call(sink_to("h:1"), 0)
    assert len(run.saved) == 1


def test_runs_that_wrote_most_recently_are_remembered(
    run: StreamRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_sink, "MAX_RUNS", 2)
    monkeypatch.setattr(batch_sink, "_last_batches", {})
    sink = sink_to("h:1")
    runs = [run, StreamRun(run.query), StreamRun(run.query)]
    for batch in range(3):
        for one in runs[:2]:
            one.call(sink, batch)
    runs[0].call(sink, 3)
    runs[2].call(sink, 3)  # instead of the run that has written nothing since batch 2
    for one in (runs[0], runs[2]):
        with pytest.raises(SecondWrite):
            one.call(sink, 3)
    assert len(batch_sink._last_batches) == 2
