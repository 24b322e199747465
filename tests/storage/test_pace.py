"""What compaction owes time for its bytes, on a clock that is set by hand."""

from __future__ import annotations

import math
import sys

import pytest

from plog.runtime.clock import ManualClock
from plog.storage.pace import Pace

ENDLESS = sys.float_info.max
"""The rate by default."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pace(clock: ManualClock) -> Pace:
    return Pace(clock)


def test_bytes_are_paid_for_in_the_order_in_which_they_were_told_of(
    pace: Pace, clock: ManualClock
) -> None:
    first, second = pace.tell(1000), pace.tell(500)
    assert [pace.left_ms(told, 100) for told in (first, second)] == [10_000, 15_000]
    clock.advance(10_000)
    assert [pace.left_ms(told, 100) for told in (first, second)] == [0, 5000]
    third = pace.tell(100)
    assert [pace.left_ms(told, 100) for told in (second, third)] == [5000, 6000]
    clock.advance(6000)
    assert [pace.left_ms(told, 100) for told in (second, third)] == [0, 0]


def test_idleness_saves_nothing_up(pace: Pace, clock: ManualClock) -> None:
    assert pace.left_ms(pace.tell(100), 100) == 1000
    clock.advance(1_000_000)
    assert pace.left_ms(pace.tell(100), 100) == 1000


@pytest.mark.parametrize(("rate", "left_ms"), [(1000, 600), (1, 600_000), (ENDLESS, 0)])
def test_what_is_still_owed_is_paid_at_the_rate_of_now(
    pace: Pace, clock: ManualClock, rate: float, left_ms: int
) -> None:
    told = pace.tell(1000)
    pace.left_ms(told, 100)
    clock.advance(4000)
    assert pace.left_ms(told, rate) == left_ms
    clock.advance(left_ms)
    assert pace.left_ms(told, rate) == 0


def test_less_than_a_millisecond_is_not_waited_for_and_not_forgotten(pace: Pace) -> None:
    waits = [pace.left_ms(pace.tell(40), 100_000) for _ in range(5)]
    assert waits == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("rate", [0, -5, 1e-300])
def test_hardly_anything_at_all_is_a_byte_a_second(pace: Pace, rate: float) -> None:
    assert pace.left_ms(pace.tell(20), rate) == 20_000


@pytest.mark.parametrize("rate", [ENDLESS, math.inf])
def test_a_rate_that_knows_no_end_is_waited_for_by_nobody(
    pace: Pace, clock: ManualClock, rate: float
) -> None:
    for ms in (0, 0, 1, 1_000_000):
        clock.advance(ms)
        assert pace.left_ms(pace.tell(1 << 40), rate) == 0
