"""Waiting for what comes by itself: it decides by what happens, never by when."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0


def until(happened: Callable[[], object], what: str = "so", timeout_s: float = PATIENCE_S) -> None:
    """Look again and again. Raises AssertionError when it does not come true at all."""
    end = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < end, f"not {what} in {timeout_s} s"
        time.sleep(0.005)
