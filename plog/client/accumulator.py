"""A queue of batches for each partition, which application threads fill and the sender empties.

Owns the lock, the bound on memory, when a batch is full or has waited long
enough, and the partition counts that records are spread over. Knows neither
connections nor responses.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plog._native.arrow_buffers import ColumnBuffer
from plog._native.rows import RowColumns, group
from plog.client.partitioner import Partitioner, StickyPartitioner
from plog.client.producer_batch import Delivery, DeliveryCallback, Header, ProducerBatch
from plog.client.rows_delivery import RowsDelivery, RowsFailures
from plog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    KafkaError,
    MessageTooLarge,
    NetworkException,
    PlogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from plog.types import NO_PRODUCER_ID, TopicPartition, counted, is_legal_topic_name

RECORD_OVERHEAD = 61 + 5 + 1 + 10 + 5 + 5 + 5 + 5
"""Maximum bytes of a record alone in its batch, without its key, value and headers."""
HEADER_OVERHEAD = 10
FOREVER = float("inf")


class ProducerClosed(PlogError):
    """`send` after `close`, or a record that `close` gave up."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of batches and memory; times in seconds."""

    batch_size: int
    linger_s: float
    codec: int
    max_request_size: int
    buffer_memory: int
    max_block_s: float
    delivery_timeout_s: float


def _let_in() -> None:
    """Accept every record: the gate of a producer without transactions."""


class PartitionQueue:
    """The batches of one partition, oldest first.

    The last may be open. Only the sender uses the attributes below `open`.
    """

    __slots__ = (
        "batches",
        "draining",
        "failures",
        "has_gap",
        "in_flight",
        "is_known",
        "last_fault",
        "leader_id",
        "next_sequence",
        "open",
        "partition",
        "producer_epoch",
        "producer_id",
        "refusal",
        "retry_at",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.open: ProducerBatch | None = None
        self.in_flight = 0  # batches without an answer, given up or not
        self.is_known = False  # the last answer was an acknowledgement of numbered records
        self.draining = False  # one came back: none goes out before all have
        self.refusal: KafkaError | None = None  # its numbers were refused: number again
        self.has_gap = False  # a batch was given up, so the broker refuses the next numbers
        self.leader_id = -1  # where those in flight are
        self.retry_at = 0.0
        self.failures = 0  # in a row
        self.last_fault: KafkaError | None = None
        self.producer_id, self.producer_epoch, self.next_sequence = NO_PRODUCER_ID, -1, 0

    def next_batch(self) -> ProducerBatch | None:
        """Return the oldest batch that is not in flight."""
        for batch in self.batches:
            if not batch.in_flight:
                return batch
        return None


class _Topic:
    """State of a topic: its number of partitions (0: not known), or why it is refused."""

    __slots__ = ("count", "error", "queues", "responses")

    def __init__(self) -> None:
        self.count = 0
        self.responses = 0  # of Metadata, about it
        self.error: KafkaError | None = None
        self.queues: dict[int, PartitionQueue] = {}


class Accumulator:
    """The waiting records of one producer. Thread-safe.

    Args:
        bounds: limits.
        partitioner: (topic, key, number of partitions) -> partition; called with the lock held.
        servers: the addresses to name when no broker answers.
        transactional: batches belong to a transaction.
        gate: called with the lock held before each record is added; raises to refuse it. A caller
            that makes it refuse and then takes the lock (`wake`, `flush`) has seen the last record.

    Attributes:
        rows_failures: failed calls of `append_rows`.
    """

    def __init__(
        self,
        bounds: Bounds,
        partitioner: Partitioner,
        *,
        servers: str = "",
        transactional: bool = False,
        gate: Callable[[], None] = _let_in,
    ) -> None:
        self._bounds = bounds
        self._batch_size = min(bounds.batch_size, bounds.max_request_size)
        self._largest = min(bounds.max_request_size, bounds.buffer_memory)
        self._partitioner = partitioner
        closed: Callable[[str, int], None] | None = getattr(partitioner, "batch_closed", None)
        self._batch_closed = closed
        self._servers = servers
        self._transactional = transactional
        self._gate = gate
        self.rows_failures = RowsFailures()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._topics: dict[str, _Topic] = {}
        # Queues with batches.
        self._busy: dict[TopicPartition, PartitionQueue] = {}
        self._wanted: set[str] = set()
        self._metadata_rounds = 0
        self._metadata_fault: KafkaError | None = None
        self._buffered = 0
        self._waiting_for_room = 0
        self._flushing = 0
        self._is_closed = False
        self._is_aborted = False
        # The sender sleeps in poll, on its connections and on this.
        self._bell, self.wake_socket = socket.socketpair()
        self._bell.setblocking(False)
        self.wake_socket.setblocking(False)
        self._sleeps_until = -FOREVER  # -inf while the sender is awake
        self._must_look = False  # something changed since its last `begin_look`
        self.sender_ident: int | None = None

    # -- for the threads that send

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header],
        partition: int | None,
        timestamp: int,
        callback: DeliveryCallback | None,
    ) -> Delivery:
        """Add a record to its partition's open batch (see `Producer.send`)."""
        size = RECORD_OVERHEAD
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        for name, data in headers:
            # A character of a name is 4 bytes of UTF-8 at most.
            size += HEADER_OVERHEAD + len(name) * 4 + (0 if data is None else len(data))
        if size > self._largest:
            raise MessageTooLarge(
                f"record of {size} bytes for {topic!r}; max_request_size is"
                f" {self._bounds.max_request_size}, buffer_memory {self._bounds.buffer_memory}"
            )
        with self._lock:
            known = self._topics.get(topic)
            if (
                known is None
                or known.count == 0
                or self._is_closed
                or self._buffered + size > self._bounds.buffer_memory
            ):
                known = self._prepare(topic, size)
            if partition is None:
                partition = self._partitioner(topic, key, known.count)
                if not 0 <= partition < known.count:
                    raise InvalidPartitions(
                        f"the partitioner chose {partition} of {counted(known.count, 'partition')}"
                    )
            elif not 0 <= partition < known.count:
                known = self._wait_for_partition(topic, partition)
            self._gate()
            queue = known.queues.get(partition)
            if queue is None:
                queue = known.queues[partition] = PartitionQueue(TopicPartition(topic, partition))
            batch = queue.open
            if batch is not None and batch.size + size <= self._batch_size:
                before = batch.size
                index = batch.append(timestamp, key, value, headers, callback)
            else:
                before = 0
                batch = self._new_batch(queue)
                index = batch.append(timestamp, key, value, headers, callback)
                self._open(queue, batch)
            self._buffered += batch.size - before
            if batch.size >= self._batch_size:
                self._close(queue, batch)
        return Delivery(batch, index, timestamp)

    def append_rows(
        self, topic: str, rows: RowColumns, timestamp: int, delivery: RowsDelivery
    ) -> None:
        """Add rows to the open batches of their partitions (see `Producer.send_rows`).

        One batch of each partition in turn: a request then has many, and no partition waits for all
        rows of another.
        """
        row, size = rows.largest
        # The size of the largest row, so that any row fits.
        size += RECORD_OVERHEAD
        if size > self._largest:
            raise MessageTooLarge(
                f"row {row} of {size} bytes for {topic!r}; max_request_size is"
                f" {self._bounds.max_request_size}, buffer_memory {self._bounds.buffer_memory}"
            )
        if rows.placed < len(rows) and not isinstance(self._partitioner, StickyPartitioner):
            raise InvalidConfig("rows without a partition: send_rows does not call a partitioner")
        if len(rows) == 0:
            return
        with self._lock:
            known = self._prepare(topic, size)
            if rows.largest_partition >= known.count:
                known = self._wait_for_partition(topic, rows.largest_partition)
            count = known.count
        # After the partitions: rows that go to the batch that is being filled.
        order, starts = group(rows.partitions(count, count), count + 1)
        waiting = deque(
            (partition, start, end)
            for partition, (start, end) in enumerate(itertools.pairwise(starts))
            if start < end
        )
        while waiting:
            partition, start, end = waiting.popleft()
            chosen = partition if partition < count else None
            start = self._append_some(topic, rows, order, start, end, chosen, timestamp, delivery)
            if start < end:
                waiting.append((partition, start, end))

    def _append_some(
        self,
        topic: str,
        rows: RowColumns,
        order: ColumnBuffer,
        start: int,
        end: int,
        partition: int | None,
        timestamp: int,
        delivery: RowsDelivery,
    ) -> int:
        """Add rows to one batch; return the index of the first row that does not fit."""
        size = rows.largest[1] + RECORD_OVERHEAD
        with self._lock:
            known = self._topics.get(topic)
            if (
                known is None
                or known.count == 0
                or self._is_closed
                or self._buffered + size > self._bounds.buffer_memory
            ):
                known = self._prepare(topic, size)
            if partition is None:
                partition = self._partitioner(topic, None, known.count)
            elif partition >= known.count:
                known = self._wait_for_partition(topic, partition)
            self._gate()
            queue = known.queues.get(partition)
            if queue is None:
                queue = known.queues[partition] = PartitionQueue(TopicPartition(topic, partition))
            room = self._bounds.buffer_memory - self._buffered
            taken, batch = start, queue.open
            if batch is not None:
                before = batch.size
                limit = min(self._batch_size, before + room)
                taken = batch.append_rows(rows, order, start, end, timestamp, limit, delivery)
                self._buffered += batch.size - before
            if batch is None or taken == start:
                batch = self._new_batch(queue)
                limit = min(self._batch_size, room)
                taken = batch.append_rows(rows, order, start, end, timestamp, limit, delivery)
                self._open(queue, batch)
                self._buffered += batch.size
            is_full = taken < end and limit == self._batch_size
            if is_full or batch.size >= self._batch_size:
                self._close(queue, batch)
        return taken

    def flush(self, timeout_s: float | None) -> bool:
        """Send waiting batches at once; return whether all have their outcome in time."""
        if threading.get_ident() == self.sender_ident:
            raise RuntimeError("a delivery callback must not wait for the producer")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._flushing += 1
            waiting = [batch for queue in self._busy.values() for batch in queue.batches]
            self._wake()
        try:
            for batch in waiting:
                left_s = None if deadline is None else max(deadline - time.monotonic(), 0)
                if not batch.wait(left_s):
                    return False
            return True
        finally:
            with self._lock:
                self._flushing -= 1

    def close(self, *, abort: bool = False) -> None:
        """Accept no more records; with `abort` make the sender give up the waiting ones."""
        with self._lock:
            self._is_closed = True
            self._is_aborted = self._is_aborted or abort
            self._changed.notify_all()
            self._wake()

    def wake(self) -> None:
        """Make the sender look now, because its conditions have changed."""
        with self._lock:
            self._wake()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    @property
    def buffered_bytes(self) -> int:
        """Uncompressed bytes of the records without an outcome."""
        return self._buffered

    def unacknowledged(self) -> str:
        """Describe the records without an outcome, for an error message."""
        with self._lock:
            return self._unacknowledged()

    # -- for the sender

    @property
    def is_aborted(self) -> bool:
        """Whether all records are to be given up."""
        return self._is_aborted

    @property
    def is_finished(self) -> bool:
        """Whether the accumulator is closed and empty."""
        with self._lock:
            return self._is_closed and not self._busy

    def wanted_topics(self) -> set[str]:
        """Return the topics that a call of `send` waits for."""
        with self._lock:
            return set(self._wanted)

    def known_topics(self) -> list[str]:
        """Return the topics whose number of partitions is known."""
        with self._lock:
            return [name for name, topic in self._topics.items() if topic.count]

    def set_partitions(self, topic: str, count: int, error: KafkaError | None = None) -> None:
        """Note a topic's number of partitions; 0 and perhaps an error if it cannot be written."""
        with self._lock:
            known = self._topics.setdefault(topic, _Topic())
            known.count, known.error = count, error
            known.responses += 1
            if count or error is not None:
                self._wanted.discard(topic)

    def metadata_asked(self, fault: KafkaError | None) -> None:
        """Note the end of a Metadata request for the wanted topics, and its error."""
        with self._lock:
            self._metadata_rounds += 1
            self._metadata_fault = fault
            self._changed.notify_all()

    def take(
        self, now: float, may_send: Callable[[PartitionQueue], bool]
    ) -> tuple[list[tuple[PartitionQueue, ProducerBatch]], list[ProducerBatch], float]:
        """Return the batches to send now, the expired batches, and the next time to look.

        The batches to send are marked as in flight, at most one of a partition. The sender returns
        each by `came_back` or `remove`. Expired batches are removed from their queues.
        """
        linger_s = self._bounds.linger_s
        chosen: list[tuple[PartitionQueue, ProducerBatch]] = []
        expired: list[ProducerBatch] = []
        due = FOREVER
        with self._lock:
            if self._is_aborted:
                return chosen, expired, now
            at_once = self._flushing > 0 or self._is_closed or self._waiting_for_room > 0
            for queue in list(self._busy.values()):
                while queue.batches and queue.batches[0].deadline <= now:
                    expired.append(queue.batches[0])
                    self._remove(queue, queue.batches[0])
                batch = queue.next_batch()
                if queue.batches:
                    due = min(due, queue.batches[0].deadline)
                if batch is None or queue.draining:
                    continue
                ready_at = 0.0 if batch.closed or at_once else batch.created + linger_s
                ready_at = max(ready_at, queue.retry_at)
                if ready_at > now:
                    due = min(due, ready_at)
                elif may_send(queue):
                    self._close(queue, batch)
                    batch.in_flight = True
                    queue.in_flight += 1
                    chosen.append((queue, batch))
                elif queue.retry_at > now:
                    due = min(due, queue.retry_at)
        return chosen, expired, due

    def came_back(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Note that a batch is no longer in flight; it keeps its place in its queue."""
        with self._lock:
            batch.in_flight = False
            batch.came_back = True
            queue.in_flight -= 1

    def remove(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Remove a batch with a known outcome from its queue, and free its memory."""
        with self._lock:
            self._remove(queue, batch)

    def replace(
        self, queue: PartitionQueue, batch: ProducerBatch, parts: Sequence[ProducerBatch]
    ) -> None:
        """Replace a batch with its parts after a split."""
        with self._lock:
            at = queue.batches.index(batch)
            queue.batches.remove(batch)
            for part in reversed(parts):
                queue.batches.insert(at, part)
            self._buffered += sum(part.size for part in parts) - batch.size

    def is_oldest(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Return whether the batch is the oldest of its partition without an outcome."""
        with self._lock:
            return bool(queue.batches) and queue.batches[0] is batch

    def last_fault(self, partition: TopicPartition) -> KafkaError | None:
        """Return why the last attempt at a partition failed."""
        with self._lock:
            topic = self._topics.get(partition.topic)
            queue = None if topic is None else topic.queues.get(partition.partition)
            return None if queue is None else queue.last_fault

    def queued(self, queue: PartitionQueue) -> list[ProducerBatch]:
        """Return the batches of a partition, oldest first."""
        with self._lock:
            return list(queue.batches)

    def take_waiting(self) -> list[ProducerBatch]:
        """Remove every batch that is not in flight: its transaction is not committed."""
        with self._lock:
            found = []
            for queue in list(self._busy.values()):
                for batch in [one for one in queue.batches if not one.in_flight]:
                    self._remove(queue, batch)
                    found.append(batch)
        return found

    def take_all(self) -> list[ProducerBatch]:
        """Remove every batch: the sender ends."""
        with self._lock:
            self._is_closed = self._is_aborted = True
            left = [batch for queue in self._busy.values() for batch in queue.batches]
            for queue in list(self._busy.values()):
                while queue.batches:
                    self._remove(queue, queue.batches[0])
            self._changed.notify_all()
        return left

    def begin_look(self) -> None:
        """Begin to look for work: each later change wakes the sender."""
        with self._lock:
            self._must_look = False

    def sleep_until(self, due: float) -> bool:
        """Note until when the sender sleeps; return False if it must look again first."""
        with self._lock:
            # `begin_look` has cleared the mark of a `close` that came just before it.
            is_over = self._is_aborted or (self._is_closed and not self._busy)
            if self._must_look or is_over:
                return False
            self._sleeps_until = due
            return True

    def awake(self) -> None:
        """Note that the sender is awake."""
        with self._lock:
            self._sleeps_until = -FOREVER
        with contextlib.suppress(BlockingIOError):
            while self.wake_socket.recv(64):
                pass

    def release(self) -> None:
        """Close the sockets, when no thread uses the accumulator any more."""
        with self._lock:
            self._sleeps_until = -FOREVER
            self._bell.close()
            self.wake_socket.close()

    # -- with the lock held

    def _prepare(self, topic: str, size: int) -> _Topic:
        """Wait until the topic is known and the record fits into buffer_memory."""
        if not is_legal_topic_name(topic):
            raise InvalidTopic(
                f"invalid topic name {topic!r}: use 1-249 characters from a-z A-Z 0-9 . _ -"
            )
        deadline = time.monotonic() + self._bounds.max_block_s
        while True:
            known = self._wait_for_topic(topic, deadline)
            if self._buffered + size <= self._bounds.buffer_memory or self._buffered == 0:
                return known
            self._waiting_for_room += 1
            self._wake()
            try:
                has_room = self._changed.wait_for(
                    lambda: self._is_closed or self._buffered + size <= self._bounds.buffer_memory,
                    self._left_to_wait(deadline),
                )
            finally:
                self._waiting_for_room -= 1
            if not has_room:
                raise RequestTimedOut(
                    f"buffer_memory={self._bounds.buffer_memory} is still full after max_block_ms="
                    f"{self._bounds.max_block_s * 1000:g}: {self._unacknowledged()}"
                )

    def _wait_for_topic(self, topic: str, deadline: float) -> _Topic:
        """Wait until the topic's number of partitions is known."""
        asked = self._metadata_rounds
        responses = self._topics.setdefault(topic, _Topic()).responses
        while True:
            if self._is_closed:
                raise ProducerClosed("the producer is closed")
            known = self._topics.setdefault(topic, _Topic())
            if known.count:
                return known
            if known.error is not None and self._metadata_rounds > asked:
                raise known.error
            self._wanted.add(topic)
            self._wake()
            if not self._changed.wait(self._left_to_wait(deadline)):
                self._wanted.discard(topic)
                raise self._metadata_fault or self._unknown(topic, known.responses > responses)

    def _unknown(self, topic: str, is_answered: bool) -> KafkaError:
        """Return the error for a topic whose number of partitions did not become known in time."""
        if is_answered:
            return UnknownTopicOrPartition(f"topic {topic!r} does not exist")
        return NetworkException(
            f"topic {topic!r}: no answer to Metadata from {self._servers}"
            f" within max_block_ms={self._bounds.max_block_s * 1000:g}"
        )

    def _unacknowledged(self) -> str:
        """Describe the records without an outcome, and why the last attempt to send some failed."""
        faults = [queue.last_fault for queue in self._busy.values() if queue.last_fault is not None]
        why = f"last: {faults[0]}" if faults else f"sent to {self._servers}"
        return f"{self._buffered} bytes are not acknowledged; {why}"

    def _wait_for_partition(self, topic: str, partition: int) -> _Topic:
        """Ask the cluster again, because partitions may have been added."""
        if partition < 0:
            raise InvalidPartitions(f"invalid partition {partition} of topic {topic!r}")
        asked = self._metadata_rounds
        deadline = time.monotonic() + self._bounds.max_block_s
        self._wanted.add(topic)
        self._wake()
        self._changed.wait_for(
            lambda: self._metadata_rounds > asked or self._is_closed, self._left_to_wait(deadline)
        )
        known = self._wait_for_topic(topic, deadline)
        if partition >= known.count:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has no partition {partition}, only"
                f" {counted(known.count, 'partition')}"
            )
        return known

    def _left_to_wait(self, deadline: float) -> float:
        if threading.get_ident() == self.sender_ident:
            raise RequestTimedOut("a delivery callback must not wait for the producer")
        return max(deadline - time.monotonic(), 0)

    def _new_batch(self, queue: PartitionQueue) -> ProducerBatch:
        """Return a new batch that is not in its queue yet."""
        now = time.monotonic()
        return ProducerBatch(
            queue.partition,
            self._bounds.codec,
            now,
            now + self._bounds.delivery_timeout_s,
            transactional=self._transactional,
        )

    def _open(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Make a batch with a record the open one of its queue."""
        if queue.open is not None:
            self._close(queue, queue.open)
        queue.open = batch
        queue.batches.append(batch)
        self._busy[queue.partition] = queue
        self._wake_by(batch.created + self._bounds.linger_s)

    def _close(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch.closed:
            return
        batch.closed = True
        queue.open = None
        if self._batch_closed is not None:
            self._batch_closed(*queue.partition)
        self._wake()

    def _remove(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self._close(queue, batch)
        queue.batches.remove(batch)
        if not queue.batches:
            self._busy.pop(queue.partition, None)
        self._buffered -= batch.size
        if self._waiting_for_room:
            self._changed.notify_all()

    def _wake(self) -> None:
        """Make the sender look now."""
        self._wake_by(-FOREVER)

    def _wake_by(self, when: float) -> None:
        """Make the sender look at `when` at the latest."""
        if self._sleeps_until == -FOREVER:
            self._must_look = True
        elif when < self._sleeps_until:
            self._must_look = True
            self._sleeps_until = -FOREVER
            self._bell.send(b"\0")
