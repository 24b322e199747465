"""Waiting for what comes by itself: it decides by what happens, never by when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

PATIENCE_S = 60.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.005, 0.05
TICK_S = 0.02


def until(happened: Callable[[], object], what: str = "so", timeout_s: float = PATIENCE_S) -> None:
    """Look again and again. Raises AssertionError when it does not come true at all.

    The pauses grow to `MAX_PAUSE_S`, as each look takes processor time from the broker.
    """
    end, pause_s = time.monotonic() + timeout_s, MIN_PAUSE_S
    while not happened():
        assert time.monotonic() < end, f"not {what} in {timeout_s} s"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, MAX_PAUSE_S)


class TurnsClock:
    """Counts the seconds in which the threads of this process get their turns.

    A thread sleeps for `TICK_S` again and again. When it wakes up late, the host or the process is
    too busy, and the clock goes on by twice a tick at most.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="turns-clock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _tick(self) -> None:
        before, is_ended = time.monotonic(), False
        while not is_ended:
            is_ended = self._ended.wait(TICK_S)
            now = time.monotonic()
            self.seconds += min(now - before, 2 * TICK_S)
            before = now
