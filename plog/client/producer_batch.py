"""A batch of records of one partition, and the deliveries that applications hold.

Owns a batch from its first record to its outcome: its bytes, its sequence numbers, its
callbacks, the calls whose rows are in it, and the split of one that is too large.
The sender decides when a batch is sent or given up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from plog._native.arrow_buffers import ColumnBuffer
from plog._native.records import BatchBuilder, Record, walk
from plog._native.rows import RowColumns
from plog.client.rows_delivery import RowsDelivery
from plog.errors import KafkaError, OtherRecordRefused, PlogError, error_for
from plog.types import NO_PRODUCER_ID, Buffer, TopicPartition

log = logging.getLogger(__name__)

Header = tuple[str, bytes | None]

MAX_SEQUENCE = 2**31 - 1
"""After it comes 0, so that adding is a mask."""

_SPENT = BatchBuilder()
"""Replaces a finished batch's builder, so that its deliveries keep no records in memory."""


class RecordMetadata(NamedTuple):
    """Where a record was written.

    `offset` is -1 with acks=0. `timestamp` is the record's, or with LogAppendTime the broker's.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


DeliveryCallback = Callable[[RecordMetadata | None, PlogError | None], None]
"""Called on the producer's own thread, once per record, with its metadata or its error. An
exception is logged. The callback must not wait for the producer."""


class ProducerBatch:
    """Records of one partition. The accumulator's lock guards it until it is closed.

    Attributes:
        size, count: uncompressed bytes and records so far.
        created, deadline: time.monotonic(), when it was opened, when it is given up.
        transactional: it belongs to a transaction.
        base_sequence: of its first record; -1 while it has no number.
        came_back: it was sent, and is no longer in flight.
        maybe_written: an attempt ended without a response, so it may have been written.
        rows: the calls that have rows in it.
    """

    __slots__ = (
        "_done",
        "_halves",
        "_parent",
        "append_time",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "callbacks",
        "came_back",
        "closed",
        "codec",
        "count",
        "created",
        "deadline",
        "decided",
        "encoded",
        "error",
        "in_flight",
        "maybe_written",
        "partition",
        "producer_epoch",
        "producer_id",
        "rows",
        "size",
        "transactional",
    )

    def __init__(
        self,
        partition: TopicPartition,
        codec: int,
        created: float,
        deadline: float,
        *,
        transactional: bool = False,
    ) -> None:
        self.partition = partition
        self.codec = codec
        self.transactional = transactional
        self.builder = BatchBuilder(codec=codec, transactional=transactional)
        self.created, self.deadline = created, deadline
        self.size = self.builder.uncompressed_bytes
        self.count = 0
        self.callbacks: list[tuple[int, int, DeliveryCallback]] = []
        self.rows: list[RowsDelivery] = []
        self.closed = self.in_flight = self.came_back = self.maybe_written = False
        self.attempts = 0
        self.encoded: bytes | None = None
        self.producer_id, self.producer_epoch, self.base_sequence = NO_PRODUCER_ID, -1, -1
        self.decided = False
        self.base_offset = self.append_time = -1
        self.error: PlogError | None = None
        self._done = threading.Event()
        self._parent: ProducerBatch | None = None
        self._halves: tuple[ProducerBatch, ProducerBatch] | None = None

    def __len__(self) -> int:
        return self.count

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        callback: DeliveryCallback | None,
    ) -> int:
        """Add a record and return its place in the batch.

        Raises:
            TypeError, OverflowError, ValueError: the record is invalid; the batch is unchanged.
        """
        self.size = self.builder.append(timestamp, key, value, headers)
        index = self.count
        self.count = index + 1
        if callback is not None:
            self.callbacks.append((index, timestamp, callback))
        return index

    def append_rows(
        self,
        rows: RowColumns,
        order: Buffer | ColumnBuffer,
        start: int,
        end: int,
        timestamp: int,
        limit_bytes: int,
        delivery: RowsDelivery,
    ) -> int:
        """Add rows by `RowColumns.fill`, and return its result.

        Raises as `RowColumns.fill`; the batch is then unchanged.
        """
        taken = rows.fill(self.builder, order, start, end, timestamp, limit_bytes)
        if taken > start:
            self.count += taken - start
            self.size = self.builder.uncompressed_bytes
            # A call is listed twice if another has added rows meanwhile; it then hears twice.
            if not self.rows or self.rows[-1] is not delivery:
                self.rows.append(delivery)
                delivery.batch_added()
        return taken

    def number(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Set the producer id, epoch and sequence, which are part of the batch's bytes."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.base_sequence = base_sequence
        self.builder.set_producer(producer_id, producer_epoch, base_sequence)
        self.encoded = None

    def unnumber(self) -> None:
        """Remove the numbers: the batch was not written with them."""
        self.number(NO_PRODUCER_ID, -1, -1)

    def encode(self) -> bytes:
        """Return the bytes to send, compressed once."""
        if self.encoded is None:
            self.encoded = self.builder.build()
        return self.encoded

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Split the batch in two, with its numbers; it has its outcome once both have theirs.

        Raises:
            ValueError: it has only one record.
        """
        if len(self) < 2:
            raise ValueError("a batch of one record cannot be split")
        records = walk(self.encode())
        first, second = halves = (self._part(), self._part())
        at = 0
        while at == 0 or (at < len(records) - 1 and first.size < self.size // 2):
            first.append(*_again(records[at]))
            at += 1
        for record in records[at:]:
            second.append(*_again(record))
        first.callbacks = [entry for entry in self.callbacks if entry[0] < at]
        second.callbacks = [
            (index - at, timestamp, callback)
            for index, timestamp, callback in self.callbacks
            if index >= at
        ]
        if self.base_sequence >= 0:
            sequence = self.base_sequence
            for half in halves:
                half.number(self.producer_id, self.producer_epoch, sequence)
                sequence = (sequence + len(half)) & MAX_SEQUENCE
        self.callbacks = []
        self.encoded, self.builder = None, _SPENT
        self._halves = halves
        return halves

    def finish(self, base_offset: int, append_time: int, error: PlogError | None) -> None:
        """Set the outcome, call the callbacks, wake waiters. Once, on the sender's thread."""
        self.base_offset, self.append_time, self.error = base_offset, append_time, error
        self.decided = True
        for index, timestamp, callback in self.callbacks:
            try:
                if error is None:
                    callback(self.metadata(index, timestamp), None)
                else:
                    callback(None, self.error_of(index))
            except Exception:
                # A faulty callback must not affect the records after this one.
                log.exception("a delivery callback of %s failed", self.partition)
        self.callbacks = []
        self.encoded, self.builder = None, _SPENT
        if error is not None:
            for delivery in self.rows:
                delivery.batch_failed(error)
        self._finished()

    def metadata(self, index: int, timestamp: int) -> RecordMetadata:
        """Return the metadata of the record at `index`, with its timestamp."""
        return RecordMetadata(
            *self.partition,
            -1 if self.base_offset < 0 else self.base_offset + index,
            timestamp if self.append_time < 0 else self.append_time,
        )

    def error_of(self, index: int) -> PlogError | None:
        """Return the error of the record at `index` (KIP-467).

        If the broker refused single records, it is the reason of this one or `OtherRecordRefused`.
        Its cause is the error of the batch, the same one for all records.
        """
        error = self.error
        if not isinstance(error, KafkaError) or not error.record_errors:
            return error
        own: KafkaError
        if index in error.record_errors:
            reason = error.record_errors[index]
            text = f"produce to {self.partition}: {reason}" if reason else str(error)
            own = error_for(error.code, text)
        else:
            own = OtherRecordRefused(f"{error}; no record of the batch was written")
        own.__cause__ = error
        return own

    def leaf(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch that a record is in after splits, and its place there."""
        batch = self
        while batch._halves is not None:
            first, second = batch._halves
            if index < len(first):
                batch = first
            else:
                batch, index = second, index - len(first)
        return batch, index

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until every record has its outcome and every callback was called."""
        return self._done.wait(timeout_s)

    def _part(self) -> ProducerBatch:
        part = ProducerBatch(
            self.partition,
            self.codec,
            self.created,
            self.deadline,
            transactional=self.transactional,
        )
        part.closed = True
        part.rows = self.rows
        part._parent = self
        return part

    def _finished(self) -> None:
        self._done.set()
        parent = self._parent
        if parent is None:
            # After both halves: a call waits for the batches that it knows of.
            for delivery in self.rows:
                delivery.batch_done()
        elif parent._halves is not None:
            first, second = parent._halves
            if first._done.is_set() and second._done.is_set():
                parent.decided = True
                parent._finished()


def _again(
    record: Record,
) -> tuple[int, bytes | None, bytes | None, Sequence[Header], DeliveryCallback | None]:
    """Return a record of a batch that is being split, as the arguments of `append`."""
    return record.timestamp, record.key, record.value, record.headers, None


class Delivery:
    """The result of `send`: the record's outcome, once it is known."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch, self._index, self._timestamp = batch, index, timestamp

    def done(self) -> bool:
        """Return whether the record was acknowledged or given up."""
        return self._batch.leaf(self._index)[0].decided

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the record's metadata.

        Raises:
            KafkaError: it was not written; after RequestTimedOut it may have been.
            ProducerClosed: the producer was closed before.
            TimeoutError: the record has no outcome after `timeout_s`.
        """
        leaf, index = self._batch.leaf(self._index)
        if not leaf.decided:
            if not self._batch.wait(timeout_s):
                raise TimeoutError(
                    f"record for {self._batch.partition}: not acknowledged after {timeout_s:g} s"
                )
            leaf, index = self._batch.leaf(self._index)
        error = leaf.error_of(index)
        if error is not None:
            raise error
        return leaf.metadata(index, self._timestamp)
