"""How fast compaction goes: its threads owe for bytes, and time pays at so many a second.

Owns what they owe together, and whose turn it is: bytes are paid for in the order in which they
were told of. Never waits; who does looks again when the rate is another, which then holds for what
is still owed, too.
"""

from __future__ import annotations

import sys

from plog.runtime.clock import Clock

LEAST, MOST = 1.0, sys.float_info.max
"""Bytes a second that are as good as none, and as all. The setting takes 0 as well, less, and
infinity."""


class Pace:
    """Whoever calls has a lock around it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Both count from the first byte on; paid <= told, since no time is saved up in idleness.
        self._told = 0
        self._paid = 0.0
        self._paid_at_ms = clock.monotonic_ms()
        self._bytes_per_second = LEAST

    def tell(self, size: int) -> int:
        """Owe for so many bytes more; return up to where it has to be paid for them."""
        self._pay()
        self._told += size
        return self._told

    def left_ms(self, told: int, bytes_per_second: float) -> int:
        """Return how long it takes from now on until it is paid up to there, at this rate."""
        self._pay()
        self._bytes_per_second = min(max(bytes_per_second, LEAST), MOST)
        return max(int((told - self._paid) * 1000 / self._bytes_per_second), 0)

    def _pay(self) -> None:
        now_ms = self._clock.monotonic_ms()
        paid = (now_ms - self._paid_at_ms) / 1000 * self._bytes_per_second
        self._paid = min(self._paid + paid, self._told)
        self._paid_at_ms = now_ms
