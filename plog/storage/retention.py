"""Which of a log's oldest segments may go.

Owns the rules of retention by time, by size and by log start offset. Pure: it
sees numbers and says how many segments, counted from the oldest. Never deletes.

No segment goes that holds an offset at or past the high watermark. The active
segment may go too, when it is not empty: the log then rolls first.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from plog.types import NO_TIMESTAMP, counted


class SegmentSummary(NamedTuple):
    """What retention and compaction need to know of a segment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    largest_timestamp_ms: int  # of its records, or its file's time when none has a timestamp
    first_batch_ms: int = NO_TIMESTAMP  # largest timestamp of its first batch


class Reason(Enum):
    """Why segments go; the text is for the log."""

    TIME = "older than retention.ms"
    SIZE = "more than retention.bytes"
    START_OFFSET = "before the log start offset"


class Deletable(NamedTuple):
    """The segments before number `end` may go."""

    end: int
    reason: Reason


def deletable(
    segments: Sequence[SegmentSummary],
    *,
    now_ms: int,
    retention_ms: int,
    retention_bytes: int,
    delete_policy: bool,
    log_start_offset: int,
    high_watermark: int,
) -> list[Deletable]:
    """Say up to which segment each rule lets go, for the rules that let any.

    The rules apply one after the other, as in Kafka: those by time first, by size to what
    is left, then by log start offset (which holds for every cleanup.policy). A negative
    `retention_ms` or `retention_bytes` turns its rule off.
    `segments` is not empty, oldest first, the last is the active one.
    """
    found = []
    gone = 0
    candidates = _below_high_watermark(segments, high_watermark)
    if delete_policy and retention_ms >= 0:
        by_time = gone
        while by_time < candidates:
            if now_ms - segments[by_time].largest_timestamp_ms <= retention_ms:
                break
            by_time += 1
        if by_time > gone:
            found.append(Deletable(by_time, Reason.TIME))
            gone = by_time
    if delete_policy and retention_bytes >= 0:
        excess = sum(segment.size_bytes for segment in segments[gone:]) - retention_bytes
        by_size = gone
        while by_size < candidates and excess >= segments[by_size].size_bytes:
            excess -= segments[by_size].size_bytes
            by_size += 1
        if by_size > gone:
            found.append(Deletable(by_size, Reason.SIZE))
            gone = by_size
    by_start = gone
    # A segment goes when the next one's first offset is no later than the log start; the
    # active one has no next one.
    while by_start + 1 < len(segments) and by_start < candidates:
        if segments[by_start + 1].base_offset > log_start_offset:
            break
        by_start += 1
    if by_start > gone:
        found.append(Deletable(by_start, Reason.START_OFFSET))
    return found


def describe(found: Sequence[Deletable], gone: Sequence[SegmentSummary]) -> list[str]:
    """Return a line for each rule that let some of the segments go that are gone."""
    lines = []
    start = 0
    for rule in found:
        by_rule = gone[start : rule.end]
        if by_rule:
            lines.append(
                f"deleted {counted(len(by_rule), 'segment')} from offset"
                f" {by_rule[0].base_offset} to {by_rule[-1].next_offset - 1}, {rule.reason.value}"
            )
        start = rule.end
    return lines


def _below_high_watermark(segments: Sequence[SegmentSummary], high_watermark: int) -> int:
    count = 0
    for number, segment in enumerate(segments):
        active = number == len(segments) - 1
        end = segment.next_offset if active else segments[number + 1].base_offset
        if end > high_watermark or (active and segment.size_bytes == 0):
            break
        count += 1
    return count
