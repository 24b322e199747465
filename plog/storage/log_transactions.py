"""The transactions in one log: how they begin and end, and which were aborted.

Owns which batches need a guard, the markers, and the order of an abort's steps: it publishes an
abort before it writes the marker, so no reader can pass the marker without knowing. It does not
own what a producer may send (`producer_state`), nor the append, which the log does under its lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from plog._native import partition_guards
from plog._native.batch import BatchHeader
from plog._native.partition_guards import TxnGuard
from plog._native.partition_log import Appended, FileRange, PartitionLog, ProducerEntry
from plog._native.records import control_batch
from plog.errors import CorruptRecord, NotLeaderOrFollower
from plog.storage.log_faults import LogFaults
from plog.storage.log_segments import LogSegments
from plog.storage.producer_load import replay_control
from plog.storage.producer_state import (
    Marker,
    ProducerReplay,
    Verdict,
    accept,
    check,
    decide,
    decide_marker,
    decide_own,
    has_producer,
    is_in_transaction,
)
from plog.storage.transaction_index import AbortedTransaction
from plog.types import NO_OFFSET

DecideProducer = Callable[[BatchHeader], ProducerEntry | None]
"""Says what an unusual batch makes of its producer, None to ask again; raises why it is refused."""

AppendUnusual = Callable[[bytearray, int, DecideProducer], Appended]

AppendFetched = Callable[[ProducerEntry | None], None]
"""Appends a fetched batch to the entry of its producer; None: it has no effect on any."""


class LogTransactions:
    """The transactions of one log. Any thread; `lock` is the log's.

    Args:
        append: appends a batch at a time (ms), by what is decided of its producer.
    """

    def __init__(
        self,
        native: PartitionLog,
        segments: LogSegments,
        faults: LogFaults,
        lock: AbstractContextManager[bool],
        append: AppendUnusual,
    ) -> None:
        self._native = native
        self._segments = segments
        self._faults = faults
        self._lock = lock
        self._append = append

    # -- beginning ---------------------------------------------------------------------------

    # A guard lets a producer begin (KIP-890). A look at a producer may wait behind an append.

    def guard_for(self, header: BatchHeader, *, from_zero: bool = False) -> TxnGuard | None:
        """Return the guard that the transaction's coordinator must approve before an append.

        None: the batch begins no transaction, or is one that was appended before.

        Args:
            from_zero: each of the writer's transactions has an epoch of its own.
        """
        entry = self._native.producer(header.producer_id)
        if not header.is_transactional or check(entry, header)[0] is Verdict.DUPLICATE:
            return None
        return self.guard_for_producer(
            header.producer_id, header.producer_epoch, from_zero=from_zero
        )

    def guard_for_producer(
        self, producer_id: int, producer_epoch: int, *, from_zero: bool = False
    ) -> TxnGuard | None:
        """Return the same for what a coordinator writes: it has no numbers."""
        if self.has_begun(producer_id, producer_epoch):
            return None
        return partition_guards.ask(self._native, producer_id, producer_epoch, from_zero=from_zero)

    def approve(self, guard: TxnGuard) -> None:
        """Let its holders begin, unless a marker came first."""
        partition_guards.approve(self._native, guard)

    def refuse(self, guard: TxnGuard) -> None:
        """Take it from one holder."""
        partition_guards.refuse(self._native, guard)

    def grant_ahead(
        self, producer_id: int, producer_epoch: int, transactional_id: str, connection: int
    ) -> None:
        """Let a producer begin with its next batch, if that goes on where its last one ended.

        The caller guarantees that the partition is in the transaction, and revokes this when that
        is no longer certain.

        Args:
            connection: the one of this broker that the batch must come by.
        """
        name = transactional_id.encode()
        partition_guards.grant_ahead(self._native, producer_id, producer_epoch, name, connection)

    def revoke(self, producer_id: int) -> None:
        """Take back what was granted ahead."""
        partition_guards.revoke(self._native, producer_id)

    def has_begun(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether a producer has a transaction open here, in an epoch."""
        return is_in_transaction(self._native.producer(producer_id), producer_epoch)

    def has_open(self, producer_id: int) -> bool:
        """Return whether a producer has a transaction open here, in any epoch."""
        entry = self._native.producer(producer_id)
        return entry is not None and entry.current_txn_first_offset != NO_OFFSET

    def decide(self, header: BatchHeader, *, guard: TxnGuard | None) -> ProducerEntry | None:
        """Decide about a client's unusual batch. Under the lock.

        Raises:
            NotLeaderOrFollower: its guard is of a log that was here before.
            KafkaError: as `producer_state.decide`.
        """
        entry = self._native.producer(header.producer_id)
        verdict, _ = check(entry, header)
        if verdict is not Verdict.UNUSUAL:
            return None  # another batch of the producer came between
        is_verified = self._may_begin(header, guard)
        from_zero = guard is not None and guard.from_zero
        return decide(entry, header, is_verified=is_verified, from_zero=from_zero)

    def _may_begin(self, header: BatchHeader, guard: TxnGuard | None) -> bool:
        if guard is None:
            return False
        if not partition_guards.is_of(self._native, guard):
            # The client retries, and the retry asks this log.
            raise NotLeaderOrFollower(
                f"producer {header.producer_id}: its verification belongs to a log that"
                " was replaced"
            )
        who = header.producer_id, header.producer_epoch
        return partition_guards.is_granted(self._native, guard, *who)

    def on_append(self, header: BatchHeader) -> None:
        """Take note of a batch that was decided about and appended. Under the lock."""
        if not header.is_control:  # of a marker `append_marker` knows more
            # A later epoch may have asked already.
            partition_guards.end(self._native, header.producer_id, header.producer_epoch)

    def succeed(self, before: LogTransactions) -> None:
        """Let the guards of the log that this one's log replaces stand. Under both locks."""
        partition_guards.succeed(self._native, before._native)

    def append_for_coordinator(
        self, records: bytearray, *, now_ms: int, guard: TxnGuard | None
    ) -> Appended:
        """Append a batch that a coordinator writes for a producer's transaction, unnumbered.

        Raises as `Log.append_as_leader`.
        """

        def decide_writer(header: BatchHeader) -> ProducerEntry:
            entry = self._native.producer(header.producer_id)
            return decide_own(entry, header, is_verified=self._may_begin(header, guard))

        return self._append(records, now_ms, decide_writer)

    # -- ending ------------------------------------------------------------------------------

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: Marker, *, now_ms: int
    ) -> Appended:
        """End a producer's transaction, if it has one here, by a control batch.

        Raises:
            InvalidProducerEpoch: the producer has been fenced by a newer epoch.
            TransactionCoordinatorFenced: a later coordinator has written a marker already.
            NotLeaderOrFollower, KafkaStorageError: as `Log.append_as_leader`.
        """
        records = bytearray(
            control_batch(
                abort=marker.abort,
                offset=0,
                timestamp=now_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
            )
        )

        def decide_ended(header: BatchHeader) -> ProducerEntry:
            return decide_marker(self._native.producer(producer_id), header, marker)

        with self._lock:
            # With a marker that has its own epoch the next transaction begins, and who writes in
            # that one may have asked already. Also if the marker is refused.
            last_epoch = producer_epoch - 1 if marker.has_own_epoch else producer_epoch
            partition_guards.end(self._native, producer_id, last_epoch)
            self.revoke(producer_id)
            # After that: until then a reactor may begin a transaction without the lock.
            entry = self._native.producer(producer_id)
            first = NO_OFFSET if entry is None else entry.current_txn_first_offset
            if not marker.abort or first == NO_OFFSET:
                return self._append(records, now_ms, decide_ended)
            with self._segments.aborting(producer_id, first):
                appended = self._append(records, now_ms, decide_ended)
                with self._faults.judged():
                    self._segments.add_aborted(producer_id, first, appended.base_offset)
            return appended

    # -- following ---------------------------------------------------------------------------

    def append_fetched(self, header: BatchHeader, data: memoryview, append: AppendFetched) -> None:
        """Append an unusual batch from the leader, which has checked it. Under the lock.

        Raises:
            CorruptRecord: a control batch without a control record.
            KafkaStorageError: the disk is full or has failed.
        """
        known = self._native.producer(header.producer_id) if has_producer(header) else None
        if not header.is_control:
            append(accept(known, header) if has_producer(header) else None)
            return
        replay = ProducerReplay(() if known is None else (known,))
        try:
            completed = replay_control(replay, header, lambda: data)
        except CorruptRecord as error:
            raise CorruptRecord(f"batch at offset {header.base_offset}: {error}") from error
        # A guard from a time when this broker led must not begin a transaction after the marker.
        partition_guards.end(self._native, header.producer_id, header.producer_epoch)
        decided = replay.entries.get(header.producer_id)
        if completed is None or not completed.aborted:
            append(decided)
            return
        producer_id, first = completed.producer_id, completed.first_offset
        with self._segments.aborting(producer_id, first):
            append(decided)
            with self._faults.judged():
                self._segments.add_aborted(producer_id, first, header.last_offset)

    # -- reading -----------------------------------------------------------------------------

    def read_committed(
        self, read: Callable[[], FileRange | None], fetch_offset: int, upper_offset: int
    ) -> tuple[FileRange | None, list[AbortedTransaction]]:
        """Read below an offset, and return the aborted transactions that may have records there.

        The last stable offset is `upper_offset`, and looked up before.

        Raises:
            KafkaStorageError: the disk has failed.
        """
        while True:
            # Before the read, which may find segments that retention takes away meanwhile, and
            # their transactions with them; and the same after it, or compaction has taken markers
            # away, without which what their producers committed later would be taken for aborted.
            aborted = self._segments.aborted
            found = read()
            if self._segments.aborted is aborted:
                break
        if found is None or not aborted:
            return found, []
        with self._faults.judged():
            end_offset = found.end_offset()
        return found, aborted.overlapping(fetch_offset, min(end_offset, upper_offset))

    def aborted_between(self, first_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records or their marker in a range."""
        return self._segments.aborted.overlapping(first_offset, end_offset)
