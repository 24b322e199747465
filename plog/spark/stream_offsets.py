"""The arithmetic of a stream's offsets: their JSON, the limits and the pieces of a batch.

Pure: asks no cluster and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from plog.errors import ConfigError
from plog.types import TopicPartition

Offsets = dict[TopicPartition, int]
"""The next offset to read, by partition."""


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's Kafka source writes them, {"topic": {"0": 23}}.

    Invariant: equal offsets make equal texts. Spark compares the texts, and runs a batch if they
    differ.
    """
    by_topic: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets, key=lambda at: (at.topic, str(at.partition))):
        by_topic.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return by_topic


def from_json(by_topic: Any) -> Offsets:
    """Read offsets that this source or Spark's Kafka source wrote.

    Raises:
        ConfigError: another source wrote the checkpoint.
    """
    try:
        return {
            TopicPartition(topic, int(index)): int(offset)
            for topic, partitions in by_topic.items()
            for index, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"plog source: the checkpoint has {by_topic} instead of offsets like "
            '{"topic": {"0": 23}}; use the checkpoint of this query, or a new one'
        ) from None


class Piece(NamedTuple):
    """The part of a batch in one partition; `start` None is the beginning of its log."""

    partition: TopicPartition
    start: int | None
    end: int


def between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Piece]:
    """Return the non-empty pieces between the offsets of a batch.

    A partition that ends below its start reads nothing: after a loss of records, this makes the
    next batch begin at that end.
    """
    return [
        Piece(partition, start.get(partition), end[partition])
        for partition in sorted(end)
        if partition not in start or start[partition] < end[partition]
    ]


def waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """Return the number of unread offsets of each partition that has some."""
    return {p: end[p] - start[p] for p in end if p in start and end[p] > start[p]}


def limited(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    limit: int,
    turn: int = 0,
) -> Offsets:
    """Return the end of a batch of at most `limit` offsets from `start` towards `end`.

    Every partition of `end` is in `start`.
    """
    shares = share(waiting(start, end), limit, turn)
    return {p: start[p] + shares.get(p, 0) if end[p] > start[p] else end[p] for p in end}


def share(sizes: Mapping[TopicPartition, int], limit: int, turn: int = 0) -> Offsets:
    """Distribute a limit in proportion to the sizes (above 0), up to their total.

    Each partition gets at least one offset. If there are more partitions than that, they take
    turns: with rising turns, each gets its share.
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    order = sorted(sizes)
    count = len(order)
    if limit <= count:
        return {order[(turn * limit + n) % count]: 1 for n in range(limit)}
    # Beyond the first one of each: never more than its size, as limit < total.
    room, rest = limit - count, total - count
    shares = {p: 1 + room * (sizes[p] - 1) // rest for p in order}
    cut = sorted(order, key=lambda p: (-(room * (sizes[p] - 1) % rest), p))
    for partition in cut[: limit - sum(shares.values())]:
        shares[partition] += 1
    return shares


class Delay:
    """Delays batches with fewer offsets than minOffsetsPerTrigger, up to maxTriggerDelay.

    The first batch is never delayed, as in Spark's Kafka source.
    """

    def __init__(self, least: int, most_ms: int) -> None:
        self._least = least
        self._most_s = most_ms / 1000
        self._last_s: float | None = None

    def left_s(self, count: int, now_s: float) -> float:
        """Return how long a batch of `count` offsets is still delayed; 0 starts it."""
        passed = self._most_s if self._last_s is None else now_s - self._last_s
        if count >= self._least or passed >= self._most_s:
            self._last_s = now_s
            return 0.0
        return self._most_s - passed
