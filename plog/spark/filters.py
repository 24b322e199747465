"""Applies a query's filters to its ranges, so that excluded records are not fetched.

Pure. Some filters are applied exactly; Spark applies the others again to each row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from plog.spark.arrow import MAY_BE_NULL
from plog.spark.offsets import OffsetRange
from plog.types import TopicPartition

COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    In: lambda value, those: value in those,
}
TYPES = {"topic": str, "partition": int, "offset": int}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_answered(wanted: Filter) -> bool:
    """Tell whether `narrow` applies this filter exactly, so that Spark need not."""
    if isinstance(wanted, IsNotNull):
        return _column(wanted) not in MAY_BE_NULL
    is_negated = isinstance(wanted, Not)
    inner = wanted.child if isinstance(wanted, Not) else wanted
    if not _is_comparison(inner):
        return False
    # A partition has one range of offsets, which cannot have holes.
    return _column(inner) != "offset" or not (is_negated or isinstance(inner, In))


def narrow(ranges: Iterable[OffsetRange], filters: Sequence[Filter]) -> list[OffsetRange]:
    """Return the reduced ranges; they keep every record that passes the filters."""
    left = list(ranges)
    for wanted in filters:
        left = [r for r in (_narrow(each, wanted) for each in left) if r.start < r.end]
    return left


def min_timestamp(filters: Iterable[Filter]) -> int | None:
    """Return the lower bound of the timestamp in ms since 1970; None without one.

    Later offsets may have earlier timestamps, so Spark still applies these filters; and an upper
    bound of the timestamp excludes no offsets.
    """
    found = []
    for wanted in filters:
        if not isinstance(wanted, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)):
            continue
        value = wanted.value
        if _column(wanted) != "timestamp" or not isinstance(value, datetime) or not value.tzinfo:
            continue
        us = (value - EPOCH) // timedelta(microseconds=1)
        # Timestamps are whole ms: the first one at or after, or strictly after, these us.
        found.append(us // 1000 + 1 if isinstance(wanted, GreaterThan) else -(-us // 1000))
    return max(found, default=None)


def from_offsets(
    ranges: Iterable[OffsetRange], first: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Return the ranges cut to start at these offsets; -1 drops the partition."""
    left = (
        r._replace(start=max(r.start, first[r.partition]) if first[r.partition] >= 0 else r.end)
        for r in ranges
    )
    return [r for r in left if r.start < r.end]


def _column(wanted: Any) -> str:
    # The source has no filters on nested columns.
    return str(wanted.attribute[0]) if len(wanted.attribute) == 1 else ""


def _is_comparison(wanted: Filter) -> bool:
    if type(wanted) not in COMPARISONS:
        return False
    expected = TYPES.get(_column(wanted))
    value: Any = getattr(wanted, "value", None)
    values = value if isinstance(wanted, In) else (value,)
    return expected is not None and all(type(each) is expected for each in values)


def _narrow(whole: OffsetRange, wanted: Filter) -> OffsetRange:
    is_negated = isinstance(wanted, Not)
    inner: Any = wanted.child if isinstance(wanted, Not) else wanted
    if not _is_comparison(inner):
        return whole
    column = _column(inner)
    if column != "offset":
        value = whole.partition.topic if column == "topic" else whole.partition.partition
        matches = COMPARISONS[type(inner)](value, inner.value)
        return whole if matches is not is_negated else whole._replace(end=whole.start)
    if is_negated:
        return whole
    values = inner.value if isinstance(inner, In) else (inner.value,)
    if not values:
        return whole._replace(end=whole.start)
    low, high = whole.start, whole.end
    if not isinstance(inner, (LessThan, LessThanOrEqual)):
        low = min(values) + isinstance(inner, GreaterThan)
    if not isinstance(inner, (GreaterThan, GreaterThanOrEqual)):
        high = max(values) + (not isinstance(inner, LessThan))
    return whole._replace(start=max(whole.start, low), end=min(whole.end, high))
