"""Lines that clients cause: some are told, the rest is counted, and none is missing."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from plog.runtime.bounded_lines import BoundedLines
from tests.bounded import counted, stand_still
from tests.waiting import until

log = logging.getLogger("plog.tests")


class Loop(asyncio.SelectorEventLoop):
    """Its time is what the test says."""

    now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def loop():
    one = Loop()
    yield one
    one.close()


def messages(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_flood_is_told_in_lines_up_to_the_bound_and_then_in_numbers(loop, caplog):
    lines = BoundedLines(log, "%d more", timing=loop, at_once=3, per_s=2)
    for number in range(10):
        lines.log(logging.WARNING, "line %d", number)
    assert messages(caplog) == ["line 0", "line 1", "line 2"]
    lines.tell_rest()
    lines.tell_rest()
    assert messages(caplog)[3:] == ["7 more"]


def test_room_comes_back_with_time_and_no_more_than_there_was(loop, caplog):
    lines = BoundedLines(log, "%d more", timing=loop, at_once=3, per_s=2)
    for wait_s, told in ((0, 3), (1, 2), (0.5, 1), (100, 3)):
        loop.now += wait_s
        caplog.clear()
        for _ in range(10):
            lines.log(logging.ERROR, "line")
        assert messages(caplog) == ["line"] * told


def test_rest_is_told_within_a_second_though_nothing_follows(loop, caplog):
    lines = BoundedLines(log, "%d more", timing=loop, at_once=1, per_s=1)
    lines.log(logging.WARNING, "line")
    lines.log(logging.WARNING, "line")
    loop.now += 1
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert messages(caplog) == ["line", "1 more"]


def test_quiet_lines_take_no_room(loop, caplog):
    lines = BoundedLines(log, "%d more", timing=loop, at_once=1, per_s=1)
    with caplog.at_level(logging.DEBUG, logger=log.name):
        for _ in range(5):
            lines.log(logging.DEBUG, "quiet")
        lines.log(logging.WARNING, "line")
    assert messages(caplog) == ["quiet"] * 5 + ["line"]


def test_lines_of_many_threads_are_told_or_counted(caplog, monkeypatch):
    stand_still(monkeypatch)
    lines = BoundedLines(log, "%d more", at_once=5, per_s=1)

    def tell() -> None:
        for _ in range(20):
            lines.warning("line")

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert messages(caplog).count("line") == 5
    # By a thread of its own: nobody has to ask.
    until(lambda: counted(caplog, r"(\d+) more") == 75, "the rest is told")


def test_each_level_has_its_word(caplog):
    lines = BoundedLines(log, "%d more", least_level=logging.INFO)
    with caplog.at_level(logging.INFO, logger=log.name):
        lines.info("a %s", 1)
        lines.warning("b %s", 2)
        lines.error("c %s", 3)
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "a 1"),
        ("WARNING", "b 2"),
        ("ERROR", "c 3"),
    ]
