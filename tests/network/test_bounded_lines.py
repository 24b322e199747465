"""Lines that clients cause: some are told, the rest is counted, and none is missing."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from plog.network.bounded_lines import BoundedLines
from plog.network.control_plane import CLOSINGS_AT_ONCE
from tests.network.server import Server, request

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
    lines = BoundedLines(log, loop, "%d more", at_once=3, per_s=2)
    for number in range(10):
        lines.log(logging.WARNING, "line %d", number)
    assert messages(caplog) == ["line 0", "line 1", "line 2"]
    lines.tell_rest()
    lines.tell_rest()
    assert messages(caplog)[3:] == ["7 more"]


def test_room_comes_back_with_time_and_no_more_than_there_was(loop, caplog):
    lines = BoundedLines(log, loop, "%d more", at_once=3, per_s=2)
    for wait_s, told in ((0, 3), (1, 2), (0.5, 1), (100, 3)):
        loop.now += wait_s
        caplog.clear()
        for _ in range(10):
            lines.log(logging.ERROR, "line")
        assert messages(caplog) == ["line"] * told


def test_rest_is_told_within_a_second_though_nothing_follows(loop, caplog):
    lines = BoundedLines(log, loop, "%d more", at_once=1, per_s=1)
    lines.log(logging.WARNING, "line")
    lines.log(logging.WARNING, "line")
    loop.now += 1
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert messages(caplog) == ["line", "1 more"]


def test_quiet_lines_take_no_room(loop, caplog):
    lines = BoundedLines(log, loop, "%d more", at_once=1, per_s=1)
    with caplog.at_level(logging.DEBUG, logger=log.name):
        for _ in range(5):
            lines.log(logging.DEBUG, "quiet")
        lines.log(logging.WARNING, "line")
    assert messages(caplog) == ["quiet"] * 5 + ["line"]


def test_flood_of_hostile_connections_leaves_few_lines_and_their_number(caplog):
    hostile = 3 * CLOSINGS_AT_ONCE
    with Server() as server:
        for _ in range(hostile):
            client = server.connect()
            client.sendall(b"\xff" * 8)
            assert client.is_closed_by_server()
            client.close()
        client = server.connect()
        client.sendall(request(1))
        assert client.answer() == request(1)[4:]
        client.close()
    told = [line for line in messages(caplog) if "closing connection from" in line]
    rest = re.findall(r"(\d+) further connections were closed", "\n".join(messages(caplog)))
    assert CLOSINGS_AT_ONCE <= len(told) < hostile
    assert len(told) + sum(map(int, rest)) == hostile
