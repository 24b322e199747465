"""Metrics of the lag of groups: in records, and in time.

Owns two bounds. Of the pairs of a group and a topic those with the largest lag are shown. With many
committed offsets, a reading of the page computes the pairs that the last one showed, and looks for
larger ones in some of the other groups, all of which get their turn. Only partitions that this
broker leads count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from operator import attrgetter

from prometheus_client.metrics_core import Metric

from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.group_shard import Group
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
MAX_OFFSETS = 50_000
"""Offsets that a reading looks at in search of larger lags; with fewer, every lag is computed."""


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

    def add(self, log: Log, committed: int, end: int) -> None:
        """Count a partition."""
        if end > committed:
            self.records += end - committed
            if self.behind is None:
                self.behind = {}
            self.behind[log] = committed


class _PairReader:
    """Reads pairs for one reading of the page. Reads the end of each log once."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._ends: dict[TopicPartition, int] = {}

    def pairs(self, group: Group, except_topics: Collection[str] = ()) -> list[_Pair]:
        """Return the pairs of a group."""
        pairs: dict[str, _Pair] = {}
        for tp, committed in group.offsets:
            if tp.topic in except_topics or (log := self._logs.get(tp)) is None:
                continue  # it was deleted, is offline, or has another leader
            pair = pairs.get(tp.topic)
            if pair is None:
                pair = pairs[tp.topic] = _Pair(group.group_id, tp.topic)
            pair.add(log, committed.offset, self._end(tp, log))
        return list(pairs.values())

    def pair(self, group: Group, topic: str, logs: Sequence[Log]) -> _Pair | None:
        """Return the pair of a group and a topic with these logs; None if there is none."""
        pair: _Pair | None = None
        for log in logs:
            committed = group.offsets.get(log.topic_partition)
            if committed is not None:
                pair = pair or _Pair(group.group_id, topic)
                pair.add(log, committed.offset, self._end(log.topic_partition, log))
        return pair

    def _end(self, tp: TopicPartition, log: Log) -> int:
        end = self._ends.get(tp)
        if end is None:
            end = self._ends[tp] = log.high_watermark
        return end


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
        self._shown: dict[str, dict[str, None]] = {}
        """Topics of the last reading, by group. Texts are nothing to the garbage collector."""
        self._next = 0
        """Number of the group at which the next reading begins its search."""

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have samples."""
        shown, count = self._choose()
        self._shown = {}
        for pair in shown:
            self._shown.setdefault(pair.group, {})[pair.topic] = None
        if shown:
            yield RECORDS.of((pair.labels, pair.records) for pair in shown)
            self._times.begin()
            yield SECONDS.of(self._ages(shown))
        yield OMITTED.one(count - len(shown))

    def _choose(self) -> tuple[list[_Pair], int]:
        """Return the pairs to show, and the number of all pairs."""
        groups = self._groups.groups()
        reader = _PairReader(self._logs)
        if sum(len(group.offsets) for group in groups) > MAX_OFFSETS:
            logs: dict[str, list[Log]] = {}
            for log in self._logs.logs():
                logs.setdefault(log.topic_partition.topic, []).append(log)
            count = sum(len(group.offsets.topics() & logs.keys()) for group in groups)
            if count > self._max_pairs:
                # The pairs of before come first: of equal lags they are kept.
                pairs = chain(self._again(groups, logs, reader), self._search(groups, reader))
                return self._largest(pairs), count
        pairs_of_all = [pair for group in groups for pair in reader.pairs(group)]
        if len(pairs_of_all) > self._max_pairs:
            return self._largest(iter(pairs_of_all)), len(pairs_of_all)
        return pairs_of_all, len(pairs_of_all)

    def _largest(self, pairs: Iterator[_Pair]) -> list[_Pair]:
        return nlargest(self._max_pairs, pairs, key=attrgetter("records"))

    def _again(
        self, groups: Sequence[Group], logs: Mapping[str, Sequence[Log]], reader: _PairReader
    ) -> Iterator[_Pair]:
        """Yield the pairs that the last reading showed."""
        for group in groups:
            for topic in self._shown.get(group.group_id, ()):
                if (pair := reader.pair(group, topic, logs.get(topic, ()))) is not None:
                    yield pair

    def _search(self, groups: Sequence[Group], reader: _PairReader) -> Iterator[_Pair]:
        """Yield the other pairs of the groups whose turn it is."""
        left = MAX_OFFSETS
        start = self._next % len(groups)
        for number in chain(range(start, len(groups)), range(start)):
            if left <= 0:
                break
            group = groups[number]
            left -= len(group.offsets)
            self._next = number + 1
            yield from reader.pairs(group, self._shown.get(group.group_id, ()))

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
