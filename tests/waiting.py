"""Waiting for what comes by itself: it decides by what happens, never by when."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.005, 0.05


def until(happened: Callable[[], object], what: str = "so", timeout_s: float = PATIENCE_S) -> None:
    """Look again and again. Raises AssertionError when it does not come true at all.

    The pauses grow to `MAX_PAUSE_S`, as each look takes processor time from the broker.
    """
    end, pause_s = time.monotonic() + timeout_s, MIN_PAUSE_S
    while not happened():
        assert time.monotonic() < end, f"not {what} in {timeout_s} s"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, MAX_PAUSE_S)
