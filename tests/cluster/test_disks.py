"""The marks of slow disks, and the threads that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plog.cluster import disks as module
from plog.cluster.disks import Disks

A, B = Path("/a"), Path("/b")


def test_slow_append_marks_its_disk_until_many_in_a_row_are_fast() -> None:
    disks = Disks()
    disks.note_append(A, 20_001)
    assert disks.is_slow(A)
    assert not disks.is_slow(B)
    for _ in range(63):
        disks.note_append(A, 20_000)
    assert disks.is_slow(A)
    disks.note_append(A, 0)
    assert not disks.is_slow(A)


def test_one_of_several_is_slow_until_it_has_been_fast_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STEADY_US", 3_600_000_000)
    disks = Disks(several=True)
    assert disks.is_slow(A)  # nothing is known of it
    for _ in range(64):
        disks.note_append(A, 0)
    assert not disks.is_slow(A)
    disks.note_append(A, 20_001)
    for _ in range(1000):
        disks.note_append(A, 0)
    assert disks.is_slow(A)
    monkeypatch.setattr(module, "STEADY_US", 1)
    disks.note_append(B, 20_001)
    for _ in range(64):
        disks.note_append(B, 0)
    assert not disks.is_slow(B)


@pytest.mark.parametrize("several", [True, False])
def test_who_only_looks_is_told_the_same_and_makes_nothing(several: bool) -> None:
    disks = Disks(several=several)
    assert disks.counts_as_slow(A) is several
    assert not disks._workers
    assert disks.is_slow(A) is several
    disks.note_append(A, 20_001)
    assert disks.counts_as_slow(A)
    assert disks.counts_as_slow(B) is several


def test_mark_is_that_of_the_fast_paths_worker() -> None:
    disks = Disks()
    worker = disks.worker(A)
    worker.note_time(1_000_000)
    assert disks.is_slow(A)
    assert disks.worker(A) is worker


def test_calls_for_one_disk_wait_for_each_other_and_no_other_disks() -> None:
    disks = Disks()
    may_end = threading.Event()
    done: list[str] = []

    def first() -> None:
        assert may_end.wait(20)
        done.append("first of a")

    async def run() -> None:
        calls = [
            asyncio.ensure_future(disks.in_thread(A, first)),
            asyncio.ensure_future(disks.in_thread(A, done.append, "second of a")),
        ]
        await disks.in_thread(B, done.append, "b")
        may_end.set()
        await asyncio.gather(*calls)

    asyncio.run(run())
    disks.stop()
    assert done == ["b", "first of a", "second of a"]


def test_what_a_call_raises_is_raised_to_who_waits() -> None:
    disks = Disks()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(disks.in_thread(A, divmod, 1, 0))
    disks.stop()


class Changed:
    """A log as `Disks` sees it, which somebody may be changing."""

    def __init__(self, log_dir: Path, *, by_others: bool = False) -> None:
        self.log_dir = log_dir
        self.holds = 0
        self._by_others = by_others

    def try_hold(self) -> bool:
        self.holds += not self._by_others
        return not self._by_others

    def let_go(self) -> None:
        self.holds -= 1


@pytest.mark.parametrize("why", [None, "slow", "held"])
def test_call_is_made_where_it_waits_for_nobody(why: str | None) -> None:
    disks, log = Disks(several=why == "slow"), Changed(A, by_others=why == "held")
    seen: list[str] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        assert log.holds == 0
        seen.append("waits")
        yield

    def call() -> int:
        seen.append(threading.current_thread().name)
        return log.holds

    held = asyncio.run(disks.at_log(log, call, waiting=waiting))  # type: ignore[arg-type]
    disks.stop()
    assert log.holds == 0
    if why is None:
        assert (held, seen) == (1, [threading.current_thread().name])
    else:
        assert (held, seen) == (0, ["waits", f"disk {A}_0"])


def test_call_that_fails_lets_go_of_the_log() -> None:
    disks, log = Disks(), Changed(A)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(disks.at_log(log, lambda: 1 // 0))  # type: ignore[arg-type]
    assert log.holds == 0
