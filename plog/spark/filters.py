"""What a query's filters spare the reader: partitions that cannot match, offsets below or above.

Pure. Filters that leave out exactly what they should are answered here; Spark applies the others
once more.
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
    """Tell whether `narrow` leaves nothing that this filter does not let through."""
    if isinstance(wanted, IsNotNull):
        return _column(wanted) not in MAY_BE_NULL
    is_negated = isinstance(wanted, Not)
    inner = wanted.child if isinstance(wanted, Not) else wanted
    if not _is_comparison(inner):
        return False
    # Of one partition there is one range of offsets, so that holes cannot be left out.
    return _column(inner) != "offset" or not (is_negated or isinstance(inner, In))


def narrow(ranges: Iterable[OffsetRange], filters: Sequence[Filter]) -> list[OffsetRange]:
    """Return what is left of the ranges; all records that the filters let through are in it."""
    left = list(ranges)
    for wanted in filters:
        left = [r for r in (_narrow(each, wanted) for each in left) if r.start < r.end]
    return left


def min_timestamp(filters: Iterable[Filter]) -> int | None:
    """Return the ms since 1970 before which no record gets through; None: there is no such time.

    What comes after a record of that time may be earlier again, so this answers no filter; and an
    upper bound says nothing of offsets.
    """
    found = []
    for wanted in filters:
        if not isinstance(wanted, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)):
            continue
        value = wanted.value
        if _column(wanted) != "timestamp" or not isinstance(value, datetime) or not value.tzinfo:
            continue
        us = (value - EPOCH) // timedelta(microseconds=1)
        # Records have whole ms: the next one at or after, or strictly after, these us.
        found.append(us // 1000 + 1 if isinstance(wanted, GreaterThan) else -(-us // 1000))
    return max(found, default=None)


def from_offsets(
    ranges: Iterable[OffsetRange], first: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Return what is left of the ranges from these offsets on; -1: there is nothing."""
    left = (
        r._replace(start=max(r.start, first[r.partition]) if first[r.partition] >= 0 else r.end)
        for r in ranges
    )
    return [r for r in left if r.start < r.end]


def _column(wanted: Any) -> str:
    # Nested ones are none of a topic's own columns.
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
