"""Metrics of the lag of groups: in records, and in time.

Owns the bound on the number of series: of the pairs of a group and a topic those with the largest
lag are shown. Only partitions that this broker leads count.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from operator import attrgetter

from prometheus_client.metrics_core import Metric

from plog.coordinator.group_coordinator import GroupCoordinator
from plog.ops.metrics.families import Collector, Family, Row, label
from plog.ops.metrics.record_times import RecordTimes
from plog.runtime.clock import Clock
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.types import TopicPartition

LABELS = ("group", "topic")
RECORDS = Family("plog_group_lag_records", "Records that a group has not committed.", LABELS)
SECONDS = Family(
    "plog_group_lag_seconds",
    "How long ago the oldest record was appended that a group has not committed, by its timestamp.",
    LABELS,
)
OMITTED = Family(
    "plog_group_lag_omitted",
    "Pairs of a group and a topic left out; see metrics.max.group.topics.",
)
MS_IN_S = 1000


class _Pair:
    """A group and a topic that it has committed offsets of."""

    __slots__ = ("behind", "group", "records", "topic")

    def __init__(self, group: str, topic: str) -> None:
        self.group, self.topic = group, topic
        self.records = 0
        self.behind: dict[Log, int] | None = None
        """Committed offsets of the logs that have more records."""

    @property
    def labels(self) -> tuple[str, str]:
        return label(self.group), label(self.topic)


class Lag(Collector):
    """The lag of every group.

    Args:
        max_pairs: the number of pairs of a group and a topic to show.
    """

    families = (RECORDS, SECONDS, OMITTED)

    def __init__(
        self, groups: GroupCoordinator, logs: LogManager, clock: Clock, max_pairs: int
    ) -> None:
        self._groups = groups
        self._logs = logs
        self._clock = clock
        self._max_pairs = max_pairs
        self._times = RecordTimes()

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        pairs = self._pairs()
        shown = pairs
        if len(pairs) > self._max_pairs:
            shown = nlargest(self._max_pairs, pairs, key=attrgetter("records"))
        if shown:
            yield RECORDS.of((pair.labels, pair.records) for pair in shown)
            self._times.begin()
            yield SECONDS.of(self._ages(shown))
        yield OMITTED.one(len(pairs) - len(shown))

    def _pairs(self) -> list[_Pair]:
        ends: dict[TopicPartition, int] = {}
        pairs: list[_Pair] = []
        for group in self._groups.groups():
            of_topics: dict[str, _Pair] = {}
            for partition, committed in group.offsets:
                log = self._logs.get(partition)
                if log is None:
                    continue  # it was deleted, is offline, or has another leader
                end = ends.get(partition)
                if end is None:
                    end = ends[partition] = log.high_watermark
                pair = of_topics.get(partition.topic)
                if pair is None:
                    pair = of_topics[partition.topic] = _Pair(group.group_id, partition.topic)
                    pairs.append(pair)
                if end > committed.offset:
                    pair.records += end - committed.offset
                    if pair.behind is None:
                        pair.behind = {}
                    pair.behind[log] = committed.offset
        return pairs

    def _ages(self, pairs: list[_Pair]) -> Iterator[Row]:
        now_ms = self._clock.now_ms()
        for pair in pairs:
            behind = pair.behind or {}
            times = [self._times.at(log, offset) for log, offset in behind.items()]
            if known := [time for time in times if time is not None]:
                oldest_ms = min((time for time in known if time >= 0), default=now_ms)
                yield pair.labels, max(now_ms - oldest_ms, 0) / MS_IN_S
            elif not behind:
                yield pair.labels, 0
