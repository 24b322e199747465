"""Appends to the log of a follower: the batches that it fetched from the leader.

Owns the order of the steps of an unusual batch: gaps are allowed and outdated leader epochs
forgotten before it is written, its leader epoch is added after it. `follower_append` checks the
batches and appends the usual ones, `LogTransactions` decides what an unusual one makes of its
producer. Never truncates, and never moves the high watermark: the fetcher does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from plog._native import batch, follower_append
from plog._native.batch import BatchHeader
from plog._native.follower_append import (
    DONE,
    NOT_FOLLOWER,
    OTHER_EPOCH,
    ROLL_NEEDED,
    UNUSUAL,
    WRITE_FAILED,
    FetchedAppend,
)
from plog._native.partition_log import PartitionLog, ProducerEntry
from plog.errors import FencedLeaderEpoch, KafkaStorageError, NotLeaderOrFollower
from plog.storage.log_faults import LogFaults
from plog.storage.log_segments import LogSegments
from plog.storage.log_transactions import LogTransactions


class Fetched(NamedTuple):
    """Whole batches of a fetch response."""

    batches: memoryview
    leader_epoch: int  # under which they were fetched
    now_ms: int


class LogFollower:
    """The appends of one follower's log. The caller holds the log's lock.

    Args:
        roll: starts a new segment.
        allow_gaps: makes durable that batches may be missing below an offset.
    """

    def __init__(
        self,
        native: PartitionLog,
        segments: LogSegments,
        transactions: LogTransactions,
        faults: LogFaults,
        *,
        roll: Callable[[], None],
        allow_gaps: Callable[[int], None],
    ) -> None:
        self._native = native
        self._segments = segments
        self._transactions = transactions
        self._faults = faults
        self._roll = roll
        self._allow_gaps = allow_gaps

    def append(self, fetched: Fetched) -> None:
        """Append all batches, or none if one is refused by the check.

        After any other error, the batches that were appended before it stay.

        Raises as `Log.append_as_follower`.
        """
        self._append(fetched._replace(batches=fetched.batches[:0]), 0)  # first checks the role
        gaps_end = follower_append.check(
            fetched.batches,
            log_end_offset=self._native.log_end_offset,
            last_epoch=self._segments.epochs.epoch_at(self._native.log_end_offset - 1),
            leader_epoch=fetched.leader_epoch,
        )
        with self._faults.judged():
            self._segments.finish_truncation()
            # Recovery and readers take a gap that is not allowed for lost batches.
            self._allow_gaps(gaps_end)
        position = 0
        while position < len(fetched.batches):
            position = self._append_next(fetched, position)

    def _append_next(self, fetched: Fetched, position: int) -> int:
        """Append the usual batches from `position` on, then one that is not; return its end."""
        done = self._append(fetched, position)
        if done.status != UNUSUAL:
            return done.position
        header = batch.read_header(fetched.batches, done.position)
        return self._append_unusual(fetched, header)

    def _append_unusual(self, fetched: Fetched, header: BatchHeader) -> int:
        end = header.position + header.size_bytes

        def append(decided: ProducerEntry | None) -> None:
            done = self._append(fetched, header.position, is_decided=True, decided=decided)
            if done.status == UNUSUAL:
                raise AssertionError(f"producer {header.producer_id} changed under the log's lock")
            # At once, as the index of aborted transactions may fail after it.
            self._segments.add_epoch(header.partition_leader_epoch, header.base_offset)

        if header.partition_leader_epoch < self._segments.epochs.latest:
            with self._faults.judged():
                self._segments.forget_empty_epochs()
        data = fetched.batches[header.position : end]
        self._transactions.append_fetched(header, data, append)
        return end

    def _append(
        self,
        fetched: Fetched,
        position: int,
        *,
        is_decided: bool = False,
        decided: ProducerEntry | None = None,
    ) -> FetchedAppend:
        """Append as much as the struct does without a new decision; roll where it is due."""
        while True:
            done = follower_append.append(
                self._native,
                fetched.batches,
                position,
                now_ms=fetched.now_ms,
                leader_epoch=fetched.leader_epoch,
                latest_epoch=self._segments.epochs.latest,
                is_decided=is_decided,
                decided=decided,
            )
            match done.status:
                case status if status in (DONE, UNUSUAL):
                    return done
                case status if status == ROLL_NEEDED:
                    self._roll()
                    position = done.position
                case status if status == WRITE_FAILED:
                    raise self._faults.failed(self._faults.of_errno(done.errno))
                case status if status == NOT_FOLLOWER:
                    raise self._not_follower(done.errno)
                case status if status == OTHER_EPOCH:
                    raise FencedLeaderEpoch(
                        f"fetched in leader epoch {fetched.leader_epoch}, but the log is in"
                        f" {self._native.leader_epoch}"
                    )
                case status:
                    raise AssertionError(f"append returned status {status}")

    def _not_follower(self, error: int) -> KafkaStorageError | NotLeaderOrFollower:
        if error:
            self._faults.disk_failed(self._faults.of_errno(error))
            return KafkaStorageError("the log is offline")
        return NotLeaderOrFollower("the log is not a follower's, or it is closed")
