"""Committed reads beside those who change the log meanwhile: nothing aborted is told as committed.

By the handler alone: what happens between the steps of a read is put there by the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plog.errors import ErrorCode
from plog.storage.log import Log
from plog.types import TopicPartition
from tests.committed import kept_records
from tests.handlers.running import Running
from tests.handlers.wire import create_topic, fetch_request, fetched, fresh_name
from tests.planes import Plane
from tests.transactions.transactor import COMMITTED, Transactor


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    one = Running(
        tmp_path,
        plane=Plane.PLAIN,
        transaction_state_log_num_partitions=1,
        offsets_topic_num_partitions=1,
    )
    yield one
    one.stop()


@pytest.fixture
def at(running: Running) -> TopicPartition:
    return TopicPartition(create_topic(running.wire, fresh_name(), 1)[0], 0)


@pytest.fixture
def log(running: Running, at: TopicPartition) -> Log:
    """Two segments, of which the first holds an aborted transaction."""
    one = Transactor(running.wire, fresh_name()).start()
    one.join(at)
    one.send(at, b"aborted")
    one.finish(commit=False)
    found = running.broker._replicas.leader(at).log
    found.roll()
    one.join(at)
    one.send(at, b"kept")
    one.finish(commit=True)
    return found


def delete_first_segment(log: Log) -> None:
    log.delete_records_before(log.native.segments[1].base_offset)
    log.apply_retention(0)
    assert len(log.native.segments) == 1


def between(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None], *, after: bool) -> None:
    """Have something done once, right before or after the next read of a log."""
    read, to_do = Log.read, [do]

    def reading(self: Log, *args: Any) -> Any:
        if to_do and not after:
            to_do.pop()()
        found = read(self, *args)
        if to_do:
            to_do.pop()()
        return found

    monkeypatch.setattr(Log, "read", reading)


@pytest.mark.parametrize("partition_max_bytes", [1, 1 << 20], ids=["cut", "whole"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_aborted_records_that_are_deleted_while_they_are_read_are_not_told_as_committed(
    running: Running,
    at: TopicPartition,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
    partition_max_bytes: int,
) -> None:
    between(monkeypatch, lambda: delete_first_segment(log), after=after)
    request = fetch_request(
        (*at, 0), isolation_level=COMMITTED, partition_max_bytes=partition_max_bytes
    )
    (part,) = fetched(running.wire.ask(request, 12)).values()
    assert part.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert [record.value for record in kept_records(part)[0]] == []
