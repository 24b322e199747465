"""Idempotent and transactional producers: which batch may come next (KIP-98, KIP-360).

Owns the rules: what the ordinary next batch of a producer is, what becomes of the
unusual one, what a transaction marker changes, when a producer is forgotten. All
pure: entries and batch headers in, entries (or the refusal) out. The entries
themselves live in the partition's struct, which knows `check` by heart, tested
to be the same, and asks `decide` for everything else. Never reads or writes a
file; the snapshot's bytes are in producer_snapshot.py.
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
"""A client may have so many requests in flight and still retry each of them."""

MAX_SEQUENCE = 2147483647

NO_SEQUENCE = -1

ONLY_ZERO_NEXT = SequencedBatch(NO_SEQUENCE, NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
"""Stands for "no batch of this epoch yet": after sequence -1 only 0 is in order.

An entry with no batches at all means another thing: nothing is known, any sequence may come.
"""


class Verdict(Enum):
    """What `check` says of a batch."""

    ORDINARY = "append it"
    DUPLICATE = "answer with the first copy"
    UNUSUAL = "ask decide"


class Marker(NamedTuple):
    """The content of a control batch (docs/FORMATS.md).

    `has_own_epoch`: its epoch is above that of the transaction's records (KIP-890); no file
    records this.
    """

    abort: bool
    coordinator_epoch: int
    has_own_epoch: bool = False


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended."""

    producer_id: int
    first_offset: int
    last_offset: int  # the marker's
    aborted: bool


def next_sequence(sequence: int, by: int = 1) -> int:
    """Add to a sequence number; after 2147483647 comes 0."""
    return (sequence + by) % (MAX_SEQUENCE + 1)


def has_producer(header: BatchHeader) -> bool:
    """Tell whether a batch names a producer. As in Kafka no negative id does, not -1 alone."""
    return header.producer_id >= 0


def check(
    entry: ProducerEntry | None, header: BatchHeader
) -> tuple[Verdict, SequencedBatch | None]:
    """Apply the ordinary rule; with DUPLICATE comes the first copy."""
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
    """Tell whether a producer has a transaction open under an epoch."""
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
    """Return the entry that may take the unusual batch in; the struct then appends it unchecked.

    Its `version` is that of `entry`, so that the struct can tell whether another batch came
    between. A transaction that starts with the batch is opened by the struct, which alone knows
    the offset.

    Args:
        is_verified: the transaction's coordinator knows that the partition is in it.
        from_zero: each transaction of the producer has an epoch of its own, and begins with 0.

    Raises:
        InvalidProducerEpoch: the producer has been fenced by a newer epoch.
        OutOfOrderSequenceNumber: a gap, an old duplicate, or a new epoch that does not start at 0.
        InvalidTxnState: a batch outside the transaction that its producer has open, or of one that
            its coordinator does not know of (KIP-890).
        InvalidRecord: no sequence number.
    """
    who = f"producer {header.producer_id}"
    if header.base_sequence < 0:
        raise InvalidRecord(f"{who}: a batch without a sequence number")
    decided = _in_sequence(entry, header, who)
    if _begins_transaction(entry, header):
        if not is_verified:
            raise InvalidTxnState(f"{who}: a batch of no ongoing transaction")
        if from_zero and header.base_sequence != 0 and not _has_batches(entry, header):
            # Another is on its way before it: nothing of this epoch has been here.
            raise OutOfOrderSequenceNumber(
                f"{who}: a transaction begins at sequence {header.base_sequence}, not 0"
            )
    return decided


def _has_batches(entry: ProducerEntry | None, header: BatchHeader) -> bool:
    """Tell whether batches of the epoch are there: of a client that was of version 1 until now."""
    return (
        entry is not None and entry.producer_epoch == header.producer_epoch and bool(entry.batches)
    )


def decide_own(
    entry: ProducerEntry | None, header: BatchHeader, *, is_verified: bool
) -> ProducerEntry:
    """Return the entry that may take in what a coordinator writes for a producer, unnumbered.

    Raises:
        InvalidProducerEpoch, InvalidTxnState: as `decide`.
    """
    who = f"producer {header.producer_id}"
    _check_epoch(entry, header, who)
    if _begins_transaction(entry, header) and not is_verified:
        raise InvalidTxnState(f"{who}: offsets of no ongoing transaction")
    if entry is None:
        return _fresh(header.producer_id, header.producer_epoch, batches=())
    if header.producer_epoch > entry.producer_epoch:
        return entry._replace(producer_epoch=header.producer_epoch, batches=())
    return entry


def decide_marker(
    entry: ProducerEntry | None, header: BatchHeader, marker: Marker
) -> ProducerEntry:
    """Return the entry that a transaction marker leaves.

    Raises:
        InvalidProducerEpoch: the producer has been fenced by a newer epoch, or has a transaction
            open that came after the one which the marker is to end.
        TransactionCoordinatorFenced: a later coordinator has written one already.
    """
    who = f"producer {header.producer_id}"
    _check_epoch(entry, header, who)
    if marker.has_own_epoch and is_in_transaction(entry, header.producer_epoch):
        raise InvalidProducerEpoch(
            f"{who}: a marker of epoch {header.producer_epoch}, of which a transaction has begun"
        )
    if entry is not None and marker.coordinator_epoch < entry.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"{who}: a marker of coordinator epoch {marker.coordinator_epoch}, one of"
            f" {entry.coordinator_epoch} has come before"
        )
    return complete(entry, header, marker)[0]


def _check_epoch(entry: ProducerEntry | None, header: BatchHeader, who: str) -> None:
    if entry is not None and header.producer_epoch < entry.producer_epoch:
        raise InvalidProducerEpoch(
            f"{who}: epoch {header.producer_epoch} is older than {entry.producer_epoch}"
        )


def _in_sequence(entry: ProducerEntry | None, header: BatchHeader, who: str) -> ProducerEntry:
    if entry is None:
        # Its state has expired, or was never here: whatever it sends next is accepted.
        return _fresh(header.producer_id, header.producer_epoch, batches=())
    _check_epoch(entry, header, who)
    if header.producer_epoch > entry.producer_epoch:
        if header.base_sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"{who}: epoch {header.producer_epoch} starts at sequence"
                f" {header.base_sequence}, not 0"
            )
        _check_transaction(entry, header, who)
        # What an older epoch left open stays so until a marker comes, whoever goes on with it.
        return entry._replace(producer_epoch=header.producer_epoch, batches=())
    if entry.batches:
        expected = next_sequence(entry.batches[-1].last_sequence)
        if header.base_sequence != expected:
            raise OutOfOrderSequenceNumber(
                f"{who} epoch {entry.producer_epoch}: sequence {header.base_sequence} came,"
                f" {expected} was due"
            )
    _check_transaction(entry, header, who)
    return entry


def _check_transaction(entry: ProducerEntry, header: BatchHeader, who: str) -> None:
    if not header.is_transactional and entry.current_txn_first_offset != NO_OFFSET:
        raise InvalidTxnState(
            f"{who}: a batch outside the transaction open since {entry.current_txn_first_offset}"
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


# -- replay: batches that are in the log already ---------------------------------------------------


def sequenced(header: BatchHeader) -> SequencedBatch:
    """Return what is remembered of a batch that has been appended."""
    return SequencedBatch(
        first_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        last_offset=header.last_offset,
        offset_delta=header.last_offset_delta,
        timestamp=header.max_timestamp,
    )


def apply(entry: ProducerEntry | None, header: BatchHeader) -> ProducerEntry:
    """Return the entry after a data batch of the log, which is not questioned.

    So do followers, and so is the state rebuilt: the leader has checked it once.
    """
    if entry is None:
        entry = _fresh(header.producer_id, header.producer_epoch, batches=())
    elif header.producer_epoch != entry.producer_epoch:
        entry = entry._replace(producer_epoch=header.producer_epoch, batches=())
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
        # The coordinator ended it with a newer epoch, to fence the producer.
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
    """The producers of a log while its batches are read again, in order."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.entries = {entry.producer_id: entry for entry in entries}

    def on_batch(self, header: BatchHeader) -> None:
        """Take a data batch."""
        if has_producer(header):
            known = self.entries.get(header.producer_id)
            self.entries[header.producer_id] = apply(known, header)

    def on_marker(self, header: BatchHeader, marker: Marker) -> CompletedTransaction | None:
        """Take a control batch."""
        if not has_producer(header):
            return None
        known = self.entries.get(header.producer_id)
        entry, completed = complete(known, header, marker)
        self.entries[header.producer_id] = entry
        return completed

    def on_emptied_marker(self, header: BatchHeader) -> None:
        """Take a control batch that a cleaner has left without its record.

        No record of its transaction is left, so that it completes none: as in Kafka, whose
        ProducerAppendInfo.append returns at once. Kafka forgets the epoch with that, for the sake
        of which its cleaner keeps such a batch; here it fences. Of sequences nothing is known.
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
        """Return where the earliest open transaction starts; None when none is open."""
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
    """Finds the four batches before the newest one, which is all that a snapshot keeps.

    Without them, a client that retries five batches after a restart would have the first
    four refused, or worse, believed to be new.
    """

    def __init__(self, entries: Iterable[ProducerEntry]) -> None:
        self.entries = {entry.producer_id: entry for entry in entries}
        self._wanting = {pid for pid, entry in self.entries.items() if _is_wanting(entry)}

    @property
    def wanting(self) -> bool:
        """Whether any producer's window can still grow."""
        return bool(self._wanting)

    def on_batch(self, header: BatchHeader) -> None:
        """Take a batch; they come newest first."""
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
    # Nothing of the epoch comes before sequence 0, but after 2^31 records: not worth a search.
    return entry.batches[0].first_sequence not in (NO_SEQUENCE, 0)


# -- expiry ----------------------------------------------------------------------------------------


def expired(
    entries: Iterable[ProducerEntry], *, now_ms: int, expiration_ms: int
) -> Iterator[ProducerEntry]:
    """Return the producers silent for producer.id.expiration.ms, but for open transactions."""
    for entry in entries:
        idle_ms = now_ms - entry.last_timestamp
        if entry.current_txn_first_offset == NO_OFFSET and idle_ms >= expiration_ms:
            yield entry


class SilentProducers:
    """Which producers of one log may be forgotten.

    Timestamps are the clients': whoever has written since the last look is not silent, however
    old its records are. Else its retries would be taken for new batches.
    """

    def __init__(self) -> None:
        # By producer id, the versions that the last look saw.
        self._seen: dict[int, int] = {}

    def look(
        self, entries: Sequence[ProducerEntry], *, now_ms: int, expiration_ms: int
    ) -> list[ProducerEntry]:
        """Return those that have expired and not written since the last look."""
        idle = [one for one in entries if self._seen.get(one.producer_id) == one.version]
        self._seen = {one.producer_id: one.version for one in entries}
        return list(expired(idle, now_ms=now_ms, expiration_ms=expiration_ms))
