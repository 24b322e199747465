"""One partition's log on disk, around the struct that the data path uses.

Owns policy: the role of the log (leader, follower, moved, closed), when to roll a segment, which
segments to delete, where the log starts, and how to handle an unusual producer. Only the struct
(`native`) has the mutable numbers; this class publishes its decisions to it. `log_segments` has the
operations on segments and their files, `log_faults` the meaning of their errors. Never schedules
work: it passes later work to its owner, the log manager.

Locks: `_lock` orders changes of the segment list and of the leader epochs among Python threads.
Appends and reads do not take it in the usual case. Its holder may be waiting for a disk, of this
log or (in a move) of another. So the event loop takes it by `try_hold` before it calls a method
that takes it.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from plog._native import batch
from plog._native.files import NO_RESOURCES
from plog._native.partition_guards import TxnGuard
from plog._native.partition_log import (
    APPENDED,
    DUPLICATE,
    NOT_WRITABLE,
    PRODUCER_UNUSUAL,
    ROLL_NEEDED,
    WRITE_FAILED,
    Appended,
    FileRange,
    PartitionLog,
    ProducerEntry,
    Segment,
)
from plog.errors import (
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RecordListTooLarge,
)
from plog.settings.definitions import TopicSettings
from plog.storage import retention, timestamp_search
from plog.storage.compaction import DirtyRange, dirty_range
from plog.storage.filesystem import Filesystem
from plog.storage.incomplete_mark import Lack, mark_complete
from plog.storage.leader_epochs import EpochEnd, LeaderEpochs
from plog.storage.log_faults import LogFaults
from plog.storage.log_files import LogFiles
from plog.storage.log_follower import Fetched, LogFollower
from plog.storage.log_owner import LogOwner, report_nothing
from plog.storage.log_segments import LogSegments, Rolled
from plog.storage.log_transactions import DecideProducer, LogTransactions
from plog.storage.producer_state import SilentProducers
from plog.storage.segment import SegmentNumbers
from plog.storage.timestamp_search import TimestampedOffset
from plog.storage.transaction_index import AbortedTransaction, AbortedTransactions
from plog.types import NO_OFFSET, Buffer, TopicPartition

COMPACT, DELETE = "compact", "delete"
"""Values of `cleanup.policy`."""

_log = logging.getLogger(__name__)

"""Why it may not lead."""
HIGH_WATERMARK = -1
"""Offset in DeleteRecords that means the high watermark."""


class ColdRead(Exception):
    """The bytes are not in memory, and the reader does not wait for the disk."""

    def __init__(self, log_dir: Path) -> None:
        super().__init__(log_dir)
        self.log_dir = log_dir


class Role(NamedTuple):
    """The role that a log was last given."""

    leader_epoch: int
    leads: bool
    writable: bool = False  # False while a leader refuses appends for a moment
    sole_replica: bool = False
    enough_in_sync: bool = True


class Log:
    """A partition's log. `log_opening.open_log` creates it from the result of recovery."""

    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID | None,
        directory: Path,
        settings: TopicSettings,
        native: PartitionLog,
        epochs: LeaderEpochs,
        aborted: AbortedTransactions,
        owner: LogOwner,
        fs: Filesystem,
        monotonic_ms: int,
        gaps_legal_below: int = 0,
        unsynced: Sequence[Segment] = (),
        lack: Lack | None = None,
        draw: Callable[[int], int] = random.randrange,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.native = native
        self.last_flush_ms = monotonic_ms
        self._allow_gaps(gaps_legal_below)
        self._settings = settings
        self._owner = owner
        self.faults = LogFaults(self, owner)
        self.directory = directory
        self.log_dir = directory.parent
        """Created once, because each append uses it to look up whether the disk is slow."""
        self._segments = LogSegments(
            native,
            LogFiles(fs, directory),
            epochs=epochs,
            aborted=aborted,
            unsynced=unsynced,
            remove_later=self._remove_later,
            lower_recovery_point=partial(owner.lower_recovery_point, self),
        )
        self._fs = fs
        self.lack = lack
        """See `incomplete_mark`. With one, the log refuses to lead."""
        self._draw = draw
        self._lock = threading.RLock()
        self._closed = False
        self._dropped = False
        self._retired = False
        self._has_led = False
        """Since it was opened. Only leaders serve reads, so a log that never led has no readers."""
        self._role = Role(native.leader_epoch, leads=False)
        self._silent_producers = SilentProducers()
        self.transactions = LogTransactions(
            native, self._segments, self.faults, self._lock, self._append_unusual
        )
        self._follower = LogFollower(
            native,
            self._segments,
            self.transactions,
            self.faults,
            roll=self.roll,
            allow_gaps=self._allow_gaps_durably,
        )
        self._set_limits()

    def __repr__(self) -> str:
        return f"<Log {self.topic_partition} in {self.log_dir}>"

    # -- properties --------------------------------------------------------------------------

    @property
    def settings(self) -> TopicSettings:
        """The topic's settings."""
        return self._settings

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self.native.state().size_bytes

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return self.native.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self.native.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Offset below which everything is committed."""
        return self.native.high_watermark

    @property
    def durable_end(self) -> int:
        """Offset below which everything is on disk."""
        return self.native.durable_end

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is decided."""
        return self.native.last_stable_offset

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """Which leader epoch wrote which offsets."""
        return self._segments.epochs

    def _allow_gaps(self, below: int) -> None:
        """Allow gaps below an offset, left by compaction."""
        self.gaps_legal_below = below
        self.native.set_gaps_legal_below(below)

    def _allow_gaps_durably(self, below: int) -> None:
        """Allow gaps below an offset, also after a crash. Needs the lock; raises OSError."""
        if below > self.gaps_legal_below:
            self._owner.allow_gaps(self, below)
            self._allow_gaps(below)

    def update_settings(self, settings: TopicSettings) -> None:
        """Apply changed settings."""
        with self._lock:
            self._settings = settings
            self._set_limits()

    def _set_limits(self) -> None:
        settings = self._settings
        segment_ms = settings.segment_ms
        if COMPACT in settings.cleanup_policy:
            # The active segment is never compacted, so it must roll in time (KIP-354).
            segment_ms = min(segment_ms, settings.max_compaction_lag_ms)
        # Jitter is drawn for each segment, so that a topic's partitions do not all roll at once.
        jitter_ms = min(settings.segment_jitter_ms, segment_ms)
        self.native.set_limits(
            segment_bytes=settings.segment_bytes,
            segment_ms=segment_ms,
            segment_jitter_ms=self._draw(jitter_ms) if jitter_ms > 0 else 0,
            index_interval_bytes=settings.index_interval_bytes,
        )

    def try_hold(self) -> bool:
        """Lock out other threads' changes until `let_go`; return False if one is in progress."""
        return self._lock.acquire(blocking=False)

    def let_go(self) -> None:
        """Allow changes by other threads again."""
        self._lock.release()

    # -- append and read ---------------------------------------------------------------------

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        *,
        now_ms: int,
        guard: TxnGuard | None = None,
    ) -> Appended:
        """Append one validated batch; offsets and epoch are stamped into `records`.

        Returns status APPENDED, or DUPLICATE with the first copy's offsets.

        Args:
            guard: needed by a batch that begins a transaction (`LogTransactions.guard_for`).

        Raises:
            RecordListTooLarge: the batch is larger than a segment may be.
            OutOfOrderSequenceNumber, InvalidProducerEpoch, InvalidTxnState: the producer's fault.
            NotLeaderOrFollower: this replica does not lead (any more).
            KafkaStorageError: the disk is full or has failed, or the partition is offline.
        """
        settings = self._settings
        if len(records) > settings.segment_bytes:
            raise RecordListTooLarge(
                f"{self.topic_partition}: a batch of {len(records)} bytes, segment.bytes is"
                f" {settings.segment_bytes}"
            )
        appended = self.native.append(records, now_ms)
        if appended.status not in (APPENDED, DUPLICATE):
            appended = self._append_unusual(
                records, now_ms, partial(self.transactions.decide, guard=guard)
            )
        self._flush_if_due()
        return appended

    def append_as_follower(self, batches: Buffer, *, leader_epoch: int, now_ms: int) -> int:
        """Append whole batches from the leader as they are; return the log end offset.

        If the check refuses a batch, no batch is appended. After another error, the batches before
        the failed one stay.

        Args:
            leader_epoch: under which the batches were fetched.

        Raises:
            CorruptRecord: a batch is damaged, out of order, or of the wrong leader epoch; the text
                says which batch.
            FencedLeaderEpoch: the log has another leader epoch by now.
            NotLeaderOrFollower: the log is not a follower's (any more).
            KafkaStorageError: the disk is full or has failed, or the partition is offline.
        """
        with self._lock:
            self._require_place()
            self._follower.append(Fetched(memoryview(batches), leader_epoch, now_ms))
        self._flush_if_due()
        return self.native.log_end_offset

    def _flush_if_due(self) -> None:
        settings = self._settings
        if self.native.log_end_offset - self.native.durable_end >= settings.flush_messages:
            self._owner.commit(self, report_nothing)

    def _append_unusual(
        self,
        records: bytearray | memoryview,
        now_ms: int,
        decide_producer: DecideProducer,
    ) -> Appended:
        decided: ProducerEntry | None = None
        with self._lock:
            while True:
                appended = self.native.append(records, now_ms, decided)
                match appended.status:
                    case status if status in (APPENDED, DUPLICATE):
                        if decided is not None:
                            self.transactions.on_append(batch.read_header(records))
                        return appended
                    case status if status == ROLL_NEEDED:
                        self.roll()
                    case status if status == PRODUCER_UNUSUAL:
                        decided = decide_producer(batch.read_header(records))
                    case status if status == WRITE_FAILED:
                        raise self.faults.failed(self.faults.of_errno(appended.errno))
                    case status if status == NOT_WRITABLE:
                        raise self._not_writable(appended.errno)
                    case status:
                        raise AssertionError(f"append returned status {status}")

    def _not_writable(self, error: int) -> KafkaStorageError | NotLeaderOrFollower:
        if error:
            # The fast path may have met the failure first; it cannot report it.
            self.faults.disk_failed(self.faults.of_errno(error))
        if error or self._closed:
            return KafkaStorageError(f"{self.topic_partition} is offline")
        return NotLeaderOrFollower(f"this broker does not lead {self.topic_partition}")

    def read(
        self,
        fetch_offset: int,
        max_bytes: int,
        upper_offset: int,
        whole_first_batch: bool,
        may_wait: bool = True,
    ) -> FileRange | None:
        """Return the bytes from the batch that holds `fetch_offset`, below `upper_offset`.

        Raises:
            ColdRead: not `may_wait`, and bytes to read are not in memory.
            OffsetOutOfRange: before the log start or past the log end.
            KafkaStorageError: the partition is offline, its disk has failed, or its bytes are bad.
        """
        native = self.native
        log_start_offset, log_end_offset = native.log_start_offset, native.log_end_offset
        if not log_start_offset <= fetch_offset <= log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {fetch_offset} is not within"
                f" {log_start_offset} .. {log_end_offset}"
            )
        with self.faults.judged():
            try:
                found = native.read(
                    fetch_offset, max_bytes, upper_offset, whole_first_batch, may_wait
                )
            except BlockingIOError as cold:
                if may_wait:
                    raise
                raise ColdRead(self.log_dir) from cold
        if found is not None and not may_wait and not found.is_resident():
            raise ColdRead(self.log_dir)
        return found

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """Return the first record with a timestamp of at least `timestamp_ms`.

        Raises:
            KafkaStorageError: as `read`.
        """
        return self._searched(
            lambda segments, start: timestamp_search.first_at_or_after(
                segments, timestamp_ms, start
            )
        )

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """Return the first record with the largest timestamp of the log (KIP-734).

        Raises:
            KafkaStorageError: as `read`.
        """
        return self._searched(timestamp_search.of_max_timestamp)

    def _searched(
        self, search: Callable[[Sequence[Segment], int], TimestampedOffset | None]
    ) -> TimestampedOffset | None:
        if self._closed:
            raise KafkaStorageError(f"{self.topic_partition} is offline")
        with self.faults.judged():
            return search(self.native.segments, self.native.log_start_offset)

    # -- leadership --------------------------------------------------------------------------

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch <= asked, its end offset), or (-1, -1) (KIP-101, KIP-320)."""
        return self._segments.epochs.end_offset(epoch, self.native.log_end_offset)

    def divergence(self, last_epoch: int, position: int) -> EpochEnd | None:
        """Return where a reader's log parts from this one. See `LeaderEpochs.divergence`."""
        return self._segments.epochs.divergence(last_epoch, position, self.native.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that wrote `offset`; -1 if unknown."""
        return self._segments.epochs.epoch_at(offset)

    def become_leader(
        self, leader_epoch: int, *, sole_replica: bool, enough_in_sync: bool = True
    ) -> None:
        """Accept appends under `leader_epoch`, which starts at the log end if it is new.

        Args:
            sole_replica: every append is committed at once.
            enough_in_sync: the in-sync replicas are at least min.insync.replicas.

        Raises:
            KafkaStorageError: the first epoch cannot be written, a truncation cannot be completed,
                the partition has moved, or the log may lack records.
        """
        role = Role(leader_epoch, True, True, sole_replica, enough_in_sync)
        with self._lock:
            self._require_place()
            if self.lack is not None:
                raise KafkaStorageError(f"{self.topic_partition} {self.lack.reason}")
            with self.faults.judged():
                self._segments.finish_truncation()
            if not self._segments.epochs.entries and not self.native.log_end_offset:
                with self.faults.judged():
                    self._segments.write_first_epoch(leader_epoch)
            # In one step, so that a leader that stays leader never refuses appends or fails its
            # waiting producers.
            self._take(role)
            self._segments.keep_epochs()

    def complete(self) -> None:
        """Take note that the log lacks nothing that others have: it may lead from now on.

        Raises:
            KafkaStorageError: that cannot be written down.
        """
        if self.lack is None:
            return
        with self._lock:
            self._require_place()
            with self.faults.judged():
                mark_complete(self._fs, self.directory)
            self.lack = None

    def _require_place(self) -> None:
        """Raise if the log has moved, so that its files are gone. Needs the lock."""
        if self._retired:
            raise KafkaStorageError(f"{self.topic_partition} has moved from {self.log_dir}")

    def become_follower(self, leader_epoch: int) -> None:
        """Stop accepting appends from clients.

        Raises:
            KafkaStorageError: the partition has moved.
        """
        with self._lock:
            self._require_place()
            self._take(Role(leader_epoch, leads=False))

    def _take(self, role: Role) -> None:
        self._role = role
        self._has_led = self._has_led or role.leads
        self._publish_role(role)

    def _publish_role(self, role: Role) -> None:
        self.native.set_leader(
            role.leader_epoch,
            leads=role.leads,
            writable=role.writable,
            sole_replica=role.sole_replica,
            enough_in_sync=role.enough_in_sync,
        )

    @contextmanager
    def standing_still(self) -> Iterator[Role]:
        """Refuse appends (with a retriable error) and changes of role and segments in a block.

        Yields the role, for the log that replaces this one; otherwise the role applies again after
        the block.
        """
        with self._lock:
            role = self._role
            self._publish_role(role._replace(writable=False, sole_replica=False))
            try:
                yield role
            finally:
                if not self._closed and not self._retired:
                    self._take(role)

    def refuse_appends(self) -> None:
        """Refuse appends of clients with a retriable error, until the log gets another role."""
        with self._lock:
            self._role = self._role._replace(writable=False)
            self._publish_role(self._role)

    def accept_appends(self) -> None:
        """Accept appends of clients again, if the log leads."""
        with self._lock:
            if self._role.leads and not self._closed and not self._retired:
                self._take(self._role._replace(writable=True))

    def retire(self) -> None:
        """Refuse appends for good, because another log replaces this one; reads continue."""
        with self._lock:
            self._retired = True
            self.faults.silence()
            self._take(self._role._replace(writable=False, sole_replica=False))

    def succeed(self, log: Log, role: Role) -> None:
        """Take over the role and the pending requests of the log that this one replaces."""
        with self._lock:
            self.transactions.succeed(log.transactions)
            self._take(role)
            self._segments.keep_epochs()  # recovery drops an epoch that has no record yet

    # -- segments ----------------------------------------------------------------------------

    def finish_changes(self) -> None:
        """Complete on disk what the last change of the segments needs. Raises KafkaStorageError."""
        with self._lock, self.faults.judged():
            self._segments.finish_changes()

    def roll(self) -> None:
        """Start a new segment at the log end; keep an active one that is empty.

        Raises:
            KafkaStorageError: its files cannot be created, or the partition has moved.
        """
        with self._lock:
            self._require_place()
            with self.faults.judged():
                rolled = self._segments.roll(self._settings)
            if rolled is None:
                return
            _log.debug("%s: rolled at offset %d", self.topic_partition, rolled.base_offset)
            self._set_limits()
        self._owner.soon(self, partial(self._snapshot_at_roll, rolled))
        self._owner.commit(self, report_nothing)

    def _snapshot_at_roll(self, rolled: Rolled) -> None:
        with self._lock:
            if self._closed or self._retired or rolled.base_offset > self.native.log_end_offset:
                return
            try:
                self._segments.store_snapshot(rolled)
            except OSError as error:
                self.faults.failed(error)

    def apply_retention(self, now_ms: int) -> list[str]:
        """Delete the oldest segments by the retention settings; return a line for each rule used.

        Raises:
            KafkaStorageError: a file cannot be renamed.
        """
        with self._lock:
            if self._closed or self._retired:
                return []
            self.finish_changes()
            settings = self._settings
            segments = self.native.segments
            with self.faults.judged():
                summaries = [self._segments.summary(segment) for segment in segments]
            found = retention.deletable(
                summaries,
                now_ms=now_ms,
                retention_ms=settings.retention_ms,
                retention_bytes=settings.retention_bytes,
                delete_policy=DELETE in settings.cleanup_policy,
                log_start_offset=self.native.log_start_offset,
                high_watermark=self.native.high_watermark,
            )
            if not found:
                return []
            count = found[-1].end
            if count == len(segments):
                self.roll()
                if segments[-1].next_offset > summaries[-1].next_offset:
                    # Appends do not take the lock: the segment may have grown meanwhile.
                    count -= 1
            with self.faults.judged():
                self._segments.delete_oldest(count)
        told = retention.describe(found, summaries[:count])
        return [f"{self.topic_partition}: {line}" for line in told]

    def _remove_later(self, renamed: Sequence[Path]) -> None:
        self._owner.remove_later(self, renamed, self._settings.file_delete_delay_ms)

    def delete_records_before(self, offset: int) -> int:
        """Make everything below `offset` unreadable (-1: below the high watermark).

        Returns the log start offset, which never decreases. Retention frees the space later.

        Raises:
            OffsetOutOfRange: past the high watermark.
            KafkaStorageError: the leader epochs cannot be written, or the partition has moved.
        """
        with self._lock:
            self._require_place()
            high_watermark = self.native.high_watermark
            if offset == HIGH_WATERMARK:
                offset = high_watermark
            if not 0 <= offset <= high_watermark:
                raise OffsetOutOfRange(
                    f"{self.topic_partition}: cannot delete up to {offset}, the high watermark is"
                    f" {high_watermark}"
                )
            with self.faults.judged():
                self._segments.start_at(offset)
            return self.native.log_start_offset

    # -- compaction --------------------------------------------------------------------------

    def dirty_range(self, checkpoint: int | None, now_ms: int) -> DirtyRange | None:
        """Return the range to compact; None if the log is not to be compacted now.

        Raises:
            KafkaStorageError: a file's time cannot be read.
        """
        with self._lock:
            if self._closed or self._retired:
                return None
            native = self.native
            with self.faults.judged():
                summaries = [self._segments.summary(segment) for segment in native.segments]
            return dirty_range(
                summaries,
                checkpoint=checkpoint,
                log_start_offset=native.log_start_offset,
                stable_end=min(native.last_stable_offset, native.durable_end),
                min_lag_ms=self._settings.min_compaction_lag_ms,
                now_ms=now_ms,
            )

    def last_offsets_of_producers(self) -> dict[int, tuple[int, int | None]]:
        """Return each producer's epoch and the last offset of its last batch.

        The offset is None if the epoch has no batch, for example after a marker has raised it.
        """

        def last_offset(entry: ProducerEntry) -> int | None:
            newest = entry.batches[-1].last_offset if entry.batches else NO_OFFSET
            return None if newest == NO_OFFSET else newest

        return {
            entry.producer_id: (entry.producer_epoch, last_offset(entry))
            for entry in self.native.producers()
        }

    def modified_ms(self, segment: Segment) -> int | None:
        """Return when a segment was last written; None if it is gone. Raises OSError."""
        with self._lock:
            if segment not in self.native.segments:
                return None
            return self._segments.modified_ms(segment)

    def replace_cleaned(
        self,
        old: Sequence[Segment],
        numbers: SegmentNumbers,
        aborted: Sequence[AbortedTransaction],
    ) -> bool:
        """Replace segments with a compacted one; return False if they have changed meanwhile.

        Args:
            aborted: aborted transactions with a marker in these segments and records left.

        Raises:
            KafkaStorageError: its files cannot be renamed or opened.
        """
        with self._lock:
            if self._closed or self._retired:
                return False
            with self.faults.judged():
                # First, so that a check of the log (now or at the next start, under any policy)
                # does not report the removed batches as lost.
                end = self._segments.end_of(old)
                if end is None:
                    return False
                self._allow_gaps_durably(end)
                return self._segments.replace(old, numbers, aborted, self._settings)

    # -- truncation (followers) --------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Remove every batch that reaches `offset` or past it; return whether there were any.

        The log then ends with the last remaining batch, so that the next fetch leaves no gap. Only
        for logs without client appends. Raises KafkaStorageError.
        """
        with self._lock:
            self.finish_changes()
            if offset >= self.native.log_end_offset:
                return False
            if offset < self.native.segments[0].base_offset:
                self.restart_at(offset)
            else:
                with self.faults.judged():
                    self._segments.truncate(offset, self._settings, is_read=self._has_led)
            return True

    def restart_at(self, offset: int) -> None:
        """Remove every record and continue at `offset`, the leader's oldest one.

        Only for logs without client appends. Raises KafkaStorageError.
        """
        with self._lock, self.faults.judged():
            self._segments.restart_at(offset, self._settings, is_read=self._has_led)

    # -- durability --------------------------------------------------------------------------

    def flush(self) -> int:
        """Make everything appended so far durable; return the durable end.

        Raises:
            KafkaStorageError: the disk has failed (reported to the owner), or no descriptor is
                left.
        """
        try:
            return self.native.flush()
        except OSError as error:
            # A full disk counts as failed, too: accepted bytes are lost.
            self.faults.disk_failed(error)
            raise KafkaStorageError(f"{self.topic_partition}: {error}") from error

    def flush_soon(self) -> None:
        """Have everything that was appended so far made durable, beside other work."""
        self._owner.commit(self, report_nothing)

    def flush_failed(self, error: int) -> None:
        """Handle a failed flush of the data path, with its errno."""
        if error in NO_RESOURCES:
            self._owner.commit(self, report_nothing)  # which retries until there is a descriptor
        else:
            self.faults.disk_failed(self.faults.of_errno(error))

    def sync_names(self) -> None:
        """Make the names of all segments durable, before the directory is renamed.

        Raises:
            KafkaStorageError: as `flush`.
        """
        try:
            self.native.sync_names()
        except OSError as error:
            self.faults.disk_failed(error)
            raise KafkaStorageError(f"{self.topic_partition}: {error}") from error

    def recovery_point(self) -> int:
        """Sync rolled indexes; return the offset from which recovery has to read after a crash.

        Raises:
            KafkaStorageError: the disk has failed (reported to the owner).
        """
        with self._lock:
            durable_end = self.native.durable_end
            with self.faults.judged():
                self._segments.sync_rolled(durable_end)
            return durable_end

    def is_flush_due(self, monotonic_ms: int) -> bool:
        """Return whether flush.messages or flush.ms require a flush."""
        unflushed = self.native.log_end_offset - self.native.durable_end
        if unflushed <= 0:
            self.last_flush_ms = monotonic_ms
            return False
        settings = self._settings
        return (
            unflushed >= settings.flush_messages
            or monotonic_ms - self.last_flush_ms >= settings.flush_ms
        )

    # -- producers ---------------------------------------------------------------------------

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers idle for producer.id.expiration.ms; return their number."""
        silent = self._silent_producers.look(
            self.native.producers(), now_ms=now_ms, expiration_ms=expiration_ms
        )
        return sum(self._forget_producer(entry) for entry in silent)

    def _forget_producer(self, seen: ProducerEntry) -> bool:
        """Remove a producer unless it has written since it was seen; return whether it is gone."""
        with self._lock:
            return self.native.remove_producer(seen.producer_id, seen.version)

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Flush everything, write the producer snapshot and close: a clean shutdown.

        Raises:
            KafkaStorageError: the disk has failed (reported to the owner).
        """
        with self._lock:
            if self._closed:
                return
            self._take(self._role._replace(writable=False, sole_replica=False))
            try:
                with self.faults.judged():
                    self._segments.finish()
            except KafkaStorageError:
                if not self._dropped:  # by another thread, which waits for the lock
                    raise
            finally:
                self.drop()

    def go_offline(self) -> None:
        """Refuse appends, reads and flushes. Takes no lock, so callbacks may call it."""
        self.faults.silence()
        self.native.offline()

    def drop(self) -> None:
        """Close without writing anything: the partition is deleted, or its disk has failed."""
        self._dropped = True
        self.faults.silence()
        self.native.offline(failed=False)
        with self._lock:
            if not self._closed:
                self._closed = True
                self._segments.close()
