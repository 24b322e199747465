"""Streams: how far each batch goes, and what it reads; the same again when Spark asks again.

Runs in one process of the driver for each query, which Spark keeps. Owns what becomes of topics
that grow, go or come anew under a query. The offsets are Spark's, in its checkpoint.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from plog.client.group_admin import GroupAdmin
from plog.errors import KafkaError, PlogError, UnknownTopicOrPartition
from plog.spark import offsets
from plog.spark.offsets import DataLoss, OffsetRange
from plog.spark.options import SourceOptions
from plog.spark.range_reader import UNKNOWN_TOPIC_GRACE_S
from plog.spark.sink_options import is_decisions_topic
from plog.spark.stream_offsets import (
    Delay,
    Offsets,
    between,
    from_json,
    limited,
    to_json,
    waiting,
)
from plog.spark.task_reader import TaskRanges, TaskReader
from plog.spark.topic_watch import TopicWatch
from plog.types import TopicPartition

log = logging.getLogger(__name__)
T = TypeVar("T")

IDLE_WAIT_S = 0.5
"""Spark asks for the latest offset a hundred times a second; an answer of nothing takes so long."""
POLLING_GAP_S = 0.05
"""Spark that comes back sooner had nothing else to do. Else another source of the query may be
busy, which an idle one is not to hold up; or the trigger has its own time."""
COMMIT_TIMEOUT_MS = 5_000
"""A group's coordinator that is away holds the query up no longer."""
NO_LIMIT = ReadMaxRows(2**63 - 1)
"""Unlike ReadAllAvailable, which is Trigger.Once's alone then: that trigger is not to wait."""


class PlogStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream and reads the ranges of a task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Made when it is needed: readers are pickled for the executors before that.
        self._watch: TopicWatch | None = None
        self._delay: Delay | None = None
        if options.min_offsets_per_trigger is not None:
            self._delay = Delay(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._frozen: Offsets | None = None
        """Where Trigger.AvailableNow ends."""
        self._initial: Offsets | None = None
        """Where the query begins, once Spark has asked."""
        self._pinned: Offsets = {}
        """Where the first batch leaves partitions as they are (see `initialOffset`)."""
        self._latest: Offsets = {}
        """The last ends seen."""
        self._nothing_after: Offsets | None = None
        """Offsets after which there was nothing when last asked."""
        self._answered_s = float("-inf")
        """When Spark last had an answer."""
        self._missing_since: dict[TopicPartition, float] = {}
        self._patience = Patience(options)
        self._turn = 0

    @property
    def watch(self) -> TopicWatch:
        """Return this run's view of the topics."""
        if self._watch is None:
            self._watch = TopicWatch(self.options)
        return self._watch

    # -- what Spark calls

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options; a batch is held to all of them, whatever is returned."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return NO_LIMIT

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the run ends: at what is there now."""

        def step() -> Offsets:
            self.watch.look(0)
            if not are_gone:
                self.watch.require_topics()
            return self.watch.ends(self.watch.found)

        are_gone = False
        try:
            self._frozen = self._retry(step)
        except UnknownTopicOrPartition:
            # They are not just unknown to a broker that has started: `latestOffset` sees to them.
            are_gone = True
            self._frozen = self._retry(step)

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802
        """Return where the options have the query begin; the same all through a run.

        Spark asks when it plans the first batch, and again when it runs it. It does not write this
        down: should that batch be interrupted, it asks once more in its next run. What is latest
        would be later by then, so that batch reads nothing of such a partition; its end is written
        down, and the next batch begins there.
        """
        if self._initial is not None:
            return to_json(self._initial)

        def step() -> tuple[Offsets, set[TopicPartition]]:
            try:
                return self.watch.first_offsets()
            except KafkaError:
                self.watch.start_over()
                raise

        self._initial, at_end = offsets.with_attempts(self.options, step)
        self._pinned = {partition: self._initial[partition] for partition in at_end}
        return to_json(self._initial)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:  # noqa: N802
        """Return where the next batch ends; `start`, if nothing is there."""
        begin = self._read_offsets(start)
        if isinstance(limit, ReadAllAvailable):
            end = self._retry(lambda: self._survey(begin, may_wait=False))
        elif self._frozen is not None:
            now = self._retry(lambda: self._survey(begin, may_wait=False))
            end = self._cut(begin, self._up_to_frozen(begin, now))
        else:
            end = self._cut(begin, self._hold_back(begin, self._wait_for_records(begin)))
        if self._pinned:
            # What has come to be since would begin at its end, should this batch be repeated.
            end = {partition: offset for partition, offset in end.items() if partition in begin}
        for partition, start_of_run in self._pinned.items():
            if begin.get(partition) == start_of_run and partition in end:
                end[partition] = start_of_run
        self._pinned.clear()
        self._answered_s = time.monotonic()
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802
        """Return the ends last seen, for the query's progress."""
        return to_json(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[TaskRanges]:
        """Share out what is between two offsets; the same each time, if nothing was lost."""
        begin, until = self._read_offsets(start), self._read_offsets(end)
        self._pinned.clear()  # a first batch that is repeated has its end
        ranges = self._retry(lambda: self._ranges(begin, until))
        shares = offsets.share_out(ranges, self.options, os.cpu_count() or 1)
        return [TaskRanges(share) for share in shares]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit to the group of commitOffsetsToGroup, for tools that show how far readers are.

        Spark calls this when the next batch is planned. A failure is logged; the checkpoint
        alone says where the query goes on.
        """
        group = self.options.commit_group
        if group is None:
            return
        try:
            with GroupAdmin(
                self.options.bootstrap_servers,
                client_id=self.options.client_id,
                request_timeout_ms=min(self.options.request_timeout_ms, COMMIT_TIMEOUT_MS),
            ) as admin:
                admin.commit(group, from_json(end))
        except PlogError as fault:
            log.warning("plog source: offsets are not committed to group %r: %s", group, fault)

    def stop(self) -> None:
        """Close the connections; Spark may end the process without this."""
        if self._watch is not None:
            self._watch.start_over()

    def _read_offsets(self, told: dict[str, Any]) -> Offsets:
        """Read offsets of the checkpoint; without what a pattern finds by `kafka`, but not here."""
        read = from_json(told)
        if self.options.pattern is None:
            return read
        return {p: offset for p, offset in read.items() if not is_decisions_topic(p.topic)}

    # -- how far a batch goes

    def _wait_for_records(self, begin: Offsets) -> Offsets:
        """Return the ends, as soon as there is something new or the idle wait is over."""
        try:
            is_polling = time.monotonic() - self._answered_s < POLLING_GAP_S
            if self._nothing_after == begin and is_polling:
                there = set(self.watch.found)
                at = {p: offset for p, offset in begin.items() if p in there}
                if not self.watch.wait(at, IDLE_WAIT_S) and not self._has_changed(begin):
                    return begin
            end = self._survey(begin, may_wait=True)
        except KafkaError as fault:
            self._nothing_after = None
            self._wait_out(fault, self._patience)
            return dict(begin)  # short, so that the query can be stopped meanwhile
        self._patience = Patience(self.options)
        self._nothing_after = begin if end == begin else None
        return end

    def _has_changed(self, begin: Offsets) -> bool:
        self.watch.look()
        return bool(self.watch.recreated) or set(self.watch.found) != begin.keys()

    def _survey(self, begin: Offsets, *, may_wait: bool) -> Offsets:
        """Return how far each partition goes now, after `begin`; all of `begin` but what is lost.

        Args:
            may_wait: whether a topic that is missing may be passed over until it is sure that it
                was deleted; else that is awaited here.

        Raises:
            DataLoss: records are lost, and failOnDataLoss is set.
        """
        self.watch.look()
        found = set(self.watch.found)
        missing = sorted(begin.keys() - found)
        gone = self._gone(missing, may_wait=may_wait)
        ends = self.watch.ends(sorted(found))
        short = [p for p in sorted(ends.keys() & begin.keys()) if ends[p] < begin[p]]
        if short:
            self.watch.look(0)
            # What an earlier run read of a transaction that is still open is waited for, not lost.
            for partition, end in self.watch.log_ends(short).items():
                ends[partition] = min(end, begin[partition])
        for partition in short:
            if partition.topic not in self.watch.recreated and ends[partition] < begin[partition]:
                self._report_loss(
                    f"{partition} ends at offset {ends[partition]}, and the query goes on at "
                    f"{begin[partition]}: the log lost its end, or the topic was deleted and "
                    "created anew while no query ran",
                    "goes on at its end",
                )
        anew = sorted(self.watch.recreated)
        for topic in anew:
            if all(partition.topic != topic for partition in begin):
                continue
            self._report_loss(
                f"topic {topic!r} was deleted and created anew while the query ran; the offsets "
                "that were read say nothing of its records",
                "reads it from its start",
            )
            ends |= self.watch.starts(p for p in ends if p.topic == topic)
        for partition in missing:
            if partition in gone:
                self._report_loss(
                    f"{partition} is gone, which the query has read up to offset "
                    f"{begin[partition]}: {gone[partition]}",
                    "goes on without it",
                )
                if all(other.topic != partition.topic for other in found):
                    self.watch.forget(partition.topic)
            else:
                ends[partition] = begin[partition]
        for partition in found:
            self._missing_since.pop(partition, None)
        for topic in anew:
            # Not before all is known: after a fault the next survey has to say the same.
            self.watch.accept(topic)
        self._latest = ends
        return dict(ends)

    def _gone(
        self, missing: Sequence[TopicPartition], *, may_wait: bool
    ) -> dict[TopicPartition, str]:
        """Return which of the partitions that were not found are gone, and why.

        Others may come back.

        Raises:
            UnknownTopicOrPartition: some may, and that is awaited here.
        """
        gone, now_s = {}, time.monotonic()
        # All at once: each has its own time to come back, which is the same.
        for partition in missing:
            if not offsets.is_subscribed(self.options, *partition):
                gone[partition] = "subscribe, subscribePattern or assign leave it out now"
            elif now_s - self._missing_since.setdefault(partition, now_s) <= (
                UNKNOWN_TOPIC_GRACE_S
            ):
                continue
            elif self.watch.has_topic(partition.topic):
                gone[partition] = "its topic has fewer partitions now, as it was created anew"
            else:
                gone[partition] = "its topic was deleted"
        if len(gone) < len(missing) and not may_wait:
            away = next(partition for partition in missing if partition not in gone)
            raise UnknownTopicOrPartition(f"partition {away} does not exist")
        return gone

    def _up_to_frozen(self, begin: Offsets, now: Offsets) -> Offsets:
        """Return the ends for Trigger.AvailableNow: of what was there when the run began."""
        assert self._frozen is not None
        frozen = self._frozen
        return {
            partition: min(end, max(frozen.get(partition, 0), begin.get(partition, 0)))
            for partition, end in now.items()
            if partition in frozen or partition in begin
        }

    def _hold_back(self, begin: Offsets, end: Offsets) -> Offsets:
        """Return `begin` instead of an end that is less than minOffsetsPerTrigger away."""
        if self._delay is None:
            return end
        if any(end.get(partition, -1) < offset for partition, offset in begin.items()):
            return end  # something was lost, and the next batch has to know
        count = sum(max(offset - begin.get(p, 0), 0) for p, offset in end.items())
        if count == 0:
            return end
        left_s = self._delay.left_s(count, time.monotonic())
        if left_s <= 0:
            return end
        if time.monotonic() - self._answered_s < POLLING_GAP_S:
            time.sleep(min(left_s, IDLE_WAIT_S))
        return dict(begin)

    def _cut(self, begin: Offsets, end: Offsets) -> Offsets:
        """Return the end of a batch of no more than maxOffsetsPerTrigger."""
        limit = self.options.max_offsets_per_trigger
        if limit is None:
            return end
        new = end.keys() - begin.keys()
        starts = begin | (self._retry(lambda: self.watch.starts(sorted(new))) if new else {})
        if sum(waiting(starts, end).values()) > limit:
            self._turn += 1
        return limited(starts, end, limit, self._turn)

    # -- what a batch reads

    def _ranges(self, begin: Offsets, until: Offsets) -> list[OffsetRange]:
        """Return what is between two offsets and still there.

        Raises:
            DataLoss: something is not, and failOnDataLoss is set.
        """
        pieces = between(begin, until)
        if not pieces:
            return []
        self.watch.look()
        found = set(self.watch.found)
        gone = self._gone([p.partition for p in pieces if p.partition not in found], may_wait=False)
        for piece in list(pieces):
            partition = piece.partition
            if partition in gone:
                why = gone[partition]
            elif partition.topic in self.watch.recreated:
                why = "its topic was deleted and created anew while the query ran"
            else:
                self._missing_since.pop(partition, None)
                continue
            self._report_loss(
                f"{partition} cannot be read up to offset {piece.end}: {why}", "goes on without it"
            )
            pieces.remove(piece)
        firsts = self.watch.starts(piece.partition for piece in pieces)
        # A batch of an earlier run may end where the log does not reach any more.
        unsure = [p.partition for p in pieces if p.end > self._latest.get(p.partition, -1)]
        lasts = self.watch.log_ends(unsure)
        ranges = []
        for partition, start, end in pieces:
            first, last = firsts[partition], lasts.get(partition, end)
            if start is None:
                if first > 0:
                    log.warning("plog source: %s joins the query at offset %d", partition, first)
                start = first
            if start < first:
                self._report_loss(
                    f"records of {partition} from offset {start} to {min(first, end)} were deleted "
                    f"(by retention, say) before the query read them; its log begins at {first}",
                    "goes on with those that are there",
                )
            if end > last:
                self._report_loss(
                    f"{partition} ends at offset {last}, and a batch that is repeated goes from "
                    f"{start} to {end}: the log lost its end, or the topic was deleted and "
                    "created anew while no query ran",
                    "goes on with what is there",
                )
            low, high = max(start, first), min(end, last)
            if low < high:
                topic_id = self.watch.topic_id(partition.topic)
                ranges.append(OffsetRange(partition, low, high, topic_id))
        return ranges

    def _report_loss(self, what: str, otherwise: str) -> None:
        """Say that records are lost; an error if the user wants that.

        Raises:
            DataLoss: failOnDataLoss is set.
        """
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{what}. The query cannot go on without losing records: failOnDataLoss=false "
                f"{otherwise}, a new checkpoint begins at startingOffsets"
            )
        log.warning("plog source: %s; the query %s (failOnDataLoss=false)", what, otherwise)

    # -- faults

    def _retry(self, step: Callable[[], T]) -> T:
        """Return what a step returns; after faults that may pass, try again for a while."""
        patience = Patience(self.options)
        while True:
            try:
                return step()
            except KafkaError as fault:
                self._wait_out(fault, patience)

    def _wait_out(self, fault: KafkaError, patience: Patience) -> None:
        """Wait a little after a fault that may pass; else raise it."""
        self.watch.start_over()
        if not isinstance(fault, UnknownTopicOrPartition):
            # Nobody looked meanwhile: what was missing before it may have been there.
            self._missing_since.clear()
        is_first = not patience.is_tried
        if not patience.covers(fault, time.monotonic()):
            raise fault
        if is_first:
            log.warning("plog source: the query waits: %s", fault)
        time.sleep(self.options.retry_backoff_ms / 1000)


class Patience:
    """How long faults that follow each other are waited out.

    That is kafkaConsumer.pollTimeoutMs; of a topic that is unknown, a little more than makes it
    count as deleted, which is counted from when brokers have said so and nothing else.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._most_s = options.poll_timeout_ms / 1000
        self._since_s: float | None = None
        self._unknown_since_s: float | None = None

    @property
    def is_tried(self) -> bool:
        """Tell whether there was a fault."""
        return self._since_s is not None

    def covers(self, fault: KafkaError, now_s: float) -> bool:
        """Tell whether one more fault may be waited out."""
        if self._since_s is None:
            self._since_s = now_s
        since_s, most_s = self._since_s, self._most_s
        if not isinstance(fault, UnknownTopicOrPartition):
            self._unknown_since_s = None
        else:
            if self._unknown_since_s is None:
                self._unknown_since_s = now_s
            since_s, most_s = self._unknown_since_s, min(most_s, UNKNOWN_TOPIC_GRACE_S) + 1
        return fault.retriable and now_s - since_s <= most_s
