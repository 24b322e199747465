"""The histogram of durations again, to be read: the oracle of `plog._native.histogram`."""

from __future__ import annotations

BUCKETS = 112


def upper_bounds() -> tuple[int, ...]:
    """Return the last microsecond that falls in each bucket but the last, which is open."""
    bounds = [0, 1, 2, 3]
    width = 1
    while len(bounds) < BUCKETS - 1:
        bounds += [bounds[-1] + width * quarter for quarter in (1, 2, 3, 4)]
        width *= 2
    return tuple(bounds[: BUCKETS - 1])


class Histogram:
    """How often things took how long."""

    def __init__(self) -> None:
        self._counts = [0] * BUCKETS
        self.total_us = 0

    def note(self, us: int) -> None:
        """One more, that took so many microseconds; less than none is none."""
        us = max(us, 0)
        self._counts[sum(bound < us for bound in upper_bounds())] += 1
        self.total_us += us

    @property
    def counts(self) -> tuple[int, ...]:
        """How many fell in each bucket."""
        return tuple(self._counts)
