"""Time as the rest of plog asks for it: wall milliseconds for records, monotonic ones for waits.

Owns the seam between code and the machine's clocks, so that tests and seeded
simulations move time by hand. Never sleeps and never schedules anything.
"""

from __future__ import annotations

import time
from typing import Protocol

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Where `now` comes from. Wall time may jump either way; the others never go back."""

    def now_ms(self) -> int:
        """Return wall time: milliseconds since 1970 UTC, what record timestamps hold."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds since some fixed moment, for measuring and bounding waits.

        It stands still while the host sleeps.
        """
        ...

    def since_boot_ms(self) -> int:
        """Return milliseconds since some fixed moment, those too that the host has slept."""
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

    def since_boot_ms(self) -> int:
        """Return CLOCK_BOOTTIME in milliseconds; where there is none, CLOCK_MONOTONIC."""
        return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


class ManualClock:
    """A clock that stands still until `advance` or `jump_to`."""

    __slots__ = ("_monotonic_ms", "_now_ms", "_slept_ms")

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms
        self._monotonic_ms = 0
        self._slept_ms = 0

    def now_ms(self) -> int:
        """Return wall time, milliseconds since 1970 UTC."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the sum of all advances, in milliseconds."""
        return self._monotonic_ms

    def since_boot_ms(self) -> int:
        """Return the sum of all advances and sleeps, in milliseconds."""
        return self._monotonic_ms + self._slept_ms

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on all clocks.

        Raises:
            ValueError: `ms` is negative; only the wall clock goes back, by `jump_to`.
        """
        if ms < 0:
            raise ValueError(f"a clock cannot advance by {ms} ms")
        self._now_ms += ms
        self._monotonic_ms += ms

    def suspend(self, ms: int) -> None:
        """Have the host sleep for `ms` milliseconds: monotonic time stands."""
        self._now_ms += ms
        self._slept_ms += ms

    def jump_to(self, now_ms: int) -> None:
        """Set wall time alone, as an administrator or NTP would; the others stand."""
        self._now_ms = now_ms
