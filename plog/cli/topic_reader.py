"""The loops that read topics for `plog consume`: without a group, and as a member of one.

Owns when a loop ends, and which partitions it leaves out because they have no leader.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plog.cli.followed_topics import FollowedTopics, NewPartitions, led
from plog.cli.offset_places import LATEST, STARTS, LateStarts
from plog.cli.read_bounds import CoordinatorBound, ReadBounds
from plog.cli.record_formats import Format

if TYPE_CHECKING:
    from plog.client.consumer import Consumer, ConsumerRecord
    from plog.types import TopicPartition

POLL_MS = 1000
TERMINATED = 128 + signal.SIGTERM
"""The exit status that a shell reports for a command ended by SIGTERM."""


class Printer:
    """Prints records, at most `most`, and counts them."""

    def __init__(self, form: Format, most: int | None) -> None:
        self._form, self._left = form, most

    @property
    def is_done(self) -> bool:
        """Whether no more records are wanted."""
        return self._left == 0

    def print(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Print records and return those that were printed."""
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        if records:
            out = sys.stdout.buffer
            out.write(b"".join(map(self._form, records)))
            out.flush()
        return records


def read(
    bootstrap: str,
    topics: FollowedTopics,
    indexes: tuple[int, ...],
    start: str,
    until: str | None,
    isolation_level: str,
    printer: Printer,
) -> None:
    """Print the records of topics, between two places in each partition.

    Args:
        indexes: the partitions of the one topic that are read; all if empty.
        until: the end; None waits for new records.
    """
    from plog.client.consumer import Consumer
    from plog.client.metadata import Cluster

    with (
        Cluster(bootstrap) as cluster,
        Consumer(
            cluster,
            auto_offset_reset=start if start in STARTS else "earliest",
            isolation_level=isolation_level,
        ) as consumer,
    ):
        found = topics.require(cluster, indexes, waits=until is None)
        wanted = _partitions(consumer, found, indexes)
        if until is None:
            consumer.assign(wanted)
            late = None if start in STARTS else LateStarts(cluster, consumer, start)
            new = None if indexes else NewPartitions(topics, cluster, consumer)
            while not printer.is_done:
                if late is not None:
                    late.look_now_and_then()
                if new is not None:
                    new.look_now_and_then()
                printer.print(consumer.poll(POLL_MS))
            return
        # To the end, read the partitions that can be read.
        readable = led(cluster, wanted)
        consumer.assign(readable)
        consumer.pause(readable)
        bounds = ReadBounds(cluster, consumer.isolation_level, [start, until])
        bounds.wait_for(readable)
        _read_between(consumer, wanted, bounds, printer)


def _read_between(
    consumer: Consumer, wanted: Sequence[TopicPartition], bounds: ReadBounds, printer: Printer
) -> None:
    """Print the records between two places, in each partition once its leader answers.

    Args:
        consumer: its partitions are paused.
        wanted: the partitions of the command.
    """
    ends: dict[TopicPartition, int] = {}
    left: dict[TopicPartition, int] = {}
    while not printer.is_done:
        for at, (first, end) in bounds.look_now_and_then().items():
            consumer.seek(at, first)
            consumer.resume([at])
            ends[at] = left[at] = end
        ended = [at for at, end in left.items() if consumer.position(at) >= end]
        consumer.pause(ended)
        for at in ended:
            del left[at]
        if left:
            records = consumer.poll(POLL_MS)
            if any(consumer.position(at) > end for at, end in left.items()):
                records = [one for one in records if one.offset < ends[_where(one)]]
            printer.print(records)
        elif bounds.is_waiting:
            bounds.sleep()
        else:
            bounds.refuse_unread([at for at in wanted if at not in ends])
            break


def _partitions(
    consumer: Consumer, topics: Sequence[str], indexes: tuple[int, ...]
) -> list[TopicPartition]:
    """Return the partitions to read.

    Raises:
        UnknownTopicOrPartition: the topic has no such partition.
    """
    from plog.errors import UnknownTopicOrPartition
    from plog.types import TopicPartition, counted

    known = [partition for topic in topics for partition in consumer.partitions_for(topic)]
    if not indexes:
        return known
    chosen = [TopicPartition(topics[0], index) for index in dict.fromkeys(indexes)]
    for partition in chosen:
        if partition not in known:
            raise UnknownTopicOrPartition(
                f"topic {partition.topic!r} has {counted(len(known), 'partition')}, "
                f"but no partition {partition.partition}"
            )
    return chosen


def read_in_group(
    bootstrap: str,
    group: str,
    topics: FollowedTopics,
    options: Mapping[str, Any],
    printer: Printer,
    *,
    exit_at_end: bool,
) -> None:
    """Print the records of topics as a member of a group, and commit those that are printed.

    Args:
        options: of the group consumer.
    """
    from plog.client.consumer import ISOLATION_LEVELS
    from plog.client.group_consumer import GroupConsumer, Listener, OffsetAndMetadata
    from plog.client.metadata import Cluster

    # A group waits for a missing topic, but here the user has probably mistyped its name.
    ends: dict[TopicPartition, int] = {}
    with (
        _ends_by_sigterm(),
        Cluster(bootstrap) as cluster,
        GroupConsumer(
            bootstrap,
            group,
            enable_auto_commit=False,
            metadata_max_age_ms=int(topics.look_s * 1000),
            **options,
        ) as consumer,
    ):
        topics.require(cluster, (), waits=not exit_at_end)
        bounds = ReadBounds(cluster, ISOLATION_LEVELS[options["isolation_level"]], [LATEST])

        def look_at_ends(come: list[TopicPartition]) -> None:
            cluster.refresh({at.topic for at in come})
            readable = led(cluster, come)
            consumer.pause(set(come).difference(readable))
            for at in come:
                ends.pop(at, None)
            bounds.wait_for(readable)

        listener = Listener(on_assigned=look_at_ends) if exit_at_end else None
        coordinator = CoordinatorBound(group, str(topics))
        consumer.subscribe(topics.pattern or topics.names, listener)
        while not printer.is_done:
            # Commit only printed records; the next run of the group prints the others.
            printed = printer.print(consumer.poll(POLL_MS))
            consumer.commit(
                {
                    _where(one): OffsetAndMetadata(one.offset + 1, leader_epoch=one.leader_epoch)
                    for one in printed
                }
            )
            if not exit_at_end:
                continue
            assigned = consumer.assignment()
            coordinator.check(is_there=bool(assigned) or consumer.has_coordinator)
            bounds.keep(assigned)
            ends.update({at: end for at, (end,) in bounds.look_now_and_then().items()})
            readable = [at for at in assigned if at in ends]
            is_read = all(consumer.position(at) >= ends[at] for at in readable)
            if assigned and is_read and not bounds.is_waiting:
                bounds.refuse_unread([at for at in assigned if at not in ends])
                break


@contextmanager
def _ends_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that a member leaves its group."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _where(record: ConsumerRecord) -> TopicPartition:
    from plog.types import TopicPartition

    return TopicPartition(record.topic, record.partition)
