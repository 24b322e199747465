"""The thread behind a producer: batches to leaders, responses to batches.

Owns the connections, the requests in flight, the sequence numbers and the
retries. These rules keep the order and prevent duplicates:

- A partition has at most MAX_IN_FLIGHT numbered batches in flight (a broker remembers five), or one
  without numbers, all on one connection. After a failure no more are sent until all have come back.
  Then the oldest is sent first.
- The first batch is in flight alone until it is acknowledged: a broker accepts any first sequence
  of a producer that it does not know, also that of a later batch.
- A batch is retried alone. It may have been written, and later batches acknowledged since. After
  more of them the broker would forget that it has the retried one.
- A numbered batch keeps its numbers in every attempt, so the broker recognises a duplicate.
- Numbers change only after the broker has refused those of the partition's oldest batch: neither it
  nor the later batches were written. They start again from 0 under the next epoch, which fences
  delayed requests of the old one.
- In a transaction numbers never change: after a batch is refused or given up, the transaction can
  only be aborted, and nothing more of it is sent. Abort gets a new epoch.
"""

from __future__ import annotations

import logging
import random
import select
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from plog.client.accumulator import FOREVER, Accumulator, PartitionQueue, ProducerClosed
from plog.client.connection import Connection
from plog.client.joins import Joins
from plog.client.metadata import Cluster, no_leader
from plog.client.produce_requests import (
    NUMBERS_REFUSED,
    TOO_LARGE,
    UNDECIDED,
    WRITTEN,
    Rules,
    fault_of,
    produce_request,
)
from plog.client.producer_batch import MAX_SEQUENCE, ProducerBatch
from plog.client.transactions import Transactions
from plog.errors import (
    ErrorCode,
    KafkaError,
    NetworkException,
    PlogError,
    RequestTimedOut,
    error_for,
)
from plog.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from plog.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from plog.types import NO_PRODUCER_ID, TopicPartition

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 5
"""Maximum batches of a partition, and requests of a connection, without a response."""
MAX_EPOCH = 2**15 - 1
MAX_BACKOFF_S = 1.0

_Request = dict[TopicPartition, tuple[PartitionQueue, ProducerBatch]]
"""A Produce request in flight."""


class Sender(threading.Thread):
    """Empties an accumulator until it is closed and empty, or aborted.

    Args:
        accumulator: the source of the batches.
        cluster: the sender owns it from now on, and closes it at its end.
        transactions: the transactions of all records; None without a transactional id.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        cluster: Cluster,
        rules: Rules,
        transactions: Transactions | None = None,
    ) -> None:
        super().__init__(name="plog-producer", daemon=True)
        self._accumulator = accumulator
        self._cluster = cluster
        self._rules = rules
        # Connections of our own, because responses to Produce take their time.
        self._connections: dict[int, Connection] = {}
        self._requests: dict[int, deque[_Request]] = {}
        self._producer_id, self._producer_epoch = NO_PRODUCER_ID, -1
        self._progress = None if transactions is None else transactions.progress
        self._joins = None if transactions is None else Joins(transactions, cluster)
        self._drained_all = threading.Event()
        self._is_over = False
        self._stale: set[str] = set()
        self._ask_after = 0.0
        self._asked_all = time.monotonic()

    def run(self) -> None:
        """Send until the accumulator is closed and empty, or aborted."""
        self._accumulator.sender_ident = threading.get_ident()
        reason = "the sender's thread failed"
        try:
            while not (self._accumulator.is_aborted or self._accumulator.is_finished):
                self._step()
            reason = "the producer was closed before the record was acknowledged"
        finally:
            # However the loop ended, no call may wait forever.
            if self._progress is not None:
                # First: the records that are given up here must not be committed.
                self._progress.refuse(ProducerClosed(reason))
            for batch in self._accumulator.take_all():
                batch.finish(-1, -1, ProducerClosed(reason))
            self._is_over = True
            self._drained_all.set()
            if self._joins is not None:
                self._joins.close()
            for connection in self._connections.values():
                connection.close()
            self._cluster.close()

    def interrupt(self) -> None:
        """End a wait for a broker. Thread-safe."""
        for connection in list(self._connections.values()):
            connection.interrupt()
        if self._joins is not None:
            self._joins.interrupt()
        self._cluster.interrupt()

    def drain(self, timeout_s: float) -> bool:
        """Wait until no record of an aborting transaction waits or is in flight.

        Returns False after `timeout_s`. Not for the sender's thread.
        """
        if threading.get_ident() == self.ident:
            raise RuntimeError("a delivery callback must not wait for the producer")
        self._drained_all.clear()
        if self._is_over:
            return True
        self._accumulator.wake()
        return self._drained_all.wait(max(timeout_s, 0))

    def _step(self) -> None:
        self._accumulator.begin_look()
        due = self._learn_topics()
        while True:
            chosen, expired, next_due = self._accumulator.take(time.monotonic(), self._may_send)
            for batch in expired:
                self._expire(batch)
            if chosen:
                self._send(chosen)
            elif self._joins is None or not self._joins.ask():
                break
        if self._joins is not None:
            due = min(due, self._joins.due)
            self._drop_lost_transaction()
        self._wait(min(due, next_due))

    def _drop_lost_transaction(self) -> None:
        """Drop the waiting batches of a transaction that is not committed, and wake `drain`.

        After `take`: a later wake-up makes the sender look again.
        """
        progress = self._progress
        if progress is None or not progress.is_dropping:
            return
        for batch in self._accumulator.take_waiting():
            self._give_up(batch, progress.drop_reason())
        # Also if nothing can be aborted, because the producer was fenced meanwhile.
        if not any(self._requests.values()):
            self._drained_all.set()

    # -- metadata

    def _learn_topics(self) -> float:
        """Ask about topics that `send` waits for or whose leaders moved; return the next time."""
        now = time.monotonic()
        max_age_s = self._rules.metadata_max_age_s
        if now - self._asked_all >= max_age_s:
            # Partitions may have been added.
            self._asked_all = now
            self._stale.update(self._accumulator.known_topics())
        wanted = self._accumulator.wanted_topics()
        if not wanted and not self._stale:
            return self._asked_all + max_age_s
        if now < self._ask_after:
            return self._ask_after
        self._ask_after = now + self._rules.backoff_s
        fault: KafkaError | None = None
        stale = self._stale - wanted
        try:
            if wanted:
                self._cluster.refresh(sorted(wanted), create=True)
            if stale:
                self._cluster.refresh(sorted(stale))
            self._stale.clear()
        except KafkaError as lost:
            fault = lost
            self._stale |= stale
        else:
            for topic in wanted | stale:
                info = self._cluster.topics.get(topic)
                count = 0 if info is None else len(info.partitions)
                self._accumulator.set_partitions(topic, count, self._cluster.errors.get(topic))
        if wanted:
            self._accumulator.metadata_asked(fault)
        if self._stale or self._accumulator.wanted_topics():
            return self._ask_after
        return self._asked_all + max_age_s

    def _may_send(self, queue: PartitionQueue) -> bool:
        """Return whether a partition may have one more batch in flight; called under the lock."""
        if self._joins is not None and not self._joins.may_send(queue):
            return False
        together = MAX_IN_FLIGHT if queue.is_known and not queue.batches[0].came_back else 1
        if queue.in_flight >= together:
            return False
        leader = self._cluster.known_leader(queue.partition)
        if leader is None:
            self._stale.add(queue.partition.topic)
            queue.last_fault = queue.last_fault or no_leader(queue.partition)
            queue.retry_at = time.monotonic() + self._rules.backoff_s
            return False
        if queue.in_flight and queue.leader_id != leader.leader_id:
            return False  # those in flight must come back first
        queue.leader_id = leader.leader_id
        return len(self._requests.get(leader.leader_id, ())) < MAX_IN_FLIGHT

    # -- requests

    def _send(self, chosen: Sequence[tuple[PartitionQueue, ProducerBatch]]) -> None:
        needs_id = self._rules.idempotent and self._progress is None
        if needs_id and self._producer_id == NO_PRODUCER_ID:
            try:
                self._new_producer_id()
            except PlogError as fault:
                for queue, batch in chosen:
                    self._come_back(queue, batch, fault, undecided=False)
                return
        by_leader: dict[int, list[tuple[PartitionQueue, ProducerBatch]]] = {}
        for queue, batch in chosen:
            by_leader.setdefault(queue.leader_id, []).append((queue, batch))
        for leader_id, batches in by_leader.items():
            for group in self._requests_of(batches):
                self._send_request(leader_id, group)

    def _requests_of(
        self, batches: Iterable[tuple[PartitionQueue, ProducerBatch]]
    ) -> list[list[tuple[PartitionQueue, ProducerBatch]]]:
        """Number and encode batches; group them so that no request is too large."""
        groups: list[list[tuple[PartitionQueue, ProducerBatch]]] = []
        room = 0
        for queue, batch in batches:
            if self._rules.idempotent and batch.base_sequence < 0:
                self._number(queue, batch)
            size = len(batch.encode())
            if not groups or size > room:
                groups.append([])
                room = self._rules.max_request_size
            groups[-1].append((queue, batch))
            room -= size
        return groups

    def _send_request(
        self, leader_id: int, batches: list[tuple[PartitionQueue, ProducerBatch]]
    ) -> None:
        for _, batch in batches:
            batch.attempts += 1
        request = produce_request(
            self._rules,
            None if self._progress is None else self._progress.transactional_id,
            ((queue.partition, batch.encode()) for queue, batch in batches),
        )
        try:
            connection = self._connection(leader_id)
        except KafkaError as fault:
            for queue, batch in batches:
                self._come_back(queue, batch, fault, undecided=False)
            return
        if self._rules.acks != 0:
            in_flight = {queue.partition: (queue, batch) for queue, batch in batches}
            self._requests.setdefault(leader_id, deque()).append(in_flight)
        try:
            connection.send(request, None if self._rules.acks == 0 else ProduceResponse)
        except KafkaError as fault:
            if self._rules.acks == 0:
                for queue, batch in batches:
                    self._come_back(queue, batch, fault, undecided=True)
            self._lose(leader_id, fault)
            return
        if self._rules.acks == 0:
            for queue, batch in batches:
                self._succeed(queue, batch, -1, -1)

    def _connection(self, leader_id: int) -> Connection:
        connection = self._connections.get(leader_id)
        if connection is not None and connection.is_usable:
            return connection
        if connection is not None:
            self._lose(leader_id, NetworkException(f"{connection.peer} closed the connection"))
        connection = self._connections[leader_id] = self._cluster.open(leader_id)
        return connection

    # -- responses

    def _wait(self, due: float) -> None:
        """Sleep until a response arrives, a time is due, or the accumulator wakes the sender."""
        waited = select.poll()
        waited.register(self._accumulator.wake_socket, select.POLLIN)
        nodes: dict[int, int] = {}
        for node_id, connection in self._connections.items():
            if connection.deadline is not None:
                due = min(due, connection.deadline)
                nodes[connection.fileno()] = node_id
                waited.register(connection, select.POLLIN)
        if self._accumulator.sleep_until(due):
            # Rounded up: to wake a millisecond early would be in vain.
            left_ms = None if due == FOREVER else max(due - time.monotonic(), 0) * 1000 + 1
            ready = waited.poll(left_ms)
            self._accumulator.awake()
        else:
            ready = waited.poll(0)
        for descriptor, _ in ready:
            node_id = nodes.get(descriptor, -1)
            if self._requests.get(node_id):
                self._receive(node_id)
        now = time.monotonic()
        for node_id, connection in list(self._connections.items()):
            if connection.deadline is not None and connection.deadline <= now:
                self._lose(node_id, connection.timed_out())

    def _receive(self, node_id: int) -> None:
        """Read one response."""
        connection = self._connections[node_id]
        try:
            answer = connection.receive(ProduceResponse)
        except KafkaError as fault:
            self._lose(node_id, fault)
            return
        batches = self._requests[node_id].popleft()
        for topic in answer.responses:
            for part in topic.partition_responses:
                asked = batches.pop(TopicPartition(topic.name, part.index), None)
                if asked is not None:
                    self._answered(*asked, part)
        for queue, batch in batches.values():
            lack = NetworkException(
                f"the Produce response of {connection.peer} lacks {queue.partition}"
            )
            self._come_back(queue, batch, lack, undecided=True)

    def _answered(
        self, queue: PartitionQueue, batch: ProducerBatch, part: PartitionProduceResponse
    ) -> None:
        if part.error_code in WRITTEN:
            self._succeed(queue, batch, part.base_offset, part.log_append_time_ms)
            return
        fault = fault_of(queue.partition, part)
        self._come_back(queue, batch, fault, undecided=part.error_code in UNDECIDED)

    def _lose(self, node_id: int, fault: KafkaError) -> None:
        """Drop a connection; its batches in flight may have been written."""
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()
        for request in self._requests.pop(node_id, ()):
            for queue, batch in request.values():
                self._come_back(queue, batch, fault, undecided=True)

    # -- outcomes

    def _succeed(
        self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, append_time: int
    ) -> None:
        self._accumulator.came_back(queue, batch)
        queue.failures, queue.last_fault, queue.has_gap = 0, None, False
        queue.is_known = batch.base_sequence >= 0
        if not batch.decided:
            self._accumulator.remove(queue, batch)
            batch.finish(base_offset, append_time, None)
        self._drained(queue)

    def _come_back(
        self, queue: PartitionQueue, batch: ProducerBatch, fault: PlogError, *, undecided: bool
    ) -> None:
        """Handle a batch that was not acknowledged: retry it, split it, or fail it."""
        self._accumulator.came_back(queue, batch)
        if batch.decided:
            pass  # given up while it was in flight
        elif not isinstance(fault, KafkaError):
            self._fail(queue, batch, fault)
        elif fault.code in NUMBERS_REFUSED:
            queue.draining = True
            # An older batch, which comes back too, must be sent first.
            if self._accumulator.is_oldest(queue, batch):
                if self._progress is not None:
                    self._fail(queue, batch, fault)
                else:
                    self._retry(queue, fault)
                    queue.refusal = fault
        elif fault.code in TOO_LARGE and len(batch) > 1 and not batch.maybe_written:
            queue.draining = True
            self._accumulator.replace(queue, batch, batch.split())
        elif fault.retriable:
            queue.draining = True
            batch.maybe_written = batch.maybe_written or undecided
            self._stale.add(queue.partition.topic)
            self._retry(queue, fault)
        else:
            self._fail(queue, batch, fault)
        self._drained(queue)

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, fault: PlogError) -> None:
        """Give a batch up. The broker refuses the next ones for the gap; they get new numbers."""
        queue.draining = True
        queue.has_gap = queue.has_gap or batch.base_sequence >= 0
        self._accumulator.remove(queue, batch)
        self._give_up(batch, fault)

    def _give_up(self, batch: ProducerBatch, fault: PlogError) -> None:
        """Set the outcome of a batch that will not be acknowledged, and of its transaction."""
        if self._progress is not None:
            # It is not known whether its numbers were used or leave a gap.
            self._progress.fail(fault, is_unsure=batch.base_sequence >= 0)
        batch.finish(-1, -1, fault)

    def _retry(self, queue: PartitionQueue, fault: KafkaError) -> None:
        """Set the time of the partition's next attempt: a longer wait each time, up to a second."""
        backoff_s = min(self._rules.backoff_s * 2**queue.failures, MAX_BACKOFF_S)
        # Random, so that many producers do not retry at the same time.
        queue.retry_at = time.monotonic() + backoff_s * random.uniform(0.8, 1.2)
        queue.failures = min(queue.failures + 1, 10)
        # Batches that are given up are not tried again; `close` has cut their connections.
        is_given_up = self._accumulator.is_aborted or (
            self._progress is not None and self._progress.is_dropping
        )
        is_expected = queue.has_gap and fault.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if str(queue.last_fault) != str(fault) and not is_given_up and not is_expected:
            log.warning("%s; trying again", fault)
        queue.last_fault = fault

    def _drained(self, queue: PartitionQueue) -> None:
        """Continue once no batch of a partition is in flight, with new numbers if necessary."""
        if queue.in_flight:
            return
        if queue.draining:
            queue.draining = queue.is_known = False
        refusal, queue.refusal = queue.refusal, None
        if refusal is None:
            return
        queue.has_gap = False
        if refusal.code == ErrorCode.INVALID_PRODUCER_EPOCH or queue.producer_epoch >= MAX_EPOCH:
            self._producer_id = NO_PRODUCER_ID
            queue.producer_id = NO_PRODUCER_ID
        else:
            queue.producer_epoch += 1
            queue.next_sequence = 0
        for batch in self._accumulator.queued(queue):
            if batch.base_sequence >= 0:
                batch.unnumber()
                batch.maybe_written = False

    def _expire(self, batch: ProducerBatch) -> None:
        seconds = self._rules.delivery_timeout_s
        sent = "sent and never acknowledged" if batch.attempts else "never sent"
        fault = self._accumulator.last_fault(batch.partition)
        leader = self._cluster.known_leader(batch.partition)
        if fault is not None:
            why = f"last: {fault}"
        elif leader is not None:
            why = f"leader: {self._cluster.address(leader.leader_id)}"
        else:
            why = f"bootstrap servers: {self._cluster.bootstrap}"
        text = f"record for {batch.partition}: {sent} in {seconds:g} s; {why}"
        self._give_up(batch, RequestTimedOut(text))

    # -- numbers

    def _number(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if self._progress is not None:
            producer = self._progress.producer
            if producer != (queue.producer_id, queue.producer_epoch):
                queue.producer_id, queue.producer_epoch = producer
                queue.next_sequence = 0
        elif queue.producer_id == NO_PRODUCER_ID:
            queue.producer_id, queue.producer_epoch = self._producer_id, self._producer_epoch
            queue.next_sequence = 0
        batch.number(queue.producer_id, queue.producer_epoch, queue.next_sequence)
        queue.next_sequence = (queue.next_sequence + len(batch)) & MAX_SEQUENCE

    def _new_producer_id(self) -> None:
        answer = self._cluster.ask_any(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0),
            InitProducerIdResponse,
        )
        if answer.error_code != ErrorCode.NONE:
            raise error_for(answer.error_code, f"InitProducerId: {error_for(answer.error_code)}")
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
