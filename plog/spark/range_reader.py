"""Fetches the record sets of many ranges, leader by leader, one fetch ahead of the decoder.

Owns the fetches of one task and the handling of their faults: retries, moved leaders, deleted
records. Never looks into records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from plog.client.fetcher import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Ask,
    Fetched,
    Limits,
    receive_fetch,
    send_fetch,
)
from plog.client.metadata import Cluster
from plog.client.offsets import list_offsets
from plog.errors import (
    CorruptRecord,
    KafkaError,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from plog.spark.bounds import EARLIEST, LATEST
from plog.spark.offsets import OffsetRange
from plog.spark.options import SourceOptions
from plog.types import TopicPartition

log = logging.getLogger(__name__)

MAX_PARTITIONS_PER_FETCH = 64
"""Enough that a thousand small partitions cost few round trips."""
UNKNOWN_TOPIC_GRACE_S = 5.0
"""How long a topic may be missing from the metadata before it counts as deleted."""


class RangeReader:
    """Yields pieces: the rest of a range, and the records fetched for it.

    The caller takes the records with `range.start` <= offset < `range.end` before it asks for the
    next piece. Each offset is delivered once, even if a fetch is repeated.
    """

    def __init__(
        self, cluster: Cluster, ranges: Sequence[OffsetRange], options: SourceOptions
    ) -> None:
        # Invariant: `start` of each remaining range is the first offset not delivered yet.
        self._left = {wanted.partition: wanted for wanted in ranges}
        self._cluster = cluster
        self._options = options
        self._limits = Limits(
            max_wait_ms=options.fetch_max_wait_ms,
            max_bytes=options.fetch_max_bytes,
            partition_max_bytes=options.partition_max_bytes,
            isolation_level=READ_COMMITTED if options.read_committed else READ_UNCOMMITTED,
        )
        self._out_of_range: set[TopicPartition] = set()
        self._last_progress = time.monotonic()
        self._missing_since: float | None = None
        """Since when brokers have reported a topic as unknown, without another fault between."""

    def __iter__(self) -> Iterator[tuple[OffsetRange, Fetched]]:
        """Iterate until every range is read.

        Raises:
            OffsetOutOfRange: records were deleted meanwhile, and failOnDataLoss is set.
            UnknownTopicOrPartition: the topic was deleted meanwhile, and failOnDataLoss is set.
            KafkaError: not retriable, or it lasted longer than kafkaConsumer.pollTimeoutMs.
        """
        self._last_progress = time.monotonic()
        while self._left:
            try:
                self._look_up_topics()
                self._skip_what_is_gone()
                yield from self._read_leader()
            except KafkaError as fault:
                self._start_over(fault)

    def _look_up_topics(self) -> None:
        unknown = {p.topic for p in self._left} - self._cluster.topics.keys()
        if unknown:
            self._cluster.refresh(sorted(unknown))
        for partition, left in list(self._left.items()):
            topic = self._cluster.topic(partition.topic)
            if topic.topic_id != left.topic_id:
                self._report_loss(left, "its topic was deleted and recreated")

    def _skip_what_is_gone(self) -> None:
        asked = [partition for partition in self._out_of_range if partition in self._left]
        self._out_of_range.clear()
        if not asked:
            return
        first, last = (
            # No retries here: a fault starts the loop over.
            list_offsets(self._cluster, dict.fromkeys(asked, named), timeout_ms=0)
            for named in (EARLIEST, LATEST)
        )
        for partition in asked:
            left = self._left[partition]
            start = first[partition].offset
            if left.start < start:
                lost = left._replace(end=min(start, left.end))
                self._report_loss(lost, f"records below {start} were deleted")
                if start < left.end:
                    self._left[partition] = left._replace(start=start)
                self._last_progress = time.monotonic()
            elif left.start > last[partition].offset:
                self._report_loss(left, f"the log now ends at {last[partition].offset}")
            else:  # the leader was briefly behind
                time.sleep(self._options.retry_backoff_ms / 1000)

    def _report_loss(self, left: OffsetRange, why: str) -> None:
        """Drop the rest of a range, or raise with failOnDataLoss=true."""
        text = (
            f"offsets {left.start} to {left.end} of {left.partition} cannot be read: {why} while "
            "the query ran"
        )
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(f"{text}; set failOnDataLoss=false to continue without them")
        log.warning("plog source: %s; continuing without them (failOnDataLoss=false)", text)
        del self._left[left.partition]

    def _read_leader(self) -> Iterator[tuple[OffsetRange, Fetched]]:
        """Read from one leader until it has no more records, or until a fault."""
        if not self._left:
            return
        leader_id = self._cluster.leader(next(iter(self._left))).leader_id
        connection = self._cluster.connection(leader_id)
        asks = self._next_asks(leader_id, {})
        send_fetch(connection, asks, self._limits)
        while asks:
            answers = receive_fetch(
                connection,
                {ask.partition: ask.offset for ask in asks},
                {ask.topic_id: ask.partition.topic for ask in asks},
            )
            failed = [answer for answer in answers if answer.error is not None]
            moved = not failed and self._end_in_gaps(answers)
            ahead = {answer.partition: answer.next_offset for answer in answers}
            asks = [] if failed else self._next_asks(leader_id, ahead)
            if asks:
                send_fetch(connection, asks, self._limits)
            for answer in answers:
                left = self._left.get(answer.partition)
                if left is not None and answer.error is None and answer.next_offset > left.start:
                    moved = True
                    yield left, answer
                    self._advance(answer)
            now = time.monotonic()
            if moved:
                self._last_progress, self._missing_since = now, None
            elif not failed:
                self._check_timeout(now)
            for answer in failed:
                if isinstance(answer.error, OffsetOutOfRange):
                    self._out_of_range.add(answer.partition)
            for answer in failed:
                if answer.error is not None and not isinstance(answer.error, OffsetOutOfRange):
                    raise answer.error
            if failed:
                self._check_timeout(now)

    def _next_asks(self, leader_id: int, ahead: Mapping[TopicPartition, int]) -> list[Ask]:
        """Return the next fetch for a leader; `ahead` are the offsets of undelivered responses."""
        asks: list[Ask] = []
        for partition, left in self._left.items():
            start = max(left.start, ahead.get(partition, 0))
            leader = self._cluster.leader(partition)
            if leader.leader_id == leader_id and start < left.end:
                asks.append(Ask(partition, start, leader.leader_epoch, left.topic_id))
                if len(asks) == MAX_PARTITIONS_PER_FETCH:
                    break
        return asks

    def _advance(self, answer: Fetched) -> None:
        left = self._left[answer.partition]
        if answer.next_offset >= left.end:
            del self._left[answer.partition]
        else:
            self._left[answer.partition] = left._replace(start=answer.next_offset)

    def _end_in_gaps(self, answers: list[Fetched]) -> bool:
        """Drop ranges whose last records were compacted away; return whether there were any."""
        ended = False
        if any(answer.records for answer in answers):
            return ended  # empty partitions may just not have fitted into the response
        for answer in answers:
            readable = answer.high_watermark
            if self._options.read_committed:
                readable = min(readable, answer.last_stable_offset)
            left = self._left[answer.partition]
            if readable >= left.end:
                del self._left[answer.partition]
                ended = True
        return ended

    def _check_timeout(self, now: float) -> None:
        if now - self._last_progress > self._options.poll_timeout_ms / 1000:
            partition, left = next(iter(self._left.items()))
            raise _ReadTimedOut(
                f"no record from {partition} at offset {left.start} within "
                f"kafkaConsumer.pollTimeoutMs={self._options.poll_timeout_ms}"
            )

    def _start_over(self, fault: KafkaError) -> None:
        """Drop connections and metadata, and wait before the next attempt; else raise."""
        if not fault.retriable or isinstance(fault, (_ReadTimedOut, CorruptRecord)):
            raise fault
        now = time.monotonic()
        if now - self._last_progress > self._options.poll_timeout_ms / 1000:
            raise fault
        if not isinstance(fault, UnknownTopicOrPartition):
            # A broker that was away may not know its topics immediately.
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since > UNKNOWN_TOPIC_GRACE_S:
            self._drop_unknown(fault)
        self._cluster.close()
        for topic in list(self._cluster.topics):
            self._cluster.forget(topic)
        time.sleep(self._options.retry_backoff_ms / 1000)

    def _drop_unknown(self, fault: UnknownTopicOrPartition) -> None:
        if self._options.fail_on_data_loss:
            raise fault
        for partition in list(self._left):
            topic = self._cluster.topics.get(partition.topic)
            if topic is None or partition.partition not in topic.partitions:
                self._report_loss(self._left[partition], "its topic was deleted")


class _ReadTimedOut(RequestTimedOut):
    """No records for too long; not retried."""
