from __future__ import annotations

from typing import Any

import pytest

from plog.storage.retention import Deletable, Reason, SegmentSummary, deletable

# Four segments of ten offsets and 100 bytes, a second apart; the last is active.
LOG = [SegmentSummary(n * 10, n * 10 + 10, 100, n * 1000) for n in range(4)]
EMPTY_ACTIVE = [*LOG[:3], SegmentSummary(30, 30, 0, 3000)]

DEFAULTS: dict[str, Any] = {
    "now_ms": 10_000,
    "retention_ms": -1,
    "retention_bytes": -1,
    "delete_policy": True,
    "log_start_offset": 0,
    "high_watermark": 40,
}


@pytest.mark.parametrize(
    ("segments", "given", "found"),
    [
        (LOG, {}, []),
        # by time: strictly older than retention.ms
        (LOG, {"retention_ms": 10_000}, []),
        (LOG, {"retention_ms": 9_999}, [Deletable(1, Reason.TIME)]),
        (LOG, {"retention_ms": 8_000}, [Deletable(2, Reason.TIME)]),
        (LOG, {"retention_ms": 0}, [Deletable(4, Reason.TIME)]),  # the active one too
        (EMPTY_ACTIVE, {"retention_ms": 0}, [Deletable(3, Reason.TIME)]),
        (LOG, {"retention_ms": 0, "delete_policy": False}, []),
        # any negative number is no limit, as in Kafka
        (LOG, {"retention_ms": -2, "retention_bytes": -500}, []),
        # nothing at or past the high watermark
        (LOG, {"retention_ms": 0, "high_watermark": 39}, [Deletable(3, Reason.TIME)]),
        (LOG, {"retention_ms": 0, "high_watermark": 20}, [Deletable(2, Reason.TIME)]),
        (LOG, {"retention_ms": 0, "high_watermark": 0}, []),
        # a young segment protects the old ones behind it
        (
            [LOG[0], SegmentSummary(10, 20, 100, 99_999), *LOG[2:]],
            {"retention_ms": 0},
            [Deletable(1, Reason.TIME)],
        ),
        # by size: as long as at least retention.bytes are left
        (LOG, {"retention_bytes": 400}, []),
        (LOG, {"retention_bytes": 301}, []),
        (LOG, {"retention_bytes": 300}, [Deletable(1, Reason.SIZE)]),
        (LOG, {"retention_bytes": 150}, [Deletable(2, Reason.SIZE)]),
        (LOG, {"retention_bytes": 0}, [Deletable(4, Reason.SIZE)]),
        (LOG, {"retention_bytes": 0, "delete_policy": False}, []),
        # by size counts what time has left
        (
            LOG,
            {"retention_ms": 9_999, "retention_bytes": 250},
            [Deletable(1, Reason.TIME)],
        ),
        (
            LOG,
            {"retention_ms": 9_999, "retention_bytes": 200},
            [Deletable(1, Reason.TIME), Deletable(2, Reason.SIZE)],
        ),
        # by log start offset, whatever the policy; never the active segment
        (LOG, {"log_start_offset": 9}, []),
        (LOG, {"log_start_offset": 10}, [Deletable(1, Reason.START_OFFSET)]),
        (
            LOG,
            {"log_start_offset": 29, "delete_policy": False},
            [Deletable(2, Reason.START_OFFSET)],
        ),
        (LOG, {"log_start_offset": 40}, [Deletable(3, Reason.START_OFFSET)]),
    ],
)
def test_rules_let_go_of_just_these(
    segments: list[SegmentSummary], given: dict[str, Any], found: list[Deletable]
) -> None:
    assert deletable(segments, **{**DEFAULTS, **given}) == found
