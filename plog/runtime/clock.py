"""Time as the rest of plog asks for it: wall milliseconds for records, monotonic ones for waits.

Owns the seam between code and the machine's clocks, so that tests and seeded
simulations move time by hand. Never sleeps and never schedules anything.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where `now` comes from. Wall time may jump either way; monotonic time never goes back."""

    def now_ms(self) -> int:
        """Return wall time: milliseconds since 1970 UTC, what record timestamps hold."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds since some fixed moment, for measuring and bounding waits."""
        ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return wall time, milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return CLOCK_MONOTONIC in milliseconds."""
        return time.monotonic_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until `advance` or `jump_to`."""

    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Return wall time, milliseconds since 1970 UTC."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the sum of all advances, in milliseconds."""
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both clocks.

        Raises:
            ValueError: `ms` is negative; only the wall clock goes back, by `jump_to`.
        """
        if ms < 0:
            raise ValueError(f"a clock cannot advance by {ms} ms")
        self._now_ms += ms
        self._monotonic_ms += ms

    def jump_to(self, now_ms: int) -> None:
        """Set wall time alone, as an administrator or NTP would; monotonic time stands."""
        self._now_ms = now_ms
