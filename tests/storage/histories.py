"""Random histories of a compacted log, with transactions, and what its readers must know then.

A history is written to a log by several producers, one without an id and some with transactions,
which are committed, aborted or left open. Whatever becomes of the log, a reader of committed
records must end with the table that `table` gives.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from plog._native.records import Record, build_batch
from plog.protocol.messages.fetch import AbortedTransaction, PartitionData
from plog.storage.log import Log
from plog.storage.producer_state import Marker
from tests.committed import kept_records

from .storage_logs import NOW_MS, append_verified, read_all

Table = dict[bytes, bytes]
PRODUCERS = range(70, 73)
KEYS = 12


class _Written(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None
    transaction: int | None


@dataclass
class _Producer:
    epoch: int = 0
    sequence: int = 0
    transaction: int | None = None  # the one that is open


@dataclass
class History:
    """What was written, in its order, and how each transaction has ended."""

    chance: random.Random
    _written: list[_Written] = field(default_factory=list)
    _producers: dict[int, _Producer] = field(
        default_factory=lambda: {one: _Producer() for one in PRODUCERS}
    )
    _first_offsets: list[int] = field(default_factory=list)  # of transactions, by their numbers
    _committed: dict[int, bool] = field(default_factory=dict)  # those that have ended

    def write(self, log: Log, batches: int) -> None:
        """Write so many batches; markers and new segments come in between."""
        for _ in range(batches):
            self.put(log, self.chance.choice([None, None, *PRODUCERS]))
            if self._open and self.chance.random() < 0.3:
                self.end(log, self.chance.choice(self._open))
            if self.chance.random() < 0.2:
                log.roll()

    def put(self, log: Log, producer_id: int | None = None) -> None:
        """Write a batch of random pairs, in the producer's transaction if it is one's."""
        chance = self.chance
        pairs = [(self._key(), self._value()) for _ in range(chance.randint(1, 6))]
        options: dict[str, object] = {"codec": chance.choice([0, 0, 1, 3, 4])}
        number = None
        if producer_id is not None:
            producer = self._producers[producer_id]
            if producer.transaction is None:
                producer.transaction = len(self._first_offsets)
                self._first_offsets.append(log.log_end_offset)
            number = producer.transaction
            options |= {
                "producer_id": producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.sequence,
                "transactional": True,
            }
            producer.sequence += len(pairs)
        data = build_batch([(NOW_MS, *pair, ()) for pair in pairs], **options)  # type: ignore[arg-type]
        offset = append_verified(log, bytearray(data))
        self._written += [_Written(offset + n, *pair, number) for n, pair in enumerate(pairs)]

    def end(self, log: Log, producer_id: int) -> None:
        """End a producer's transaction one way or the other; its epoch may rise with that."""
        producer = self._producers[producer_id]
        assert producer.transaction is not None
        commits = self.chance.random() < 0.6
        if self.chance.random() < 0.5:
            producer.epoch += 1
            producer.sequence = 0
        marker = Marker(abort=not commits, coordinator_epoch=0)
        log.transactions.append_marker(producer_id, producer.epoch, marker, now_ms=NOW_MS)
        self._committed[producer.transaction] = commits
        producer.transaction = None

    def end_all(self, log: Log) -> None:
        """End whatever is open."""
        for producer_id in self._open:
            self.end(log, producer_id)

    def stable_end(self, log: Log) -> int:
        """Return where a reader of committed records must stop."""
        still_open = (self._producers[one].transaction for one in self._open)
        firsts = [self._first_offsets[one] for one in still_open if one is not None]
        return min([log.log_end_offset, *firsts])

    def producers(self) -> dict[int, tuple[int, int]]:
        """Return the epoch and the next sequence of each producer that has begun a transaction."""
        return {
            producer_id: (its.epoch, its.sequence)
            for producer_id, its in self._producers.items()
            if its.sequence or its.epoch
        }

    def table(self, log: Log) -> Table:
        """Return what a reader of committed records must know in the end."""
        found: Table = {}
        end = self.stable_end(log)
        for one in self._written:
            is_committed = one.transaction is None or self._committed.get(one.transaction, False)
            if one.offset < end and is_committed:
                _tell(found, one.key, one.value)
        return found

    @property
    def _open(self) -> list[int]:
        return [one for one, its in self._producers.items() if its.transaction is not None]

    def _key(self) -> bytes:
        return b"%d" % self.chance.randrange(KEYS)

    def _value(self) -> bytes | None:
        chance = self.chance
        return None if chance.random() < 0.3 else chance.randbytes(chance.randrange(120))


def _tell(table: Table, key: bytes, value: bytes | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def committed_records(log: Log, start: int = 0) -> list[Record]:
    """Return what a reader of committed records gets from there on."""
    end = log.last_stable_offset
    if start >= end:
        return []
    aborted = log.transactions.aborted_between(start, end)
    part = PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=end,
        records=read_all(log, start),
        aborted_transactions=[
            AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
            for one in aborted
        ],
    )
    records, _ = kept_records(part)
    return [one for one in records if start <= one.offset < end]


def told(log: Log) -> Table:
    """Return what a reader of committed records that begins at the start knows in the end."""
    found: Table = {}
    for record in committed_records(log):
        assert record.key is not None
        _tell(found, record.key, record.value)
    return found
