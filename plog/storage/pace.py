"""Limits the rate of compaction: a token bucket that all cleaner threads share.

Owns the debt of the threads in bytes, paid off at the configured rate, in the order in which the
bytes were added. Never waits. A waiting thread asks again after a change of the rate; the new rate
then applies to the remaining debt, too.
"""

from __future__ import annotations

import sys

from plog.runtime.clock import Clock

LEAST, MOST = 1.0, sys.float_info.max
"""Bounds of the rate in bytes per second. The setting may be 0, negative or infinite."""


class Pace:
    """The debt and its payment. Not thread-safe: callers hold a lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Both are totals since the start; paid never exceeds the debt, so idle time earns nothing.
        self._told = 0
        self._paid = 0.0
        self._paid_at_ms = clock.monotonic_ms()
        self._bytes_per_second = LEAST

    def tell(self, size: int) -> int:
        """Add bytes to the debt; return the total that must be paid for them."""
        self._pay()
        self._told += size
        return self._told

    def left_ms(self, told: int, bytes_per_second: float) -> int:
        """Return the time until the payments reach a total at this rate."""
        self._pay()
        self._bytes_per_second = min(max(bytes_per_second, LEAST), MOST)
        return max(int((told - self._paid) * 1000 / self._bytes_per_second), 0)

    def _pay(self) -> None:
        now_ms = self._clock.monotonic_ms()
        paid = (now_ms - self._paid_at_ms) / 1000 * self._bytes_per_second
        self._paid = min(self._paid + paid, self._told)
        self._paid_at_ms = now_ms
