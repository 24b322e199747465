"""Turns a query's options into ranges of offsets, and ranges into tasks.

Owns the resolution of topics, times and named ends against the cluster. Reads no records.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heappush, heapreplace
from typing import NamedTuple, TypeVar

from plog.client.metadata import Cluster
from plog.client.offsets import OffsetAndTimestamp, list_offsets
from plog.errors import ConfigError, KafkaError, OffsetOutOfRange, PlogError
from plog.errors import UnknownTopicOrPartition as UnknownPartition
from plog.spark.bounds import EARLIEST, LATEST, Bound
from plog.spark.options import SourceOptions
from plog.spark.sink_options import is_decisions_topic
from plog.types import TopicPartition

T = TypeVar("T")


class NoLaterRecord(PlogError):
    """A partition has no record at or after the starting timestamp (strategy `error`)."""


class DataLoss(PlogError):
    """Records that a stream has not read yet are gone, and failOnDataLoss is set."""


class OffsetRange(NamedTuple):
    """Offsets start <= offset < end of one partition; `topic_id` identifies the topic."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: uuid.UUID


def open_cluster(options: SourceOptions) -> Cluster:
    """Return a client for the cluster of the options; it connects on first use."""
    return Cluster(
        options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
    )


def plan(options: SourceOptions) -> list[OffsetRange]:
    """Return the non-empty ranges that the query covers now.

    Retriable errors are retried: fetchOffset.numRetries attempts in all.

    Raises:
        ConfigError: offsets or times are given for other partitions than the query covers.
        UnknownTopicOrPartition: a named topic or partition does not exist.
        OffsetOutOfRange: requested offsets do not exist, and failOnDataLoss is set.
        NoLaterRecord: a partition has no record at or after the starting timestamp.
    """

    def step() -> list[OffsetRange]:
        with open_cluster(options) as cluster:
            return resolve(cluster, options, find_partitions(cluster, options))

    return with_attempts(options, step)


def plan_offsets_at(
    options: SourceOptions, partitions: Sequence[TopicPartition], at_ms: int
) -> dict[TopicPartition, int]:
    """Return each partition's first offset at or after this time; -1 if it has none."""

    def step() -> dict[TopicPartition, int]:
        with open_cluster(options) as cluster:
            return offsets_at(cluster, options, partitions, at_ms)

    return with_attempts(options, step)


def with_attempts(options: SourceOptions, step: Callable[[], T]) -> T:
    """Return the step's result; retry it after retriable errors, as `plan` does."""
    attempt = 1
    while True:
        try:
            return step()
        except KafkaError as fault:
            if not fault.retriable or attempt >= options.plan_attempts:
                raise
        attempt += 1
        time.sleep(options.plan_retry_interval_ms / 1000)


def find_partitions(cluster: Cluster, options: SourceOptions) -> list[TopicPartition]:
    """Return every partition the query covers; a pattern may cover none.

    Raises:
        UnknownTopicOrPartition: a named topic or partition does not exist.
    """
    found = existing_partitions(cluster, options)
    for name in {*options.topics, *(partition.topic for partition in options.assigned)}:
        cluster.topic(name)
    missing = set(options.assigned) - set(found)
    if missing:
        raise UnknownPartition(f"partition {_names(missing)} does not exist; see the option assign")
    return found


def existing_partitions(cluster: Cluster, options: SourceOptions) -> list[TopicPartition]:
    """Return the query's partitions that exist; asks the cluster.

    Raises:
        KafkaError: the cluster reports an error for a named topic.
    """
    if options.pattern is not None:
        cluster.refresh(None)
        # Without internal topics, as in Spark's Kafka source.
        topics = {
            name
            for name, topic in cluster.topics.items()
            if is_subscribed(options, name) and not topic.is_internal
        }
    else:
        topics = set(options.topics) | {partition.topic for partition in options.assigned}
        cluster.refresh(sorted(topics))
        for name in sorted(topics & cluster.errors.keys()):
            raise cluster.errors[name]
    existing = [
        TopicPartition(name, index)
        for name in sorted(topics & cluster.topics.keys())
        for index in sorted(cluster.topics[name].partitions)
    ]
    return [p for p in existing if p in options.assigned] if options.assigned else existing


def is_subscribed(options: SourceOptions, topic: str, index: int | None = None) -> bool:
    """Tell whether the query's options include a topic, or this partition of it."""
    if options.pattern is not None:
        # A match anywhere in the name, as in Spark's Kafka source. Decisions topics are left out:
        # their records are not data, and would start a new batch of the query that wrote them.
        return re.search(options.pattern, topic) is not None and not is_decisions_topic(topic)
    if options.assigned:
        return any(at.topic == topic and index in (None, at.partition) for at in options.assigned)
    return topic in options.topics


def first_offsets(
    cluster: Cluster, options: SourceOptions, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return where a stream begins in each partition (see `plan` for errors)."""
    if not partitions:
        return {}
    first, last = named_ends(cluster, options, partitions)
    starts = _bound(cluster, options, options.start, first, last, is_start=True)
    beyond = [partition for partition in partitions if starts[partition] > last[partition]]
    for partition, end in (log_ends(cluster, options, beyond) if beyond else {}).items():
        if starts[partition] > end and options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"startingOffsets={starts[partition]} is out of range for {partition}, which has "
                f"offsets {first[partition]} to {end}; use an offset within, or "
                "failOnDataLoss=false to start at its end"
            )
    return starts


def partitions_starting_at_end(
    cluster: Cluster, options: SourceOptions, partitions: Iterable[TopicPartition]
) -> set[TopicPartition]:
    """Return the partitions in which a stream begins at the present end of the log."""
    bound = options.start
    if bound.named is not None:
        return set(partitions) if bound.named == LATEST else set()
    if bound.offsets is not None:
        return {partition for partition, offset in bound.offsets.items() if offset == LATEST}
    if not options.latest_if_no_later_record:
        return set()
    found = _ask(cluster, options, _times(bound, partitions))
    return {partition for partition, at in found.items() if at.offset < 0}


def named_ends(
    cluster: Cluster, options: SourceOptions, partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the earliest and the latest offset of each partition."""
    asked = list(partitions)
    first, last = (offsets_at(cluster, options, asked, named) for named in (EARLIEST, LATEST))
    return first, last


def offsets_at(
    cluster: Cluster, options: SourceOptions, partitions: Iterable[TopicPartition], at: int
) -> dict[TopicPartition, int]:
    """Return each partition's EARLIEST or LATEST offset, or the first at or after a time (ms)."""
    found = _ask(cluster, options, dict.fromkeys(partitions, at))
    return {partition: at.offset for partition, at in found.items()}


def log_ends(
    cluster: Cluster, options: SourceOptions, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the end of each log, including records of open transactions."""
    return offsets_at(cluster, replace(options, read_committed=False), partitions, LATEST)


def resolve(
    cluster: Cluster, options: SourceOptions, partitions: Sequence[TopicPartition]
) -> list[OffsetRange]:
    """Return the range of each partition; empty ones are left out (see `plan` for errors)."""
    if not partitions:
        return []
    first, last = named_ends(cluster, options, partitions)
    starts = _bound(cluster, options, options.start, first, last, is_start=True)
    ends = _bound(cluster, options, options.end, first, last, is_start=False)
    beyond = [partition for partition in partitions if starts[partition] > last[partition]]
    log_end = last | (log_ends(cluster, options, beyond) if beyond else {})
    ranges = []
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        low, high = max(start, first[partition]), min(end, last[partition])
        # Offsets found by time are in range, unless the log has changed since `first` and `last`.
        asked_start = options.start.offsets is not None
        asked_end = options.end.offsets is not None
        if options.fail_on_data_loss and (
            (asked_start and (start < min(first[partition], end) or start > log_end[partition]))
            or (asked_end and end > last[partition])
        ):
            raise OffsetOutOfRange(
                f"offsets {start} to {end} are out of range for {partition}, which has offsets "
                f"{first[partition]} to {last[partition]}; set failOnDataLoss=false to read only "
                "existing records"
            )
        if low < high:
            topic_id = cluster.topic(partition.topic).topic_id
            ranges.append(OffsetRange(partition, low, high, topic_id))
    return ranges


def _bound(
    cluster: Cluster,
    options: SourceOptions,
    bound: Bound,
    first: dict[TopicPartition, int],
    last: dict[TopicPartition, int],
    *,
    is_start: bool,
) -> dict[TopicPartition, int]:
    if bound.named is not None:
        return dict(first) if bound.named == EARLIEST else dict(last)
    if bound.offsets is not None:
        _check_covers(bound.offsets, first)
        named = {EARLIEST: first, LATEST: last}
        return {
            partition: named[offset][partition] if offset in named else offset
            for partition, offset in bound.offsets.items()
        }
    times = _times(bound, first)
    resolved = {}
    for partition, at in _ask(cluster, options, times).items():
        if at.offset >= 0:
            resolved[partition] = at.offset
        elif is_start and not options.latest_if_no_later_record:
            raise NoLaterRecord(
                f"{partition} has no record at or after timestamp {times[partition]}; set "
                "startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        else:
            resolved[partition] = last[partition]
    return resolved


def _times(bound: Bound, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    if bound.timestamps is not None:
        _check_covers(bound.timestamps, partitions)
        return dict(bound.timestamps)
    assert bound.timestamp is not None
    return dict.fromkeys(partitions, bound.timestamp)


def _ask(
    cluster: Cluster, options: SourceOptions, times: dict[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndTimestamp]:
    # No long retries here: the caller starts over, with fresh metadata.
    return list_offsets(
        cluster, times, int(options.read_committed), timeout_ms=options.plan_retry_interval_ms
    )


def _check_covers(given: Iterable[TopicPartition], wanted: Iterable[TopicPartition]) -> None:
    missing, surplus = set(wanted) - set(given), set(given) - set(wanted)
    if missing:
        raise ConfigError(
            f"plog source: no offset given for {_names(missing)}; give one for every partition "
            "(-2 is the earliest in startingOffsets, -1 the latest in endingOffsets)"
        )
    if surplus:
        raise ConfigError(
            f"plog source: an offset is given for {_names(surplus)}, which the query does not "
            "read; remove it"
        )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions)))


def split(
    ranges: Sequence[OffsetRange], options: SourceOptions, tasks: int
) -> list[list[OffsetRange]]:
    """Cut the ranges of a batch query into tasks of equal size, give or take one record.

    The number of tasks is the larger of `tasks` and minPartitions, or more if
    maxRecordsPerPartition requires it; never more than records. A task reads many log partitions,
    because each task costs tens of milliseconds.
    """
    total = sum(r.end - r.start for r in ranges)
    count = max(tasks, options.min_partitions or 1)
    if options.max_records_per_partition is not None:
        count = max(count, -(-total // options.max_records_per_partition))
    return _cut(ranges, count)


def share_out(
    ranges: Sequence[OffsetRange], options: SourceOptions, tasks: int
) -> list[list[OffsetRange]]:
    """Split the ranges of a stream's batch among tasks, each partition to one task.

    So the records of a partition stay in order. A partition is cut only where Spark's Kafka source
    cuts it: if it has more records than maxRecordsPerPartition, or if minPartitions asks for more
    tasks than there are partitions. The number of tasks is otherwise at most the larger of `tasks`
    and minPartitions, as even as whole ranges allow.
    """
    most, wanted = options.max_records_per_partition, options.min_partitions or 1
    pieces = list(ranges)
    if most is not None:
        pieces = [one for r in pieces for (one,) in _cut([r], -(-(r.end - r.start) // most))]
    if wanted > len(pieces):
        total = sum(r.end - r.start for r in pieces)
        parts = [max(round((r.end - r.start) / total * wanted), 1) for r in pieces]
        pieces = [
            one for r, count in zip(pieces, parts, strict=True) for (one,) in _cut([r], count)
        ]
    count = min(max(tasks, wanted), len(pieces))
    shares: list[dict[TopicPartition, OffsetRange]] = [{} for _ in range(count)]
    sizes = [(0, number) for number in range(count)]  # a heap
    for largest in sorted(pieces, key=lambda r: r.start - r.end):
        size, at = largest.end - largest.start, largest.partition
        taken, number = sizes[0]
        if at in shares[number] or (taken and most is not None and taken + size > most):
            heappush(sizes, (size, len(shares)))
            shares.append({at: largest})
        else:
            heapreplace(sizes, (taken + size, number))
            shares[number][at] = largest
    return [list(share.values()) for share in shares]


def _cut(ranges: Sequence[OffsetRange], count: int) -> list[list[OffsetRange]]:
    """Cut ranges into `count` parts of equal size, give or take one record; none if empty."""
    total = sum(r.end - r.start for r in ranges)
    count = min(count, total)
    parts: list[list[OffsetRange]] = []
    room = 0
    for whole in ranges:
        left = whole
        while left.start < left.end:
            if room == 0:
                number = len(parts)
                room = total * (number + 1) // count - total * number // count
                parts.append([])
            end = min(left.end, left.start + room)
            parts[-1].append(left._replace(end=end))
            room -= end - left.start
            left = left._replace(start=end)
    return parts
