"""A clock that is suddenly ahead is doubted for an hour, one that goes back is not."""

from __future__ import annotations

import pytest

from plog.runtime.clock import ManualClock
from plog.runtime.trusted_time import DOUBT_MS, STEP_MS, TrustedTime

NOW_MS = 1_700_000_000_000
TEN_YEARS_MS = 10 * 365 * 86_400_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


def test_clock_that_goes_is_believed(clock: ManualClock) -> None:
    trusted = TrustedTime(clock)
    for _ in range(100):
        clock.advance(DOUBT_MS)
        assert trusted.now_ms() == clock.now_ms()
        clock.jump_to(clock.now_ms() + STEP_MS)  # which is gained bit by bit
        assert trusted.now_ms() == clock.now_ms()


def test_clock_of_a_host_that_slept_is_believed(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    trusted = TrustedTime(clock)
    for _ in range(3):
        clock.suspend(10 * DOUBT_MS)
        assert trusted.now_ms() == clock.now_ms()
    assert not caplog.records


def test_sleep_is_no_time_in_which_a_clock_could_be_set_right(clock: ManualClock) -> None:
    trusted = TrustedTime(clock)
    clock.jump_to(NOW_MS + TEN_YEARS_MS)
    assert trusted.now_ms() == NOW_MS
    clock.suspend(2 * DOUBT_MS)
    assert trusted.now_ms() == NOW_MS + 2 * DOUBT_MS
    clock.advance(DOUBT_MS)
    assert trusted.now_ms() == clock.now_ms()


def test_clock_that_was_ahead_for_a_moment_moved_nothing(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    trusted = TrustedTime(clock)
    clock.advance(1000)
    clock.jump_to(NOW_MS + TEN_YEARS_MS)
    for n in range(10):
        assert trusted.now_ms() == NOW_MS + 1000 + n
        clock.advance(1)
    clock.jump_to(NOW_MS + 1010)
    assert trusted.now_ms() == NOW_MS + 1010
    warned, believed = [record.getMessage() for record in caplog.records]
    assert warned.startswith("the clock was set ahead by 315359999 s: ")
    assert believed == "the clock is trusted again"


def test_clock_that_stays_ahead_is_believed_after_an_hour(clock: ManualClock) -> None:
    trusted = TrustedTime(clock)
    clock.jump_to(NOW_MS + TEN_YEARS_MS)
    assert trusted.now_ms() == NOW_MS
    clock.advance(DOUBT_MS - 1)
    assert trusted.now_ms() == NOW_MS + DOUBT_MS - 1
    clock.advance(1)
    assert trusted.now_ms() == clock.now_ms()
    clock.advance(1)
    assert trusted.now_ms() == clock.now_ms()


def test_clock_that_went_back_is_believed_at_once(clock: ManualClock) -> None:
    trusted = TrustedTime(clock)
    for now_ms in (NOW_MS - 3_600_000, 0):
        clock.jump_to(now_ms)
        assert trusted.now_ms() == now_ms
    # and doubted when it comes again
    clock.jump_to(NOW_MS)
    assert trusted.now_ms() == 0
