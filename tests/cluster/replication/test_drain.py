"""A leader that drains: it waits for its followers, and takes records again if no order comes."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plog.cluster.replication import drain as module
from plog.cluster.replication.drain import drain, drain_for_order
from tests.waiting import until

EPOCH = SimpleNamespace(leader_epoch=4)


class Led:
    """A partition. Its followers have everything after some looks at it."""

    def __init__(self, looks: int, *, leads: bool = True) -> None:
        self.looks = looks
        self.leads = leads
        self.leadership = EPOCH
        self.again: list[object] = []

    def refuse_appends(self) -> bool:
        return self.leads

    @property
    def is_drained(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def accept_appends(self, leadership: object) -> None:
        self.again.append(leadership)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0)
    monkeypatch.setattr(module, "AGAIN_AFTER_S", 0.01)


def test_drain_waits_for_the_slowest_follower() -> None:
    led = [Led(0), Led(3), Led(1)]
    assert drain(cast(Any, led)) == 0
    assert [one.looks for one in led] == [-1, -1, -1]


def test_drain_ends_though_a_follower_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WITHIN_S", 0)
    assert drain(cast(Any, [Led(0), Led(9)])) == 1


def test_partition_that_is_led_elsewhere_is_not_waited_for() -> None:
    led = Led(9, leads=False)
    assert drain(cast(Any, [led])) == 0
    assert led.looks == 9


def test_leader_takes_records_again_in_the_same_epoch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WITHIN_S", 0)
    led = Led(9)
    with caplog.at_level(logging.WARNING):
        drain_for_order(cast(Any, [led]))
    assert caplog.messages == ["followers lack records of 1 partition that move"]
    until(lambda: led.again, "it takes records again")
    assert led.again == [EPOCH]
