from __future__ import annotations

import itertools
import threading

import pytest

from plog.runtime.clock import ManualClock, SystemClock
from plog.storage.scheduler import Scheduler


def test_tasks_run_in_the_order_of_their_times() -> None:
    clock = ManualClock()
    scheduler = Scheduler(clock, "test")
    ran: list[str] = []
    scheduler.after(20, lambda: ran.append("b"))
    scheduler.after(10, lambda: ran.append("a"))
    scheduler.after(20, lambda: ran.append("c"))
    scheduler.soon(lambda: ran.append("now"))
    assert scheduler.run_due() == 1
    assert ran == ["now"]
    clock.advance(9)
    assert scheduler.run_due() == 0
    clock.advance(11)
    assert scheduler.run_due() == 3
    assert ran == ["now", "a", "b", "c"]


def test_repeated_task_comes_again_after_its_interval() -> None:
    clock = ManualClock()
    scheduler = Scheduler(clock, "test")
    ran: list[int] = []
    scheduler.every(10, lambda: ran.append(clock.monotonic_ms()))
    for _ in range(35):
        clock.advance(1)
        scheduler.run_due()
    assert ran == [10, 20, 30]


def test_tasks_of_seconds_come_together_and_at_least_once_in_their_interval() -> None:
    clock = ManualClock()
    scheduler = Scheduler(clock, "test")
    ran: list[tuple[str, int]] = []
    intervals_ms = {"second": 1_000, "two": 2_000, "flush": 1_700}
    for n, (name, interval_ms) in enumerate(intervals_ms.items()):
        clock.advance(130 * n)  # they begin one after the other
        scheduler.every(interval_ms, lambda name=name: ran.append((name, clock.monotonic_ms())))
    wake_ups = 0
    for _ in range(10_000):
        clock.advance(1)
        wake_ups += scheduler.run_due() > 0
    assert wake_ups <= 13  # the three first ones, and then one in each second
    for name, interval_ms in intervals_ms.items():
        times = [at for one, at in ran if one == name]
        gaps = [later - before for before, later in itertools.pairwise(times)]
        assert all(interval_ms - 1_000 < gap <= interval_ms for gap in gaps), (name, gaps)
        assert all(at % 1_000 == 0 for at in times[1:])


def test_repeated_task_may_come_earlier_or_later_at_first() -> None:
    clock = ManualClock()
    scheduler = Scheduler(clock, "test")
    ran: list[tuple[str, int]] = []
    for name, first_ms in (("early", 0), ("late", 15)):
        scheduler.every(
            10, lambda name=name: ran.append((name, clock.monotonic_ms())), first_ms=first_ms
        )
    scheduler.run_due()
    for _ in range(26):
        clock.advance(1)
        scheduler.run_due()
    assert ran == [("early", 0), ("early", 10), ("late", 15), ("early", 20), ("late", 25)]


def test_task_that_raises_is_logged_and_the_others_and_its_next_run_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    scheduler = Scheduler(clock, "test")
    ran: list[str] = []

    def fails() -> None:
        ran.append("fails")
        raise ZeroDivisionError("unexpected")

    scheduler.every(10, fails)
    scheduler.after(10, lambda: ran.append("other"))
    for _ in range(2):
        clock.advance(10)
        scheduler.run_due()
    assert ran == ["fails", "other", "fails"]
    lines = [record for record in caplog.records if record.exc_info]
    assert [line.getMessage() for line in lines] == ["test: a task failed"] * 2
    assert "ZeroDivisionError: unexpected" in caplog.text


def test_thread_outlives_a_task_that_raises() -> None:
    scheduler = Scheduler(SystemClock(), "test")
    scheduler.start()
    ran = threading.Event()
    scheduler.soon(lambda: [][0])
    scheduler.soon(ran.set)
    assert ran.wait(10)
    scheduler.stop()


def test_wall_clock_jumps_do_not_matter() -> None:
    clock = ManualClock(1000)
    scheduler = Scheduler(clock, "test")
    ran: list[int] = []
    scheduler.after(10, lambda: ran.append(1))
    clock.jump_to(10**12)
    assert scheduler.run_due() == 0


def test_thread_wakes_for_an_earlier_task_and_stops() -> None:
    scheduler = Scheduler(SystemClock(), "test")
    scheduler.after(3_600_000, lambda: None)
    scheduler.start()
    ran = threading.Event()
    scheduler.soon(ran.set)
    assert ran.wait(10)
    scheduler.stop()


def test_task_may_stop_its_own_scheduler() -> None:
    scheduler = Scheduler(SystemClock(), "test")
    stopped = threading.Event()

    def stop() -> None:
        scheduler.stop()
        stopped.set()

    scheduler.soon(stop)
    scheduler.start()
    assert stopped.wait(10)
    scheduler.stop()
