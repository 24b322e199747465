"""One partition that this broker follows in one leader epoch: fetched batches go into its log.

Owns how a log is asked for and brought on. `fetch_decisions` says what an answer means; this does
it. Never asks the leader itself: the fetcher does.

Threads: one fetcher's. Its lock keeps the role from changing meanwhile (`ReplicaFetchers.forget`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from plog._native import batch
from plog.cluster.leadership import Leadership
from plog.cluster.partition import Partition
from plog.cluster.replication import fetch_decisions as decisions
from plog.cluster.replication.fetch_decisions import Answer, Asked, Decision, Do, Range, Replica
from plog.storage.leader_epochs import EpochEnd
from plog.storage.log import Log


class Trouble(NamedTuple):
    """Why a partition is not copied, since when (monotonic clock), and whether it was logged."""

    why: str
    since_ms: int
    is_logged: bool


NO_TROUBLE: Final = Trouble("", 0, is_logged=False)


class Followed:
    """A follower's partition.

    Attributes:
        not_before_ms: fetch it no sooner, by the monotonic clock.
        pause_ms: the pause after its last failure; 0 after a success.
        awaits_order: fetch it no more in this leader epoch.
    """

    def __init__(self, partition: Partition, leadership: Leadership) -> None:
        self.partition = partition
        self.at = partition.topic_partition
        self.leadership = leadership
        self.not_before_ms = self.pause_ms = 0
        self.awaits_order = False
        self.trouble = NO_TROUBLE
        self._brought: Decision | None = None
        self._found_end = False
        self._agrees = False

    def ask(self) -> Asked:
        """Return what to fetch. All records that are here are made durable first.

        Raises:
            KafkaStorageError, NotLeaderOrFollower: the log is not usable.
        """
        log = self.partition.log
        if self._position(log) < log.log_end_offset:
            log.flush()
        return decisions.ask(self._replica(log))

    def take(self, asked: Asked, answer: Answer, records: memoryview, now_ms: int) -> Do:
        """Do what the answer of a fetch means, and return it; `settle` does the rest of APPEND.

        Raises:
            CorruptRecord: the answer is damaged. Nothing of it is in the log.
            KafkaStorageError: the disk is full or has failed.
            NotLeaderOrFollower, FencedLeaderEpoch: the role has changed.
        """
        log = self.partition.log
        decision = decisions.decide(self._replica(log), asked, answer)
        if decision.do is Do.APPEND:
            self.partition.note_leader(decision.high_watermark)
            if whole := batch.whole(records, asked.position)[0]:
                log.append_as_follower(
                    records[:whole], leader_epoch=asked.leader_epoch, now_ms=now_ms
                )
            self._brought = decision
            self._found_end = not whole
        return self._do(log, decision)

    def take_range(self, asked: Asked, found: Range) -> Do:
        """Do what the leader's range means, after `ASK_RANGE`. Raises KafkaStorageError."""
        log = self.partition.log
        return self._do(log, decisions.decide_by_range(self._replica(log), asked, found))

    def take_epoch_end(self, asked: Asked, found: EpochEnd) -> Do:
        """Do what the end of the last epoch means, where fetches do not say. As `take_range`."""
        log = self.partition.log
        do = self._do(log, decisions.decide_by_epoch_end(self._replica(log), asked, found))
        self._agrees = do is Do.FETCH_AGAIN and asked == decisions.ask(self._replica(log))
        return do

    def may_diverge(self, asked: Asked) -> bool:
        """Return whether the end of the last epoch is to be asked for, where fetches do not say."""
        return not self._agrees and asked.last_epoch >= 0

    def settle(self) -> None:
        """Make durable what `take` has appended, then take the leader's high watermark and start.

        Raises:
            KafkaStorageError: the disk has failed.
        """
        brought, self._brought = self._brought, None
        if brought is None:
            return
        log = self.partition.log
        if self._position(log) < log.log_end_offset:
            log.flush()
        replica = self._replica(log)
        high_watermark = decisions.high_watermark_after(replica, brought.high_watermark)
        self.partition.advance_high_watermark(high_watermark)
        if log.lack is not None and (self._found_end or self._has_all_committed(log, brought)):
            log.complete()
        start = min(brought.log_start_offset, high_watermark)
        if start > log.log_start_offset:
            log.delete_records_before(start)

    def _has_all_committed(self, log: Log, brought: Decision) -> bool:
        """Return whether all is here that is committed.

        The leader knows what the ones before it have committed once its high watermark has reached
        the start of its own epoch.
        """
        newest = log.leader_epochs.entries[-1:]
        return (
            bool(newest)
            and newest[0].epoch == self.leadership.leader_epoch
            and log.log_end_offset >= brought.high_watermark >= newest[0].start_offset
        )

    def _do(self, log: Log, decision: Decision) -> Do:
        if decision.do in (Do.CUT, Do.RESTART):
            self._agrees = False
        if decision.do is Do.CUT:
            log.truncate_to(decision.offset)
        elif decision.do is Do.RESTART:
            log.restart_at(decision.offset)
        return decision.do

    def _replica(self, log: Log) -> Replica:
        return Replica(
            self.leadership.leader_epoch,
            log.log_start_offset,
            log.log_end_offset,
            self._position(log),
            log.high_watermark,
            log.leader_epochs,
        )

    def _position(self, log: Log) -> int:
        """Return up to where the log counts as this replica's: durable, where acks=all is."""
        if self.partition.settings.flush_before_ack:
            return log.durable_end
        return log.log_end_offset
