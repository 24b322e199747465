from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from plog._native.aborted_list import PublishedAborted
from plog._native.disk_room import DiskRoom
from plog._native.producers import ProducerEntry as ProducerEntry
from plog._native.producers import SequencedBatch as SequencedBatch
from plog._native.segment import FileRange as FileRange
from plog._native.segment import Segment as Segment
from plog.types import Buffer

# Statuses of PartitionLog.append.
APPENDED: int
# One of the producer's last five batches; base_offset and timestamp are the first copy's.
DUPLICATE: int
# The active segment has no room (bytes, index, offset span) or is past its time: roll, then again.
ROLL_NEEDED: int
# Not the ordinary next batch of a known producer: storage/producer_state.py decides.
PRODUCER_UNUSUAL: int
# errno says why; the file was cut back to what it was (or the log is offline now).
WRITE_FAILED: int
# Closed, offline or being moved; errno says why it is offline.
NOT_WRITABLE: int

# Results of PartitionLog.ack_status.
ACK_WAITS: int
ACK_SAFE: int
# Leadership or the log was lost since the append: the records may be gone.
ACK_NOT_LEADER: int
ACK_OFFLINE: int
# Committed, but on fewer replicas than min.insync.replicas.
ACK_TOO_FEW_IN_SYNC: int

class Appended(NamedTuple):
    status: int
    base_offset: int  # of the first batch
    last_offset: int
    timestamp: int  # DUPLICATE: the max timestamp (or append time) of the first copy
    log_start_offset: int
    errno: int
    took_us: int = 0  # without the waits for the interpreter lock; 0: not measured
    # Where acks=all finds the batch again: which log took it in, and the state of that log then.
    log_id: int = -1
    truncations: int = -1
    leader_epoch: int = -1

class PartitionState(NamedTuple):
    """A consistent copy of the struct's numbers."""

    log_start_offset: int
    log_end_offset: int
    durable_end: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    size_bytes: int
    segment_count: int

class PartitionLog:
    """The mutable state of one partition, under one lock, for Python and the reactor alike.

    It never decides: Python publishes segments, limits, epochs and producers into it; it keeps
    order, offsets and bytes consistent. `high_watermark` moves by `advance_high_watermark`, by the
    positions of followers (`partition_followers`) or, with `sole_replica`, with every append.
    Nothing is writable before `set_leader`.

    Raises:
        ValueError: no segments, segments that overlap, or ends past the last one's.
    """

    def __init__(
        self,
        segments: Sequence[Segment],  # ascending, the last is active
        *,
        log_start_offset: int,
        high_watermark: int,
        durable_end: int,
        leader_epoch: int,
        directory: Path,  # fsync'ed before a new segment's bytes count as durable
        index_interval_bytes: int,
    ) -> None: ...
    # -- state
    def state(self) -> PartitionState:
        """Return a consistent copy of the numbers."""
    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
    @property
    def durable_end(self) -> int:
        """All below it has been fdatasync'ed."""
    @property
    def high_watermark(self) -> int:
        """All below it is committed: what consumers may see."""
    @property
    def last_stable_offset(self) -> int:
        """All below it is committed and of no undecided transaction."""
    @property
    def leader_epoch(self) -> int:
        """Epoch that is stamped into appended batches."""
    @property
    def segments(self) -> list[Segment]:
        """The published list, ascending; the last is active. Empty after close."""
    @property
    def change_count(self) -> int:
        """How many changes of end, durable end, high watermark, last stable offset, epoch or
        existence there were.
        """
    @property
    def truncations(self) -> int:
        """How often the end was set back. Same before and after a read: so was its limit."""
    # -- what Python publishes
    def set_limits(
        self,
        *,
        segment_bytes: int,
        segment_ms: int,
        segment_jitter_ms: int,
        index_interval_bytes: int,
    ) -> None:
        """Set when `append` asks for a roll, and how dense the indexes are."""
    def set_room(self, room: DiskRoom) -> None:
        """Append only what there is room for, and take it: the rest is WRITE_FAILED with ENOSPC."""

    def set_leader(
        self,
        leader_epoch: int,
        *,
        writable: bool,
        sole_replica: bool,
        leads: bool | None = None,
        enough_in_sync: bool = True,
    ) -> None:
        """Set the role in one step. When it returns, no append under the old epoch is under way.

        Args:
            sole_replica: every append is committed at once.
            leads: whether this broker leads; None: as `writable`. A leader that is not writable
                accepts no appends for a moment.
            enough_in_sync: the in-sync replicas are at least min.insync.replicas.
        """

    def epoch_start(self) -> tuple[int, int] | None:
        """Return the leader epoch and the offset where this broker began to lead under it.

        None: this broker does not lead.
        """

    def ack_status(self, appended: Appended, *, must_be_durable: bool) -> int:
        """Tell whether acks=all can be answered for an append: one of ACK_*.

        The one rule, for requests of both planes and for the broker's own appends.
        """

    def set_gaps_legal_below(self, offset: int) -> None:
        """Have reads accept missing batches up to an offset only; without this call, anywhere."""
    def set_log_start_offset(self, offset: int) -> None:
        """Make all below `offset` unreadable; the high watermark follows when it lies below.

        Raises:
            ValueError: past the log end offset.
        """
    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark, at most to the log end offset; tell whether it moved."""
    def set_aborted(self, aborted: PublishedAborted | None) -> None:
        """Say which transactions were aborted that readers must be told of; None for none.

        To be said of one before its marker is appended: with the marker its records may be read.
        """
    def replace_segments(self, segments: Sequence[Segment]) -> None:
        """Publish a new list (roll, deletion, compaction); pins keep the old ones open.

        A replaced segment that lies below the durable end must be synced (file and directory) by
        the caller before.

        Raises:
            ValueError: the list is empty, overlaps, or does not end where the log does. After a
                ROLL_NEEDED the end stands still until the active segment is another one.
            KafkaStorageError: the log is closed.
        """
    def truncate(
        self,
        segments: Sequence[Segment],
        log_end_offset: int,
        producers: Iterable[ProducerEntry] | None = None,
    ) -> None:
        """Publish a list that ends earlier; lower every offset that lies past its end.

        In the same step `producers` become the entries, unless None: else the last stable offset
        would pass a transaction whose marker has been cut off.

        The durable end's slot is lowered and synced before this returns: cut the files afterwards.
        An index file that an old segment may have mapped must be replaced, never cut: touching a
        mapping past the end of its file kills.

        Raises:
            ValueError: the list is empty, overlaps, or ends past `log_end_offset`.
            KafkaStorageError: the log is closed.
            OSError: the slot cannot be written; nothing has changed.
        """
    def set_durable_slot(self, fd: int, position: int, key: bytes) -> None:
        """Say where the durable end is written after each flush, and write it there now.

        A slot is 20 bytes of key, the end (i64) and the CRC-32C of those 28 bytes, big-endian. The
        descriptor stays the caller's, open until it is replaced or the log is closed; -1 for none.

        Raises:
            ValueError: the key has another size.
            OSError: the slot cannot be written.
        """
    def close(self) -> None:
        """Give the segments up: appends are NOT_WRITABLE from now on, reads raise.

        Waits for an append or a flush under way. Nothing is flushed; ranges keep their pins.
        """
    def offline(self, failed: bool = True) -> None:
        """Refuse appends (NOT_WRITABLE), reads (KafkaStorageError) and flushes (OSError) from now
        on: the log directory has failed, or (not `failed`) the log is being given up.
        """
    # -- producers
    def producer(self, producer_id: int) -> ProducerEntry | None:
        """Return the entry of one producer id, or None."""
    def producers(self) -> list[ProducerEntry]:
        """Return all entries, in no order."""
    def put_producer(self, entry: ProducerEntry, if_version: int) -> bool:
        """Publish Python's decision unless the entry has changed since `if_version`; tell whether.

        0 stands for an entry that must not exist yet. The entry's own `version` is not looked at;
        the published one is new.
        """
    def load_producers(self, entries: Sequence[ProducerEntry]) -> None:
        """Replace all entries, at the start."""
    def remove_producer(self, producer_id: int, if_version: int) -> bool:
        """Forget an id, unless its entry has another version; return whether that was done."""
    # -- data
    def append(
        self, records: Buffer, now_ms: int, decided: ProducerEntry | None = None
    ) -> Appended:
        """Append one validated batch as leader, in one critical section.

        Sequence check, offsets and epoch stamped into `records` in place, index entries, write,
        publication. Releases the interpreter lock.

        With `decided` the producer is not checked: its entry becomes `decided` and then takes the
        batch in, unless it has changed since `decided.version` (0: it must not exist), which is
        PRODUCER_UNUSUAL again. A transactional batch opens a transaction at its base offset if
        `decided` has none; a control batch is not remembered, and ends the entry's transaction if
        `decided` has none. Nothing of it is published unless the batch is appended.

        Raises:
            CorruptRecord: `records` is not one whole v2 batch.
            BufferError: it is not writable.
        """
    def read(
        self,
        fetch_offset: int,
        max_bytes: int,
        upper_offset: int,
        whole_first_batch: bool,
        may_wait: bool = True,
    ) -> FileRange | None:
        """Return the bytes from the batch that holds `fetch_offset`, of one segment, or None.

        They end before the first batch that starts at or past `upper_offset`, after at most
        `max_bytes` (the last batch may be cut). A first batch larger than that comes whole with
        `whole_first_batch`, else nothing does. None also for offsets outside the log.

        Raises:
            BlockingIOError: not `may_wait`, and the disk would have to be asked for a batch header.
            CorruptRecord: a bad header on the way.
            KafkaStorageError: the log is closed or offline.
            OSError: a file cannot be read.
        """
    def flush(self) -> int:
        """Sync what is not durable yet and return the durable end.

        In order: old segments, the directory before a new segment's bytes, the active segment; then
        the slot. Only bytes appended before the call count. Releases the interpreter lock; safe
        beside appends and other flushes.

        Raises:
            OSError: a sync failed. That is final: the log is offline, and every later flush fails.
                Except EMFILE and ENFILE: there was no descriptor to sync the directory by, and the
                next flush tries again.
            KafkaStorageError: the log was closed with bytes that are not durable.
        """
    def sync_names(self) -> None:
        """Make the names of all segments durable, so that no flush asks for the directory by its
        path until there is a new segment. For whoever is about to rename it, while nobody changes
        the segments. Raises as `flush` does.
        """
