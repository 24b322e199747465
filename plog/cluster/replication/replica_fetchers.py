"""The fetchers of a broker: who copies which partition from where.

Owns one fetcher per leader and number (`num.replica.fetchers`), made when the first partition of
theirs is followed and ended when the last one is not. A partition has one fetcher at a time.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Final

from plog.cluster.partition import Partition
from plog.cluster.peer_link import PeerLink
from plog.cluster.replication.followed import Followed
from plog.cluster.replication.leader_requests import Limits
from plog.cluster.replication.replica_fetcher import FetchFailures, ReplicaFetcher
from plog.protocol.messages.fetch import ReplicaState
from plog.runtime.clock import Clock
from plog.types import TopicPartition

NO_ONE: Final = -1
MakeLink = Callable[[int], PeerLink]
"""Returns the way to a broker."""


class ReplicaFetchers:
    """Copies the partitions that this broker follows.

    `ReplicaManager` makes one call at a time; `share_among` and `stop` may come meanwhile.

    Args:
        link: makes the way to a broker.
        limits: see `Limits`.
        per_leader: num.replica.fetchers.
        who: this broker, with the epoch of its registration of now.

    Attributes:
        failures: those of all fetchers since the start.
    """

    def __init__(
        self,
        *,
        link: MakeLink,
        limits: Limits,
        per_leader: int,
        who: Callable[[], ReplicaState],
        clock: Clock,
    ) -> None:
        self._link = link
        self._limits = limits
        self._per_leader = per_leader
        self._who = who
        self._clock = clock
        self.failures = FetchFailures()
        self._lock = threading.Lock()
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._is_stopped = False

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Copy these from the leaders that their `leadership` names; those without one, not."""
        with self._lock:
            by_fetcher: dict[tuple[int, int], list[Followed]] = {}
            for partition in partitions:
                leadership = partition.leadership
                if leadership.leader != NO_ONE and not partition.is_leader:
                    at = partition.topic_partition
                    key = leadership.leader, self._number_of(at)
                    by_fetcher.setdefault(key, []).append(Followed(partition, leadership))
            for key, followed in by_fetcher.items():
                self._forget({one.at for one in followed}, but=key)
                if not self._is_stopped:
                    self._fetcher(*key).add(followed)
        self._end_idle()

    def share_among(self, per_leader: int) -> None:
        """Have so many fetchers for each leader (num.replica.fetchers)."""
        with self._lock:
            if per_leader == self._per_leader:
                return
            self._per_leader = per_leader
            by_fetcher: dict[tuple[int, int], list[Followed]] = {}
            for (leader, _), fetcher in self._fetchers.items():
                for one in fetcher.release():
                    by_fetcher.setdefault((leader, self._number_of(one.at)), []).append(one)
            for key, followed in by_fetcher.items():
                self._fetcher(*key).add(followed)
        self._end_idle()

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Copy these no more; nothing is brought on to their logs after this returns."""
        with self._lock:
            self._forget(set(topic_partitions))

    def stop(self) -> None:
        """Copy nothing more."""
        with self._lock:
            self._is_stopped = True
            fetchers = [*self._fetchers.values()]
            self._fetchers.clear()
            # All of them before any thread is waited for: an order may come meanwhile.
            for fetcher in fetchers:
                fetcher.release()
        for fetcher in fetchers:
            fetcher.stop()

    def _forget(self, gone: set[TopicPartition], but: tuple[int, int] | None = None) -> None:
        for key, fetcher in self._fetchers.items():
            if key != but:
                fetcher.remove(gone)

    def _end_idle(self) -> None:
        with self._lock:
            idle = [key for key, fetcher in self._fetchers.items() if fetcher.is_idle]
            ended = [self._fetchers.pop(key) for key in idle]
        for fetcher in ended:
            fetcher.stop()

    def _fetcher(self, leader: int, number: int) -> ReplicaFetcher:
        found = self._fetchers.get((leader, number))
        if found is None:
            found = ReplicaFetcher(
                leader,
                number,
                self._link(leader),
                limits=self._limits,
                who=self._who,
                clock=self._clock,
                failures=self.failures,
            )
            found.start()
            self._fetchers[leader, number] = found
        return found

    def _number_of(self, at: TopicPartition) -> int:
        return zlib.crc32(f"{at.topic}-{at.partition}".encode()) % self._per_leader
