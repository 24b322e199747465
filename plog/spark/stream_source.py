"""Plans the batches of a stream: where each ends, and the ranges it reads.

Runs in one driver process per query, for the whole run. Owns the reaction to topics that grow, are
deleted or are recreated under a query. Spark keeps the offsets, in its checkpoint; a batch that
Spark repeats reads the same ranges.
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
from plog.spark.retry_limit import RetryLimit
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
"""Spark asks for the latest offset a hundred times a second; without records the call waits."""
POLLING_GAP_S = 0.05
"""If Spark asks again within this time, it has nothing else to do, and the call may wait.
Otherwise another source of the query may be busy, or the trigger has an interval."""
COMMIT_TIMEOUT_MS = 5_000
"""Maximum time the query waits for the group's coordinator."""
NO_LIMIT = ReadMaxRows(2**63 - 1)
"""ReadAllAvailable then means Trigger.Once, which must not wait for records."""


class PlogStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream and reads the ranges of a task."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # Created on first use: readers are pickled for the executors before that.
        self._watch: TopicWatch | None = None
        self._delay: Delay | None = None
        if options.min_offsets_per_trigger is not None:
            self._delay = Delay(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._frozen: Offsets | None = None
        """The end of a run with Trigger.AvailableNow."""
        self._initial: Offsets | None = None
        """The start of the query, once Spark has asked for it."""
        self._pinned: Offsets = {}
        """Starts of partitions of which the first batch reads nothing (see `initialOffset`)."""
        self._latest: Offsets = {}
        """The last ends seen."""
        self._nothing_after: Offsets | None = None
        """Offsets that were the ends at the last check."""
        self._answered_s = float("-inf")
        """The time of the last `latestOffset` response."""
        self._missing_since: dict[TopicPartition, float] = {}
        self._limit = self._new_limit()
        self._turn = 0

    @property
    def watch(self) -> TopicWatch:
        """Return this run's view of the topics."""
        if self._watch is None:
            self._watch = TopicWatch(self.options)
        return self._watch

    # -- what Spark calls

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options; each batch obeys all limits, whatever this returns."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return NO_LIMIT

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the run: the present end of each partition."""

        def step() -> Offsets:
            self.watch.look(0)
            if not are_gone:
                self.watch.require_topics()
            return self.watch.ends(self.watch.found)

        are_gone = False
        try:
            self._frozen = self._retry(step)
        except UnknownTopicOrPartition:
            # Not just unknown to a broker that has started: `latestOffset` handles their deletion.
            are_gone = True
            self._frozen = self._retry(step)

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802
        """Return the start of the query according to its options; constant within a run.

        Spark asks when it plans the first batch, and again when it runs it. It does not store this
        offset: if the first batch is interrupted, the next run asks again, and the latest offset
        has moved by then. So the first batch reads nothing from partitions that begin at the
        latest offset. Spark stores the batch's end, and the next batch begins there.
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
        """Return the end of the next batch; `start` if there are no records."""
        begin = self._read_offsets(start)
        if isinstance(limit, ReadAllAvailable):
            end = self._retry(lambda: self._survey(begin, may_wait=False))
        elif self._frozen is not None:
            now = self._retry(lambda: self._survey(begin, may_wait=False))
            end = self._cut(begin, self._up_to_frozen(begin, now))
        else:
            end = self._cut(begin, self._hold_back(begin, self._wait_for_records(begin)))
        if self._pinned:
            # A partition created since would begin at its end if this batch were repeated.
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
        """Split the records between two offsets into tasks; repeatable unless records are lost."""
        begin, until = self._read_offsets(start), self._read_offsets(end)
        self._pinned.clear()  # a repeated first batch has its end already
        ranges = self._retry(lambda: self._ranges(begin, until))
        shares = offsets.share_out(ranges, self.options, os.cpu_count() or 1)
        return [TaskRanges(share) for share in shares]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit to the group of commitOffsetsToGroup, for tools that show its lag.

        Spark calls this when it plans the next batch. A failure is only logged: the query itself
        resumes from its checkpoint.
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
            log.warning("plog source: cannot commit offsets to group %r: %s", group, fault)

    def stop(self) -> None:
        """Close the connections; Spark may end the process without this."""
        if self._watch is not None:
            self._watch.start_over()

    def _read_offsets(self, offsets_json: dict[str, Any]) -> Offsets:
        """Read offsets of the checkpoint, without topics that only Spark's own source matches."""
        read = from_json(offsets_json)
        if self.options.pattern is None:
            return read
        return {p: offset for p, offset in read.items() if not is_decisions_topic(p.topic)}

    # -- how far a batch goes

    def _wait_for_records(self, begin: Offsets) -> Offsets:
        """Return the ends as soon as there are new records, or after the idle wait."""
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
            self._wait_out(fault, self._limit)
            return dict(begin)  # return quickly, so that the query can be stopped meanwhile
        self._limit = self._new_limit()
        self._nothing_after = begin if end == begin else None
        return end

    def _has_changed(self, begin: Offsets) -> bool:
        self.watch.look()
        return bool(self.watch.recreated) or set(self.watch.found) != begin.keys()

    def _survey(self, begin: Offsets, *, may_wait: bool) -> Offsets:
        """Return the present end of each partition; lost ones are left out.

        Args:
            begin: the offsets that the query has reached.
            may_wait: whether a missing topic may keep its offset until its deletion is certain;
                otherwise the caller retries until then.

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
            # Records of an open transaction that an earlier run read are not lost: wait for them.
            for partition, end in self.watch.log_ends(short).items():
                ends[partition] = min(end, begin[partition])
        for partition in short:
            if partition.topic not in self.watch.recreated and ends[partition] < begin[partition]:
                self._report_loss(
                    f"{partition} ends at offset {ends[partition]}, but the query resumes at "
                    f"{begin[partition]}: the log was truncated, or the topic was deleted and "
                    "recreated while the query was stopped",
                    "continues at the end of the log",
                )
        recreated = sorted(self.watch.recreated)
        for topic in recreated:
            if all(partition.topic != topic for partition in begin):
                continue
            self._report_loss(
                f"topic {topic!r} was deleted and recreated while the query ran, so the query's "
                "offsets do not apply to it",
                "reads the new topic from its start",
            )
            ends |= self.watch.starts(p for p in ends if p.topic == topic)
        for partition in missing:
            if partition in gone:
                self._report_loss(
                    f"{partition} is gone; the query has read it up to offset "
                    f"{begin[partition]}: {gone[partition]}",
                    "continues without it",
                )
                if all(other.topic != partition.topic for other in found):
                    self.watch.forget(partition.topic)
            else:
                ends[partition] = begin[partition]
        for partition in found:
            self._missing_since.pop(partition, None)
        for topic in recreated:
            # Last: after a fault the next survey has to report the same losses.
            self.watch.accept(topic)
        self._latest = ends
        return dict(ends)

    def _gone(
        self, missing: Sequence[TopicPartition], *, may_wait: bool
    ) -> dict[TopicPartition, str]:
        """Return the missing partitions that are gone, with the reason. Others may come back.

        Raises:
            UnknownTopicOrPartition: some may come back, and the caller has to retry.
        """
        gone, now_s = {}, time.monotonic()
        # Together: the grace periods of all partitions run at the same time.
        for partition in missing:
            if not offsets.is_subscribed(self.options, *partition):
                gone[partition] = "subscribe, subscribePattern or assign no longer includes it"
            elif now_s - self._missing_since.setdefault(partition, now_s) <= (
                UNKNOWN_TOPIC_GRACE_S
            ):
                continue
            elif self.watch.has_topic(partition.topic):
                gone[partition] = "its topic was recreated with fewer partitions"
            else:
                gone[partition] = "its topic was deleted"
        if len(gone) < len(missing) and not may_wait:
            away = next(partition for partition in missing if partition not in gone)
            raise UnknownTopicOrPartition(f"partition {away} does not exist")
        return gone

    def _up_to_frozen(self, begin: Offsets, now: Offsets) -> Offsets:
        """Return the ends for Trigger.AvailableNow: at most those at the start of the run."""
        assert self._frozen is not None
        frozen = self._frozen
        return {
            partition: min(end, max(frozen.get(partition, 0), begin.get(partition, 0)))
            for partition, end in now.items()
            if partition in frozen or partition in begin
        }

    def _hold_back(self, begin: Offsets, end: Offsets) -> Offsets:
        """Return `begin` while there are fewer records than minOffsetsPerTrigger."""
        if self._delay is None:
            return end
        if any(end.get(partition, -1) < offset for partition, offset in begin.items()):
            return end  # records were lost, and the next batch has to record that
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

    # -- the ranges of a batch

    def _ranges(self, begin: Offsets, until: Offsets) -> list[OffsetRange]:
        """Return the ranges between two offsets, without lost records.

        Raises:
            DataLoss: records are lost, and failOnDataLoss is set.
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
                why = "its topic was deleted and recreated while the query ran"
            else:
                self._missing_since.pop(partition, None)
                continue
            self._report_loss(
                f"{partition} cannot be read up to offset {piece.end}: {why}",
                "continues without it",
            )
            pieces.remove(piece)
        firsts = self.watch.starts(piece.partition for piece in pieces)
        # A batch of an earlier run may end beyond the present end of the log.
        unsure = [p.partition for p in pieces if p.end > self._latest.get(p.partition, -1)]
        lasts = self.watch.log_ends(unsure)
        ranges = []
        for partition, start, end in pieces:
            first, last = firsts[partition], lasts.get(partition, end)
            if start is None:
                if first > 0:
                    log.warning("plog source: new partition %s starts at %d", partition, first)
                start = first
            if start < first:
                self._report_loss(
                    f"records of {partition} from offset {start} to {min(first, end)} were deleted "
                    f"before the query read them (retention?); its log begins at {first}",
                    "continues with the remaining records",
                )
            if end > last:
                self._report_loss(
                    f"{partition} ends at offset {last}, but a repeated batch reads from "
                    f"{start} to {end}: the log was truncated, or the topic was deleted and "
                    "recreated while the query was stopped",
                    "continues with the remaining records",
                )
            low, high = max(start, first), min(end, last)
            if low < high:
                topic_id = self.watch.topic_id(partition.topic)
                ranges.append(OffsetRange(partition, low, high, topic_id))
        return ranges

    def _report_loss(self, loss: str, consequence: str) -> None:
        """Report lost records: as an error, or as a warning with failOnDataLoss=false.

        Raises:
            DataLoss: failOnDataLoss is set.
        """
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{loss}. Records are lost. To go on, set failOnDataLoss=false (the query "
                f"{consequence}), or use a new checkpoint (it begins at startingOffsets)"
            )
        log.warning("plog source: %s; the query %s (failOnDataLoss=false)", loss, consequence)

    # -- faults

    def _new_limit(self) -> RetryLimit:
        return RetryLimit(self.options.poll_timeout_ms / 1000, UNKNOWN_TOPIC_GRACE_S)

    def _retry(self, step: Callable[[], T]) -> T:
        """Return the step's result; retry it after retriable faults, up to the limit."""
        limit = self._new_limit()
        while True:
            try:
                return step()
            except KafkaError as fault:
                self._wait_out(fault, limit)

    def _wait_out(self, fault: KafkaError, limit: RetryLimit) -> None:
        """Wait before the next attempt; raise the fault if it may not be retried."""
        self.watch.start_over()
        if not isinstance(fault, UnknownTopicOrPartition):
            # No metadata during the fault: a missing topic may have existed meanwhile.
            self._missing_since.clear()
        is_first = not limit.has_begun
        if not limit.allows(fault, time.monotonic()):
            raise fault
        if is_first:
            log.warning("plog source: waiting for brokers: %s", fault)
        time.sleep(self.options.retry_backoff_ms / 1000)
