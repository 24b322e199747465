"""The topics that `plog consume` reads: some names, or a pattern that new topics may match later.

Owns which partitions are read, and when to look for new ones. Never moves a position, except to the
start of a new partition.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import click

from plog.cli.output import names_text, say, warn_of_leaderless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plog.client.consumer import Consumer
    from plog.client.metadata import Cluster
    from plog.types import TopicPartition


class FollowedTopics:
    """Topics by name or by pattern.

    Args:
        names: the topics; empty with a pattern.
        pattern: a regular expression that matches whole names.

    Raises:
        click.UsageError: neither or both are given, or the pattern is not valid.
    """

    look_s = 5.0
    """How often to look for new topics and partitions."""

    def __init__(self, names: tuple[str, ...], pattern: str | None) -> None:
        if names and pattern is not None:
            raise click.UsageError("--pattern conflicts with names of topics")
        if not names and pattern is None:
            raise click.UsageError("missing topic: name one or more, or use --pattern")
        self.names = tuple(dict.fromkeys(names))
        self.pattern: re.Pattern[str] | None = None
        if pattern is not None:
            try:
                self.pattern = re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as fault:
                raise click.BadParameter(
                    f"{pattern!r} is not a regular expression: {fault}", param_hint="--pattern"
                ) from fault

    def __str__(self) -> str:
        """Return the topics as messages name them."""
        if self.pattern is not None:
            return f"topics that match {self.pattern.pattern!r}"
        return names_text(self.names, "topic")

    def require(self, cluster: Cluster, partitions: tuple[int, ...], *, waits: bool) -> list[str]:
        """Return the topics that exist; warn of partitions without a leader.

        Args:
            partitions: those that are read; all if empty.
            waits: a pattern may match no topic yet, and a partition may have no leader yet.

        Raises:
            UnknownTopicOrPartition: a named topic does not exist, or no topic matches.
        """
        from plog.errors import UnknownTopicOrPartition

        found = self.find(cluster)
        for name in self.names:
            cluster.topic(name)
        if self.pattern is not None and not found:
            text = f"no topic matches {self.pattern.pattern!r}"
            if not waits:
                raise UnknownTopicOrPartition(text)
            say(f"plog: {text}; waiting for one", err=True)
        outcome = "waiting for it" if waits else "not read"
        for name in found:
            if any(part.leader_id < 0 for part in cluster.topics[name].partitions.values()):
                warn_of_leaderless(cluster, name, partitions, outcome=outcome)
        return found

    def find(self, cluster: Cluster) -> list[str]:
        """Ask the cluster; return the topics that exist, without its internal ones for a pattern.

        Raises:
            NetworkException: no broker answers.
        """
        if self.pattern is None:
            cluster.refresh(self.names)
            return [name for name in self.names if name in cluster.topics]
        cluster.refresh(None)
        return sorted(
            name
            for name, topic in cluster.topics.items()
            if not topic.is_internal and self.pattern.fullmatch(name)
        )


def led(cluster: Cluster, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that have a leader, by the metadata at hand."""
    return [at for at in partitions if cluster.known_leader(at) is not None]


class NewPartitions:
    """Assigns partitions that appear while a consumer without a group runs.

    Args:
        consumer: reads with `cluster`.
    """

    def __init__(self, topics: FollowedTopics, cluster: Cluster, consumer: Consumer) -> None:
        self._topics, self._cluster, self._consumer = topics, cluster, consumer
        self._look_at = time.monotonic() + topics.look_s
        self._absent: set[str] = set()

    def look_now_and_then(self) -> None:
        """Assign new partitions, from their first record, and drop those of deleted topics.

        A broker that does not answer delays this until the next look.
        """
        from plog.client.offsets import EARLIEST, ask_leaders
        from plog.errors import KafkaError
        from plog.types import TopicPartition

        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self._topics.look_s
        cluster, consumer = self._cluster, self._consumer
        assigned = consumer.assignment()
        try:
            found = self._topics.find(cluster)
            exist = [
                TopicPartition(name, index)
                for name in found
                for index in cluster.topics[name].partitions
            ]
            new = sorted(set(exist).difference(assigned))
            # A partition without a leader yet has its turn at the next look.
            starts, _ = ask_leaders(cluster, dict.fromkeys(new, EARLIEST)) if new else ({}, None)
        except KafkaError as fault:
            if not fault.retriable:
                raise
            return
        # Absent twice, because one broker may not know yet of a topic that another has listed.
        absent = {partition.topic for partition in assigned}.difference(found)
        gone = absent & self._absent if self._topics.pattern is not None else set()
        self._absent = absent
        kept = [partition for partition in assigned if partition.topic not in gone]
        if starts or len(kept) < len(assigned):
            consumer.assign([*kept, *starts])
            for partition, start in starts.items():
                consumer.seek(partition, start.offset)
