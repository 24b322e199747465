"""Choose a record's partition: by the hash of its key, or the one whose batch is being filled."""

from __future__ import annotations

import random
from collections.abc import Callable

from plog._native.murmur2 import murmur2

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, number of partitions) -> partition."""


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of `key` as the Java client's default partitioner does.

    Only the lower 31 bits of the hash count, as in the Java client, so that all clients agree.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartitioner:
    """Partitions by the hash of keys; records without one share a batch until it is sent (KIP-480).

    Consecutive records then make one full batch instead of many small ones. Over time every
    partition gets its share.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._current: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, partitions: int) -> int:
        """Return the partition of the next record."""
        if key is not None:
            return (murmur2(key) & 0x7FFFFFFF) % partitions
        current = self._current.get(topic)
        if current is None or current >= partitions:
            current = self._current[topic] = self._draw(self._last.get(topic), partitions)
        return current

    def batch_closed(self, topic: str, partition: int) -> None:
        """Choose another partition: the batch of this one is full or sent."""
        if self._current.get(topic) == partition:
            self._last[topic] = self._current.pop(topic)

    def _draw(self, last: int | None, partitions: int) -> int:
        if last is None or last >= partitions or partitions == 1:
            return self._random.randrange(partitions)
        drawn = self._random.randrange(partitions - 1)
        return drawn if drawn < last else drawn + 1


def round_robin() -> Partitioner:
    """Return a partitioner that uses the partitions in turn, also for records with a key."""
    counters: dict[str, int] = {}

    def choose(topic: str, _key: bytes | None, partitions: int) -> int:
        count = counters[topic] = counters.get(topic, -1) + 1
        return count % partitions

    return choose
