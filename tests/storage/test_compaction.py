"""What is dirty, when that is enough, and which segments become one."""

from __future__ import annotations

import pytest

from plog.storage.compaction import (
    OFFSET_SPAN,
    DirtyRange,
    SegmentSizes,
    dirty_range,
    group_segments,
)
from plog.storage.retention import SegmentSummary

NOW_MS = 1_000_000
SEGMENTS = [
    SegmentSummary(n * 10, n * 10 + 10, 100, n * 1000 + 500, n * 1000 + 100) for n in range(5)
]
"""Offsets 0 to 49, the last ten in the active segment."""
OUT_OF_ORDER = [*SEGMENTS[:3], SEGMENTS[3]._replace(first_batch_ms=50), SEGMENTS[4]]
WITHOUT_TIME = [SEGMENTS[0]._replace(first_batch_ms=-1), *SEGMENTS[1:]]


def found(**changes: object) -> DirtyRange:
    given: dict = {
        "segments": SEGMENTS,
        "checkpoint": None,
        "log_start_offset": 0,
        "stable_end": 50,
        "min_lag_ms": 0,
        "now_ms": NOW_MS,
    }
    given |= changes
    return dirty_range(given.pop("segments"), **given)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, DirtyRange(0, 40, 0, 400, 100)),
        ({"checkpoint": 20}, DirtyRange(20, 40, 200, 200, 2100)),
        ({"checkpoint": 40}, DirtyRange(40, 40, 400, 0, -1)),
        ({"checkpoint": 41}, DirtyRange(0, 40, 0, 400, 100)),  # of another log
        ({"log_start_offset": 20, "segments": SEGMENTS[2:]}, DirtyRange(20, 40, 0, 200, 2100)),
        ({"checkpoint": 10, "segments": SEGMENTS[2:]}, DirtyRange(20, 40, 0, 200, 2100)),
        ({"stable_end": 29}, DirtyRange(0, 20, 0, 200, 100)),
        ({"stable_end": 9}, DirtyRange(0, 0, 0, 0, 100)),
        ({"min_lag_ms": NOW_MS - 1500}, DirtyRange(0, 20, 0, 200, 100)),
        ({"min_lag_ms": NOW_MS - 1500, "checkpoint": 30}, DirtyRange(30, 30, 300, 0, 3100)),
        ({"segments": SEGMENTS[:1]}, DirtyRange(0, 0, 0, 0, -1)),
        ({"segments": OUT_OF_ORDER, "checkpoint": 10}, DirtyRange(10, 40, 100, 300, 50)),
        ({"segments": WITHOUT_TIME}, DirtyRange(0, 40, 0, 400, 1100)),
    ],
)
def test_dirty_range(changes: dict, expected: DirtyRange) -> None:
    assert found(**changes) == expected


@pytest.mark.parametrize(
    ("clean", "dirty", "oldest_ms", "due"),
    [
        (49, 51, 999_500, True),
        (50, 50, 999_500, False),  # it takes more
        (50, 50, 0, True),  # overdue
        (51, 49, 999_500, False),
        (51, 49, 998_999, True),  # overdue
        (51, 49, -1, False),
        (100, 0, 0, False),
        (0, 0, -1, False),
    ],
)
def test_when_it_is_due(clean: int, dirty: int, oldest_ms: int, due: bool) -> None:
    asked = DirtyRange(0, 10, clean, dirty, oldest_ms)
    assert asked.is_due(min_ratio=0.5, max_lag_ms=1000, now_ms=NOW_MS) == due


def sizes(*log_bytes: int, index: int = 8, step: int = 10) -> list[SegmentSizes]:
    return [
        SegmentSizes(n * step, (n + 1) * step, size, index, index)
        for n, size in enumerate(log_bytes)
    ]


def grouped(segments: list[SegmentSizes], **limits: int) -> list[int]:
    given = {"most_log_bytes": 100, "most_index_bytes": 1000} | limits
    groups = list(group_segments(segments, **given))
    assert [one for group in groups for one in group] == segments
    return [len(group) for group in groups]


@pytest.mark.parametrize(
    ("segments", "limits", "expected"),
    [
        (sizes(40, 40, 40, 100, 1), {}, [2, 1, 1, 1]),
        (sizes(500, 40), {}, [1, 1]),  # made when segments were larger
        (sizes(1, 1, 1), {"most_index_bytes": 16}, [2, 1]),
        (sizes(1, 1, 1, step=OFFSET_SPAN // 2), {}, [2, 1]),
        ([], {}, []),
    ],
)
def test_groups(segments: list[SegmentSizes], limits: dict, expected: list[int]) -> None:
    assert grouped(segments, **limits) == expected
