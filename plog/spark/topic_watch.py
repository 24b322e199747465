"""Watches a stream's topics: their partitions, ids and ends, and the arrival of records.

Owns the connections of the planning process and the topic ids that the run first saw. Decides
nothing: `stream_source` reacts to changes.
"""

from __future__ import annotations

import select
import time
import uuid
from collections.abc import Iterable, Mapping

from plog.client.connection import Connection
from plog.client.fetcher import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Ask,
    Limits,
    receive_fetch,
    send_fetch,
)
from plog.errors import KafkaError, UnknownTopicOrPartition
from plog.spark import offsets
from plog.spark.bounds import EARLIEST, LATEST
from plog.spark.options import SourceOptions
from plog.types import TopicPartition

REFRESH_INTERVAL_S = 1.0
"""Maximum age of the partition list: new partitions and deletions are noticed within this time."""


class TopicWatch:
    """The topics of one run of a stream. Not thread-safe, and not picklable."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = offsets.open_cluster(options)
        self._looked_s: float | None = None
        self._ids: dict[str, uuid.UUID] = {}
        # Parked fetches by leader: each has its own connection, and the offsets it was sent with.
        self._parked: dict[int, tuple[Connection, dict[TopicPartition, int]]] = {}
        self.found: list[TopicPartition] = []
        """The partitions that existed at the last refresh."""
        self.recreated: set[str] = set()
        """Topics whose id differs from the accepted one."""

    def start_over(self) -> None:
        """Drop connections and metadata, after a fault."""
        for leader_id in list(self._parked):
            self._drop(leader_id)
        self._cluster.close()
        for topic in list(self._cluster.topics):
            self._cluster.forget(topic)
        self._looked_s = None

    def look(self, max_age_s: float = REFRESH_INTERVAL_S) -> None:
        """Refresh the list of partitions, unless it is younger than `max_age_s`."""
        now_s = time.monotonic()
        if self._looked_s is not None and now_s - self._looked_s < max_age_s:
            return
        self.found = offsets.existing_partitions(self._cluster, self._options)
        self._looked_s = now_s
        self._compare_ids(self.found)

    def has_topic(self, topic: str) -> bool:
        """Tell whether the topic existed at the last refresh, with any partitions."""
        return topic in self._cluster.topics

    def topic_id(self, topic: str) -> uuid.UUID:
        """Return the accepted id of a topic."""
        return self._ids[topic]

    def accept(self, topic: str) -> None:
        """Accept the new id of a recreated topic."""
        self.recreated.discard(topic)
        self._ids[topic] = self._cluster.topic(topic).topic_id

    def forget(self, topic: str) -> None:
        """Forget a deleted topic; if it is created again, it is a new topic."""
        self.recreated.discard(topic)
        self._ids.pop(topic, None)

    def first_offsets(self) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        """Return the stream's first offsets, and the partitions that begin at their end.

        Raises: as `offsets.plan`.
        """
        found = offsets.find_partitions(self._cluster, self._options)
        # First: a record between the calls puts a partition too many in `at_end`, not one too few.
        at_end = offsets.partitions_starting_at_end(self._cluster, self._options, found)
        starts = offsets.first_offsets(self._cluster, self._options, found)
        self._compare_ids(found)
        return starts, at_end

    def require_topics(self) -> None:
        """Raise UnknownTopicOrPartition if a named topic was missing at the last refresh."""
        options = self._options
        named = set(options.topics) | {partition.topic for partition in options.assigned}
        if missing := named - {partition.topic for partition in self.found}:
            names = ", ".join(repr(name) for name in sorted(missing))
            what = f"topic {names} does" if len(missing) == 1 else f"topics {names} do"
            raise UnknownTopicOrPartition(f"{what} not exist")

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the earliest offset of each partition."""
        return self._ask(partitions, EARLIEST)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the latest offset of each partition; with read_committed, the last stable one."""
        return self._ask(partitions, LATEST)

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each log, including records of open transactions."""
        asked = list(partitions)
        return offsets.log_ends(self._cluster, self._options, asked) if asked else {}

    def wait(self, at: Mapping[TopicPartition, int], wait_s: float) -> bool:
        """Wait until a partition may have records from its offset on; return whether one may.

        A fetch waits at each leader. It stays parked when the time is over, and the next call
        waits for it again.
        """
        deadline_s = time.monotonic() + wait_s
        if not at:
            time.sleep(wait_s)
            return False
        while True:
            self._park_all(at, wait_s)
            poll = select.poll()
            by_descriptor = {}
            for leader_id, (connection, _) in self._parked.items():
                by_descriptor[connection.fileno()] = leader_id
                poll.register(connection.fileno(), select.POLLIN)
            left_s = deadline_s - time.monotonic()
            ready = poll.poll(max(left_s, 0) * 1000)
            # Read all of them: an unread response would report old records in the next call.
            news = [self._has_new_records(by_descriptor[number], at) for number, _ in ready]
            if any(news):
                return True
            if not ready or left_s <= 0:
                return False

    def _ask(self, partitions: Iterable[TopicPartition], named: int) -> dict[TopicPartition, int]:
        asked = list(partitions)
        if not asked:
            return {}
        found = offsets.offsets_at(self._cluster, self._options, asked, named)
        # If a leader has moved, the metadata was refreshed, and topic ids may have changed.
        self._compare_ids(asked)
        return found

    def _compare_ids(self, partitions: Iterable[TopicPartition]) -> None:
        for name in {partition.topic for partition in partitions}:
            topic_id = self._cluster.topic(name).topic_id
            if self._ids.setdefault(name, topic_id) != topic_id:
                self.recreated.add(name)

    def _by_leader(self, at: Mapping[TopicPartition, int]) -> dict[int, dict[TopicPartition, int]]:
        found: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in at.items():
            found.setdefault(self._cluster.leader(partition).leader_id, {})[partition] = offset
        return found

    def _park_all(self, at: Mapping[TopicPartition, int], wait_s: float) -> None:
        """Park a fetch at every leader; one that is parked already stays as it is."""
        by_leader = self._by_leader(at)
        for leader_id, (connection, _) in list(self._parked.items()):
            if not connection.is_usable or (leader_id not in by_leader):
                self._drop(leader_id)
        limits = Limits(
            max_wait_ms=round(wait_s * 1000),
            # The response still contains one batch (KIP-74), which is ignored.
            max_bytes=1,
            partition_max_bytes=1,
            isolation_level=READ_COMMITTED if self._options.read_committed else READ_UNCOMMITTED,
        )
        for leader_id, asked in by_leader.items():
            if leader_id not in self._parked:
                self._parked[leader_id] = (self._cluster.open(leader_id), {})
            connection, _ = self._parked[leader_id]
            if connection.in_flight:
                continue
            self._parked[leader_id] = (connection, asked)
            try:
                send_fetch(connection, [Ask(p, offset) for p, offset in asked.items()], limits)
            except KafkaError:
                self._drop(leader_id)
                raise

    def _has_new_records(self, leader_id: int, at: Mapping[TopicPartition, int]) -> bool:
        """Read a parked fetch's response; return whether the ends may have changed."""
        connection, asked = self._parked[leader_id]
        try:
            answers = receive_fetch(connection, asked)
        except KafkaError:
            self._drop(leader_id)
            return True
        for answer in answers:
            end = answer.high_watermark
            if self._options.read_committed:
                end = min(end, answer.last_stable_offset)
            # The fetch may have been sent with an earlier offset: only later records are new.
            if answer.error is not None or end > at.get(answer.partition, end):
                return True
        return False

    def _drop(self, leader_id: int) -> None:
        connection, _ = self._parked.pop(leader_id)
        connection.close()
