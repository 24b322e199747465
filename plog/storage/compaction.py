"""Which logs are to be compacted, how far, and which segments become one.

Owns Kafka's rules: what is dirty, when that is enough to begin, what is too young, how segments
are grouped. Pure: it sees numbers. Reads no record and touches no file: `cleaner` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from plog.storage.retention import SegmentSummary
from plog.types import NO_TIMESTAMP

OFFSET_SPAN = (1 << 31) - 1
"""A segment's offsets are within 31 bits of its base offset."""


class DirtyRange(NamedTuple):
    """What of a log has not been compacted yet, and may be.

    `first_dirty` is where it begins; `end`, at a segment's end, is before what must stay as it is.
    """

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    oldest_dirty_ms: int  # the earliest of the dirty segments' first batches; -1 without any

    @property
    def ratio(self) -> float:
        """The dirty share of what would be read."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_overdue(self, *, max_lag_ms: int, now_ms: int) -> bool:
        """Tell whether records have waited for longer than `max.compaction.lag.ms` (KIP-354)."""
        if not self.dirty_bytes or self.oldest_dirty_ms < 0:
            return False
        return now_ms - self.oldest_dirty_ms > max_lag_ms

    def is_due(self, *, min_ratio: float, max_lag_ms: int, now_ms: int) -> bool:
        """Tell whether there is enough, or enough time has passed."""
        if not self.dirty_bytes:
            return False
        return self.ratio > min_ratio or self.is_overdue(max_lag_ms=max_lag_ms, now_ms=now_ms)


def dirty_range(
    segments: Sequence[SegmentSummary],
    *,
    checkpoint: int | None,
    log_start_offset: int,
    stable_end: int,
    min_lag_ms: int,
    now_ms: int,
) -> DirtyRange:
    """Say what may be compacted.

    Args:
        segments: oldest first, the last is the active one, which stays as it is.
        checkpoint: up to where the log was compacted; None or nonsense: nowhere.
        stable_end: no batch that reaches it is touched: the last stable offset, or the durable end.
        min_lag_ms: segments with a younger record stay (`min.compaction.lag.ms`).
    """
    active = segments[-1].base_offset
    first = segments[0].base_offset
    first_dirty = max(log_start_offset, first)
    if checkpoint is not None and first_dirty <= checkpoint <= active:
        first_dirty = checkpoint
    dirty_since = (one.first_batch_ms for one in segments[:-1] if one.next_offset > first_dirty)
    oldest_dirty_ms = min((ms for ms in dirty_since if ms > 0), default=NO_TIMESTAMP)
    end = first
    clean_bytes = dirty_bytes = 0
    for segment in segments[:-1]:
        if segment.next_offset > stable_end:
            break
        is_dirty = segment.next_offset > first_dirty
        if is_dirty and min_lag_ms > 0 and segment.largest_timestamp_ms > now_ms - min_lag_ms:
            break
        end = segment.next_offset
        if not is_dirty:
            clean_bytes += segment.size_bytes
            continue
        dirty_bytes += segment.size_bytes
    return DirtyRange(first_dirty, max(end, first_dirty), clean_bytes, dirty_bytes, oldest_dirty_ms)


class SegmentSizes(NamedTuple):
    """What the files of a segment take."""

    base_offset: int
    next_offset: int
    log_bytes: int
    offset_index_bytes: int
    time_index_bytes: int


def group_segments(
    segments: Sequence[SegmentSizes], *, most_log_bytes: int, most_index_bytes: int
) -> Iterator[Sequence[SegmentSizes]]:
    """Yield neighbours that become one segment: together they are no larger than one may be."""
    begin = 0
    while begin < len(segments):
        end, log_bytes, offset_bytes, time_bytes = begin, 0, 0, 0
        while end < len(segments):
            segment = segments[end]
            log_bytes += segment.log_bytes
            offset_bytes += segment.offset_index_bytes
            time_bytes += segment.time_index_bytes
            fits = (
                log_bytes <= most_log_bytes
                and max(offset_bytes, time_bytes) <= most_index_bytes
                and segment.next_offset - segments[begin].base_offset <= OFFSET_SPAN
            )
            if not fits and end > begin:
                break
            end += 1
        yield segments[begin:end]
        begin = end
