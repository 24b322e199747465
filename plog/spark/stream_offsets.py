"""The arithmetic of a stream's offsets: their JSON, the limits of a batch, what a batch reads.

Pure: asks no cluster and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from plog.errors import ConfigError
from plog.types import TopicPartition

Offsets = dict[TopicPartition, int]
"""By partition, the offset that is read next."""


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as Spark's Kafka source writes them, {"topic": {"0": 23}}.

    Invariant: equal offsets make equal texts. Spark compares the texts, and where they differ it
    runs a batch.
    """
    told: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets, key=lambda at: (at.topic, str(at.partition))):
        told.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return told


def from_json(told: Any) -> Offsets:
    """Read offsets that this source or Spark's Kafka source wrote.

    Raises:
        ConfigError: they are something else; the checkpoint is another source's.
    """
    try:
        return {
            TopicPartition(topic, int(index)): int(offset)
            for topic, partitions in told.items()
            for index, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"plog source: the checkpoint has {told} where offsets are expected, as "
            '{"topic": {"0": 23}}; is it another source\'s?'
        ) from None


class Piece(NamedTuple):
    """What a batch reads of one partition; `start` None is wherever its log begins."""

    partition: TopicPartition
    start: int | None
    end: int


def between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Piece]:
    """Return what lies between the offsets of a batch, without what is empty.

    A partition that ends below its start reads nothing: that is how a batch says that the next
    one begins there, after records were lost.
    """
    return [
        Piece(partition, start.get(partition), end[partition])
        for partition in sorted(end)
        if partition not in start or start[partition] < end[partition]
    ]


def waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """Return how many offsets each partition has that are not read, where there are any."""
    return {p: end[p] - start[p] for p in end if p in start and end[p] > start[p]}


def limited(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    limit: int,
    turn: int = 0,
) -> Offsets:
    """Return how far a batch of at most `limit` offsets goes from `start` towards `end`.

    Every partition of `end` is in `start`.
    """
    shares = share(waiting(start, end), limit, turn)
    return {p: start[p] + shares.get(p, 0) if end[p] > start[p] else end[p] for p in end}


def share(sizes: Mapping[TopicPartition, int], limit: int, turn: int = 0) -> Offsets:
    """Share a limit out in proportion to sizes above 0; all of it, if there is that much.

    Each partition gets at least one. If there are more partitions than that, those get one whose
    turn it is, so that rising turns reach all of them.
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    order = sorted(sizes)
    count = len(order)
    if limit <= count:
        return {order[(turn * limit + n) % count]: 1 for n in range(limit)}
    # Beyond the first one of each: never more than there is, as limit < total.
    room, rest = limit - count, total - count
    shares = {p: 1 + room * (sizes[p] - 1) // rest for p in order}
    cut = sorted(order, key=lambda p: (-(room * (sizes[p] - 1) % rest), p))
    for partition in cut[: limit - sum(shares.values())]:
        shares[partition] += 1
    return shares


class Delay:
    """Holds batches back that have less than minOffsetsPerTrigger, up to maxTriggerDelay.

    The first batch is never held back, as in Spark's Kafka source.
    """

    def __init__(self, least: int, most_ms: int) -> None:
        self._least = least
        self._most_s = most_ms / 1000
        self._last_s: float | None = None

    def left_s(self, count: int, now_s: float) -> float:
        """Return how long a batch of so many offsets is still held back; at 0 it is let go."""
        passed = self._most_s if self._last_s is None else now_s - self._last_s
        if count >= self._least or passed >= self._most_s:
            self._last_s = now_s
            return 0.0
        return self._most_s - passed
