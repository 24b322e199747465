import time

import pytest

from plog.runtime.clock import Clock, ManualClock, SystemClock


def test_system_clock_follows_the_machine():
    clock: Clock = SystemClock()
    before = int(time.time() * 1000)
    assert before - 1 <= clock.now_ms() <= int(time.time() * 1000) + 1
    first = clock.monotonic_ms()
    assert clock.monotonic_ms() >= first
    first = clock.since_boot_ms()
    assert clock.since_boot_ms() >= first
    # It counts what the host has slept since it was started, too.
    assert clock.since_boot_ms() >= time.monotonic_ns() // 1_000_000 - 1


def test_manual_clock_stands_still_until_advanced():
    clock: Clock = ManualClock(start_ms=1_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_000, 0)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1_250, 250)


def test_wall_jump_leaves_monotonic_time_alone():
    clock = ManualClock(start_ms=1_000)
    clock.advance(10)
    clock.jump_to(5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5, 10)


def test_host_that_sleeps_stops_monotonic_time_alone():
    clock = ManualClock(start_ms=1_000)
    clock.advance(10)
    clock.suspend(500)
    assert (clock.now_ms(), clock.monotonic_ms(), clock.since_boot_ms()) == (1_510, 10, 510)


def test_advance_backwards_is_refused():
    with pytest.raises(ValueError, match="advance by -1"):
        ManualClock().advance(-1)
