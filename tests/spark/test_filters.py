"""What filters spare: nothing that they let through, and what they do not if they are answered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from plog.spark.filters import from_offsets, is_answered, min_timestamp, narrow
from plog.spark.offsets import OffsetRange
from plog.types import ZERO_UUID, TopicPartition

COMPARISONS = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def a_range(topic: str, partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition(topic, partition), start, end, ZERO_UUID)


def lets_through(wanted, record: dict) -> bool:
    if isinstance(wanted, Not):
        return not lets_through(wanted.child, record)
    value = record[wanted.attribute[0]]
    if isinstance(wanted, IsNotNull):
        return True
    if isinstance(wanted, In):
        return value in wanted.value
    return COMPARISONS[type(wanted)](value, wanted.value)


VALUES = {
    "topic": st.sampled_from(["a", "b", "c"]),
    "partition": st.integers(-1, 3),
    "offset": st.integers(-2, 14),
}


@st.composite
def filters(draw):
    column = draw(st.sampled_from(sorted(VALUES)))
    kind = draw(st.sampled_from([*COMPARISONS, In, IsNotNull]))
    if kind is IsNotNull:
        return IsNotNull((column,))
    values = VALUES[column]
    value = draw(st.lists(values, max_size=3).map(tuple) if kind is In else values)
    made = kind((column,), value)
    return Not(made) if draw(st.booleans()) else made


RANGES = [a_range(t, p, s, e) for t in "ab" for p, s, e in [(0, 0, 12), (1, 3, 7), (2, 10, 11)]]


def records(ranges) -> set[tuple[str, int, int]]:
    return {(*r.partition, offset) for r in ranges for offset in range(r.start, r.end)}


@given(st.lists(filters(), max_size=4))
def test_filters_spare_nothing_that_they_let_through(wanted):
    left = records(narrow(RANGES, wanted))
    names = ("topic", "partition", "offset")
    through = {
        record
        for record in records(RANGES)
        if all(lets_through(each, dict(zip(names, record, strict=True))) for each in wanted)
    }
    assert through <= left <= records(RANGES)
    if all(map(is_answered, wanted)):
        assert through == left


@pytest.mark.parametrize(
    "wanted",
    [
        IsNotNull(("key",)),
        IsNull(("partition",)),
        EqualTo(("key",), b"x"),
        EqualTo(("partition",), None),
        EqualTo(("partition",), True),
        EqualTo(("partition", "x"), 1),
        GreaterThan(("offset",), "5"),
        StringStartsWith(("topic",), "a"),
        GreaterThanOrEqual(("timestamp",), EPOCH),
        Not(EqualTo(("offset",), 3)),
        In(("offset",), (3, 5)),
        Not(IsNotNull(("offset",))),
    ],
)
def test_what_is_not_answered_is_left_to_spark(wanted):
    assert not is_answered(wanted)
    if not isinstance(wanted, In):
        assert narrow(RANGES, [wanted]) == RANGES


@pytest.mark.parametrize(
    ("kind", "us", "ms"),
    [
        (GreaterThanOrEqual, 5000, 5),
        (GreaterThanOrEqual, 5001, 6),
        (GreaterThan, 5000, 6),
        (GreaterThan, 5999, 6),
        (GreaterThan, 4999, 5),
        (EqualTo, 5000, 5),
        (EqualNullSafe, 5001, 6),
        (LessThan, 5000, None),
        (LessThanOrEqual, 5000, None),
    ],
)
def test_lower_bound_of_time_is_in_whole_ms(kind, us, ms):
    assert min_timestamp([kind(("timestamp",), EPOCH + timedelta(microseconds=us))]) == ms


def test_latest_of_several_lower_bounds_counts():
    bounds = [GreaterThan(("timestamp",), EPOCH + timedelta(seconds=s)) for s in (3, 7, 5)]
    assert min_timestamp(bounds) == 7001
    assert min_timestamp([Not(bounds[0]), GreaterThan(("offset",), 3)]) is None
    without_zone = EPOCH.replace(tzinfo=None)
    assert min_timestamp([GreaterThan(("timestamp",), without_zone)]) is None


def test_ranges_begin_where_a_time_was_found():
    first = {r.partition: at for r, at in zip(RANGES, [4, 2, -1, 12, 5, 10], strict=True)}
    left = from_offsets(RANGES, first)
    assert [(r.partition.partition, r.start) for r in left] == [(0, 4), (1, 3), (1, 5), (2, 10)]
