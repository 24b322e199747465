"""How sure a figure is that was measured in a few rounds: Student's t.

With as few values as there are rounds a bootstrap knows no more than the least and the most of
them, and is too sure; t is wide where they are few or differ. Ratios are those of each round's two
neighbours in time, and are averaged by their logarithms, so that a/b and b/a say the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Two-sided 95%, by degrees of freedom from 1 on; beyond them the normal distribution's.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL_95 = 1.960


class Interval(NamedTuple):
    """A mean and its 95% confidence interval; of one value there is none."""

    mean: float
    low: float | None
    high: float | None


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values with its interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None, None)
    freedom = len(values) - 1
    t = T_95[freedom - 1] if freedom <= len(T_95) else NORMAL_95
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the geometric mean of the rounds' ratios with its interval."""
    logs = [math.log(mine / its) for mine, its in zip(ours, theirs, strict=False)]
    mean, low, high = interval(logs)
    return Interval(
        math.exp(mean),
        None if low is None else math.exp(low),
        None if high is None else math.exp(high),
    )
