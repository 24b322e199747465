"""Idempotent and transactional producers: which batch may come next (KIP-98, KIP-360).

Owns the rules: the usual next batch of a producer, unusual batches, the effect of a transaction
marker, and the expiry of a producer. All functions are pure: entries and batch headers in, entries
(or an error) out. The entries are in the partition's struct. The struct has its own copy of
`check`, which tests compare with this one, and calls `decide` for everything else. Never reads or
writes a file; producer_snapshot.py has the format of the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from plog._native.batch import BatchHeader
from plog._native.partition_log import ProducerEntry, SequencedBatch
from plog.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from plog.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP

BATCHES_REMEMBERED = 5
"""Maximum number of requests in flight that a client can retry."""

MAX_SEQUENCE = 2147483647

NO_SEQUENCE = -1

ONLY_ZERO_NEXT = SequencedBatch(NO_SEQUENCE, NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
"""Means "no batch of this epoch yet": after sequence -1 only 0 is in order.

In contrast, an entry without batches means that nothing is known, and accepts any sequence.
"""


class Verdict(Enum):
    """The result of `check`."""

    ORDINARY = "append it"
    DUPLICATE = "answer with the first copy"
    UNUSUAL = "ask decide"


class Marker(NamedTuple):
    """The content of a control batch (docs/FORMATS.md).

    `has_own_epoch`: its epoch is above that of the transaction's records (KIP-890); not stored.
    """

    abort: bool
    coordinator_epoch: int
    has_own_epoch: bool = False


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker
    aborted: bool


def next_sequence(sequence: int, by: int = 1) -> int:
    """Add to a sequence number; after 2147483647 comes 0."""
    return (sequence + by) % (MAX_SEQUENCE + 1)


def has_producer(header: BatchHeader) -> bool:
    """Return whether a batch has a producer id. As in Kafka, any negative id means none."""
    return header.producer_id >= 0


def check(
    entry: ProducerEntry | None, header: BatchHeader
) -> tuple[Verdict, SequencedBatch | None]:
    """Apply the usual rule; return the first copy with DUPLICATE."""
    if not has_producer(header):
        return Verdict.ORDINARY, None
    if entry is None or header.producer_epoch != entry.producer_epoch or header.base_sequence < 0:
        return Verdict.UNUSUAL, None
    for known in entry.batches:
        if (known.first_sequence, known.last_sequence) == (
            header.base_sequence,
            header.last_sequence,
        ):
            return Verdict.DUPLICATE, known
    if header.is_transactional != (entry.current_txn_first_offset != NO_OFFSET):
        return Verdict.UNUSUAL, None
    if entry.batches and header.base_sequence != next_sequence(entry.batches[-1].last_sequence):
        return Verdict.UNUSUAL, None
    return Verdict.ORDINARY, None


def is_in_transaction(entry: ProducerEntry | None, producer_epoch: int) -> bool:
    """Return whether a producer has an open transaction in an epoch."""
    return (
        entry is not None
        and entry.producer_epoch == producer_epoch
        and entry.current_txn_first_offset != NO_OFFSET
    )


def _begins_transaction(entry: ProducerEntry | None, header: BatchHeader) -> bool:
    return header.is_transactional and not is_in_transaction(entry, header.producer_epoch)


def decide(
    entry: ProducerEntry | None,
    header: BatchHeader,
    *,
    is_verified: bool = False,
    from_zero: bool = False,
) -> ProducerEntry:
    """Return the entry that accepts an unusual batch; the struct then appends it without a check.

    Keeps the `version` of `entry`, so that the struct notices another batch in between. The struct
    opens a transaction that starts with the batch, because it knows the offset.

    Args:
        is_verified: the transaction's coordinator has confirmed that the partition is in it.
        from_zero: each transaction of the producer has its own epoch, and starts at sequence 0.

    Raises:
        InvalidProducerEpoch: the producer has been fenced by a newer epoch.
        OutOfOrderSequenceNumber: a gap, an old duplicate, or a new epoch that does not start at 0.
        InvalidTxnState: a batch outside its producer's open transaction, or of a transaction
            unknown to the coordinator (KIP-890).
        InvalidRecord: no sequence number.
    """
    who = f"producer {header.producer_id}"
    if header.base_sequence < 0:
        raise InvalidRecord(f"{who}: batch without a sequence number")
    decided = _in_sequence(entry, header, who)
    if _begins_transaction(entry, header):
        if not is_verified:
            raise InvalidTxnState(f"{who}: batch outside an ongoing transaction")
        if from_zero and header.base_sequence != 0 and not _has_batches(entry, header):
            # The epoch has no batch yet, so an earlier batch must still arrive.
            raise OutOfOrderSequenceNumber(
                f"{who}: first sequence of the transaction is {header.base_sequence}, expected 0"
            )
    return decided


def _has_batches(entry: ProducerEntry | None, header: BatchHeader) -> bool:
    """Return whether the epoch has batches, from a client that used version 1 before."""
    return (
        entry is not None and entry.producer_epoch == header.producer_epoch and bool(entry.batches)
    )


def decide_own(
    entry: ProducerEntry | None, header: BatchHeader, *, is_verified: bool
) -> ProducerEntry:
    """Return the entry that accepts a coordinator's write without sequence numbers.

    Raises:
        InvalidProducerEpoch, InvalidTxnState: as `decide`.
    """
    who = f"producer {header.producer_id}"
    _check_epoch(entry, header, who)
    if _begins_transaction(entry, header) and not is_verified:
        raise InvalidTxnState(f"{who}: offsets outside an ongoing transaction")
    if entry is None:
        return _fresh(header.producer_id, header.producer_epoch, batches=())
    if header.producer_epoch > entry.producer_epoch:
        return entry._replace(producer_epoch=header.producer_epoch, batches=())
    return entry


def decide_marker(
    entry: ProducerEntry | None, header: BatchHeader, marker: Marker
) -> ProducerEntry:
    """Return the entry after a transaction marker.

    Raises:
        InvalidProducerEpoch: the producer has been fenced by a newer epoch, or its open transaction
            is later than the marker's.
        TransactionCoordinatorFenced: a later coordinator has already written a marker.
    """
    who = f"producer {header.producer_id}"
    _check_epoch(entry, header, who)
    if marker.has_own_epoch and is_in_transaction(entry, header.producer_epoch):
        raise InvalidProducerEpoch(
            f"{who}: marker for epoch {header.producer_epoch}, but a transaction of that epoch is"
            " open"
        )
    if entry is not None and marker.coordinator_epoch < entry.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"{who}: marker of coordinator epoch {marker.coordinator_epoch}, but coordinator epoch"
            f" {entry.coordinator_epoch} has already written one"
        )
    return complete(entry, header, marker)[0]


def _check_epoch(entry: ProducerEntry | None, header: BatchHeader, who: str) -> None:
    if entry is not None and header.producer_epoch < entry.producer_epoch:
        raise InvalidProducerEpoch(
            f"{who}: epoch {header.producer_epoch} is older than {entry.producer_epoch}"
        )


def _in_sequence(entry: ProducerEntry | None, header: BatchHeader, who: str) -> ProducerEntry:
    if entry is None:
        # Its state has expired, or never existed: accept any next batch.
        return _fresh(header.producer_id, header.producer_epoch, batches=())
    _check_epoch(entry, header, who)
    if header.producer_epoch > entry.producer_epoch:
        if header.base_sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"{who}: epoch {header.producer_epoch} starts at sequence"
                f" {header.base_sequence}, not 0"
            )
        _check_transaction(entry, header, who)
        # A transaction left open by an older epoch stays open until its marker.
        return entry._replace(producer_epoch=header.producer_epoch, batches=())
    if entry.batches:
        expected = next_sequence(entry.batches[-1].last_sequence)
        if header.base_sequence != expected:
            raise OutOfOrderSequenceNumber(
                f"{who} epoch {entry.producer_epoch}: sequence {header.base_sequence},"
                f" expected {expected}"
            )
    _check_transaction(entry, header, who)
    return entry


def _check_transaction(entry: ProducerEntry, header: BatchHeader, who: str) -> None:
    if not header.is_transactional and entry.current_txn_first_offset != NO_OFFSET:
        raise InvalidTxnState(
            f"{who}: batch outside the transaction open since {entry.current_txn_first_offset}"
        )


def _fresh(
    producer_id: int, producer_epoch: int, batches: tuple[SequencedBatch, ...]
) -> ProducerEntry:
    return ProducerEntry(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        batches=batches,
        last_timestamp=NO_TIMESTAMP,
        coordinator_epoch=NO_EPOCH,
        current_txn_first_offset=NO_OFFSET,
    )


# -- replay: batches of the log --------------------------------------------------------------------


def sequenced(header: BatchHeader) -> SequencedBatch:
    """Return the facts to remember about an appended batch."""
    return SequencedBatch(
        first_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        last_offset=header.last_offset,
        offset_delta=header.last_offset_delta,
        timestamp=header.max_timestamp,
    )


def accept(entry: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """Return the entry to which a data batch of the log is added, without a check.

    For followers and for rebuilding the state: the leader has checked the batch.
    """
    if entry is None:
        return _fresh(header.producer_id, header.producer_epoch, batches=())
    if header.producer_epoch != entry.producer_epoch:
        return entry._replace(producer_epoch=header.producer_epoch, batches=())
    return entry


def apply(entry: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """Return the entry after a data batch of the log."""
    entry = accept(entry, header)
    batches = (*entry.batches, sequenced(header))[-BATCHES_REMEMBERED:]
    entry = entry._replace(batches=batches, last_timestamp=header.max_timestamp)
    if header.is_transactional and entry.current_txn_first_offset == NO_OFFSET:
        entry = entry._replace(current_txn_first_offset=header.base_offset)
    return entry


def complete(
    entry: ProducerEntry | None, header: BatchHeader, marker: Marker
) -> tuple[ProducerEntry, CompletedTransaction | None]:
    """Return the entry after a transaction marker, and the transaction it ended, if any."""
    if entry is None:
        entry = _fresh(header.producer_id, header.producer_epoch, batches=(ONLY_ZERO_NEXT,))
    completed = None
    if entry.current_txn_first_offset != NO_OFFSET:
        completed = CompletedTransaction(
            producer_id=header.producer_id,
            first_offset=entry.current_txn_first_offset,
            last_offset=header.last_offset,
            aborted=marker.abort,
        )
    if header.producer_epoch > entry.producer_epoch:
        # The coordinator ended it in a newer epoch, to fence the producer.
        entry = entry._replace(producer_epoch=header.producer_epoch, batches=(ONLY_ZERO_NEXT,))
    return (
        entry._replace(
            coordinator_epoch=marker.coordinator_epoch,
            current_txn_first_offset=NO_OFFSET,
            last_timestamp=header.max_timestamp,
        ),
        completed,
    )


class ProducerReplay:
    """Rebuilds the producers of a log from its batches, in order."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.entries = {entry.producer_id: entry for entry in entries}

    def on_batch(self, header: BatchHeader) -> None:
        """Apply a data batch."""
        if has_producer(header):
            known = self.entries.get(header.producer_id)
            self.entries[header.producer_id] = apply(known, header)

    def on_marker(self, header: BatchHeader, marker: Marker) -> CompletedTransaction | None:
        """Apply a control batch."""
        if not has_producer(header):
            return None
        known = self.entries.get(header.producer_id)
        entry, completed = complete(known, header, marker)
        self.entries[header.producer_id] = entry
        return completed

    def on_emptied_marker(self, header: BatchHeader) -> None:
        """Apply a control batch whose record was removed by compaction.

        Its transaction has no records left, so it completes none. So does Kafka
        (ProducerAppendInfo.append returns at once), but Kafka loses the epoch, although its cleaner
        keeps the batch for that; here the epoch fences. The sequences are unknown.
        """
        if not has_producer(header):
            return
        known = self.entries.get(header.producer_id)
        if known is None:
            known = _fresh(header.producer_id, header.producer_epoch, batches=())
            known = known._replace(last_timestamp=header.max_timestamp)
        elif header.producer_epoch > known.producer_epoch:
            known = known._replace(
                producer_epoch=header.producer_epoch,
                batches=(),
                last_timestamp=header.max_timestamp,
            )
        self.entries[header.producer_id] = known

    def first_unstable_offset(self) -> int | None:
        """Return the first offset of the earliest open transaction, or None."""
        return min(
            (
                entry.current_txn_first_offset
                for entry in self.entries.values()
                if entry.current_txn_first_offset != NO_OFFSET
            ),
            default=None,
        )


# -- the window of five ----------------------------------------------------------------------------


class WindowRefill:
    """Finds the four batches before the newest one; a snapshot keeps only that.

    Without them, if a client retries five batches after a restart, plog would refuse the first
    four, or even append them again.
    """

    def __init__(self, entries: Iterable[ProducerEntry]) -> None:
        self.entries = {entry.producer_id: entry for entry in entries}
        self._wanting = {pid for pid, entry in self.entries.items() if _is_wanting(entry)}

    @property
    def wanting(self) -> bool:
        """Whether any producer's window can still grow."""
        return bool(self._wanting)

    def on_batch(self, header: BatchHeader) -> None:
        """Apply a batch, newest first."""
        if header.producer_id not in self._wanting or header.is_control:
            return
        entry = self.entries[header.producer_id]
        oldest = entry.batches[0]
        if header.last_offset >= oldest.last_offset:
            return
        if (
            header.producer_epoch != entry.producer_epoch
            or next_sequence(header.last_sequence) != oldest.first_sequence
        ):
            # Another epoch, or a restart of the numbering after the state had expired.
            self._wanting.discard(header.producer_id)
            return
        entry = entry._replace(batches=(sequenced(header), *entry.batches))
        self.entries[header.producer_id] = entry
        if not _is_wanting(entry):
            self._wanting.discard(header.producer_id)


def _is_wanting(entry: ProducerEntry) -> bool:
    if not entry.batches or len(entry.batches) >= BATCHES_REMEMBERED:
        return False
    # Sequence 0 starts an epoch, except after 2^31 records; ignore that case.
    return entry.batches[0].first_sequence not in (NO_SEQUENCE, 0)


# -- expiry ----------------------------------------------------------------------------------------


def expired(
    entries: Iterable[ProducerEntry], *, now_ms: int, expiration_ms: int
) -> Iterator[ProducerEntry]:
    """Return the producers idle for producer.id.expiration.ms, without open transactions."""
    for entry in entries:
        idle_ms = now_ms - entry.last_timestamp
        if entry.current_txn_first_offset == NO_OFFSET and idle_ms >= expiration_ms:
            yield entry


class SilentProducers:
    """Finds the producers of one log to expire.

    Timestamps come from clients, so they may be old. A producer that has written since the last
    look is not idle; otherwise its retries would count as new batches.
    """

    def __init__(self) -> None:
        # Versions at the last look, by producer id.
        self._seen: dict[int, int] = {}

    def look(
        self, entries: Sequence[ProducerEntry], *, now_ms: int, expiration_ms: int
    ) -> list[ProducerEntry]:
        """Return the expired producers that have not written since the last look."""
        idle = [one for one in entries if self._seen.get(one.producer_id) == one.version]
        self._seen = {one.producer_id: one.version for one in entries}
        return list(expired(idle, now_ms=now_ms, expiration_ms=expiration_ms))
