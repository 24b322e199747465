"""A thread that reads again after each change, and after a failure."""

from __future__ import annotations

import logging
import queue

import pytest

from plog.cluster import store_follower
from plog.cluster.store import SessionLost, Unreachable
from plog.cluster.store_follower import StoreFollower

WAIT_S = 40


class Source:
    """The reading: each reading takes the next error, or reports that it was read."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.read: queue.Queue[str] = queue.Queue()
        self.follower = StoreFollower("flights", self._read)

    def _read(self) -> None:
        if self.errors:
            self.read.put("failed")
            raise self.errors.pop(0)
        self.read.put("read")

    def next(self) -> str:
        return self.read.get(timeout=WAIT_S)


def test_it_reads_at_its_start_and_after_each_change() -> None:
    source = Source()
    source.follower.start()
    assert source.next() == "read"
    source.follower.note_change("an event")
    assert source.next() == "read"
    source.follower.stop()
    source.follower.note_change()
    assert source.read.empty()


def test_failure_is_logged_once_and_read_again_without_a_change(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_follower, "PAUSE_S", 0.01)
    caplog.set_level(logging.INFO)
    source = Source(Unreachable("no answer"), SessionLost("over"))
    source.follower.start()
    assert [source.next() for _ in range(3)] == ["failed", "failed", "read"]
    source.follower.stop()
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("WARNING", "cannot read flights, trying again: no answer"),
        ("INFO", "flights can be read again"),
    ]


def test_it_stops_while_it_waits_to_try_again() -> None:
    source = Source(*[Unreachable("no answer")] * 3)
    source.follower.start()
    assert source.next() == "failed"
    source.follower.stop()
    assert len(source.errors) >= 1


def test_follower_that_never_started_stops() -> None:
    Source().follower.stop()
