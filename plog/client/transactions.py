"""The requests of a transactional producer to coordinators, and the handling of their responses.

Owns the requests of transactions of version 1 (KIP-98), and how long each is tried. With KIP-360 a
producer continues after an abort with an unknown outcome, with KIP-447 it commits offsets as a
member of a group. `transaction_states` decides which call is allowed when. The sender owns the
records, and adds partitions by `join` on its own thread and connection.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from plog.client.accumulator import ProducerClosed
from plog.client.connection import Connection
from plog.client.coordinators import Coordinator, KeyType
from plog.client.group_membership import EXPELLED, CommitFailed, GroupMetadata
from plog.client.metadata import Cluster
from plog.client.offsets import Offsets, with_metadata
from plog.client.transaction_states import (
    ASKED,
    Call,
    PreparedTransaction,
    ProducerIdentity,
    Progress,
    State,
    TransactionAborted,
)
from plog.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    PlogError,
    RequestTimedOut,
    error_for,
)
from plog.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from plog.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from plog.types import TopicPartition

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.02
"""Short: most waits are for the markers of the previous transaction, which come soon."""
MAX_BACKOFF_S = 1.0
NOT_OURS_ANY_MORE = EXPELLED | {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.REBALANCE_IN_PROGRESS}
"""Refusals of offsets after which the group continues without the member."""

Drain = Callable[[float], bool]
"""Waits at most so many seconds until no record waits or is in flight; returns whether it is so."""


class Transactions:
    """The transactions of one transactional id, one after the other.

    Calls of several threads wait for each other; `join` and `interrupt` do not.

    Args:
        cluster: finds the coordinators; owned from now on, closed by `close`.
        timeout_ms: after this time the coordinator aborts a transaction.
        block_s: how long a call may wait for coordinators.
    """

    def __init__(
        self, cluster: Cluster, transactional_id: str, timeout_ms: int, *, block_s: float
    ) -> None:
        self.transactional_id = transactional_id
        self.progress = Progress(transactional_id)
        self._timeout_ms = timeout_ms
        self._block_s = block_s
        self._cluster = cluster
        self._coordinator = self.coordinator_by(cluster)
        self._groups: dict[str, Coordinator] = {}
        # One connection per broker for all groups: after a transaction has ended by one of two
        # connections, brokers take requests by the older one for delayed ones.
        self._to_groups: dict[int, Connection] = {}
        self._calls = threading.Lock()
        self._closing = threading.Event()

    def is_older_than(self, connection: Coordinator) -> bool:
        """Return whether the connection that ends transactions is older than another one."""
        return connection.is_newer_than(self._coordinator)

    def coordinator_by(self, cluster: Cluster) -> Coordinator:
        """Return the transactional id's coordinator, which a cluster finds."""
        return Coordinator(cluster, KeyType.TRANSACTION, self.transactional_id)

    # -- calls of the application ------------------------------------------------------------

    def init(self) -> None:
        """Become the producer: fence the previous one, and abort its open transaction."""
        with self._calls:
            self.progress.ask(Call.INIT)
            self._take_identity(self._deadline())

    def begin(self) -> None:
        """Begin a transaction; the first request follows when a partition or group joins."""
        with self._calls:
            self.progress.ask(Call.BEGIN)

    def cut(self, stop: BaseException) -> None:
        """Note that a call has sent only some of its rows, which must not be committed."""
        fault = stop if isinstance(stop, PlogError) else _interrupted(stop)
        self.progress.fail(fault, is_unsure=False)

    def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit a group's offsets with the transaction."""
        with self._calls:
            self.progress.ask(Call.SEND_OFFSETS)
            if not offsets:
                return
            deadline = self._deadline()
            try:
                if group.group_id not in self.progress.groups:
                    self._add_group(group.group_id, deadline)
                self._commit_offsets(offsets, group, deadline)
            except PlogError as fault:
                # A request without a response may still arrive.
                error = self.progress.fail(fault, is_unsure=True)
                raise error from error.__cause__
            except BaseException as stop:
                self.progress.fail(_interrupted(stop), is_unsure=True)
                raise

    def commit(self, flush: Callable[[], None]) -> None:
        """Commit, after `flush` has given every record its outcome; raise the first failure."""
        with self._calls:
            self._flushed(Call.COMMIT, State.COMMITTING, flush)
            if self.progress.may_be_open:
                self._end(commit=True, deadline=self._deadline())
            self.progress.ended()

    def prepare(self, flush: Callable[[], None]) -> PreparedTransaction | None:
        """Leave the end to another client, after `flush`; None if nothing has joined."""
        with self._calls:
            self._flushed(Call.PREPARE, State.PREPARED, flush)
            if not self.progress.is_open:
                return None
            return PreparedTransaction(self.transactional_id, *self.progress.producer)

    def _flushed(self, call: Call, state: State, flush: Callable[[], None]) -> None:
        """Change the state for a call, and wait for the records; raise the first failure."""
        progress = self.progress
        progress.ask(call)
        try:
            flush()
        except BaseException as stop:
            # The coordinator has not been asked: this may still be aborted.
            progress.fail(_interrupted(stop), is_unsure=False)
            raise
        if progress.state is not state:
            assert progress.error is not None
            raise progress.error

    def abort(self, drain: Drain) -> None:
        """Abort, once `drain` has dropped waiting records and waited for those in flight."""
        with self._calls:
            self._abort(drain, self._block_s)

    def abort_at_close(self, drain: Drain, timeout_s: float | None) -> None:
        """Abort an open transaction; only log a failure. A prepared transaction stays open."""
        most_s = self._block_s if timeout_s is None else min(timeout_s, self._block_s)
        if not self._calls.acquire(timeout=most_s):
            return
        try:
            state = self.progress.state
            if state is not State.PREPARED and (state, Call.ABORT) in ASKED:
                log.warning("%s: closed in an open transaction; aborting it", self)
                self._abort(drain, most_s)
        except PlogError as fault:
            log.warning("%s: the coordinator will abort its transaction: %s", self, fault)
        finally:
            self._calls.release()

    def _abort(self, drain: Drain, most_s: float) -> None:
        progress = self.progress
        progress.ask(Call.ABORT)
        deadline = time.monotonic() + most_s
        if not drain(most_s):
            raise RequestTimedOut(f"{self}: records are still in flight; abort again")
        if progress.state is not State.ABORTING:
            assert progress.error is not None
            raise progress.error
        if progress.may_be_open:
            self._end(commit=False, deadline=deadline)
        if progress.is_unsure:
            # The next epoch begins sequences at 0, and keeps delayed requests out (KIP-360).
            try:
                self._take_identity(deadline)
            except KafkaError as fault:
                if fault.retriable:
                    raise
                error = progress.refuse(fault)
                raise error from error.__cause__
        progress.ended()

    # -- for the sender's thread -------------------------------------------------------------

    def join(self, coordinator: Coordinator, partitions: Collection[TopicPartition]) -> None:
        """Add partitions to the transaction by one request.

        Args:
            coordinator: the sender's own.

        Raises:
            KafkaError: no partition is known to be added.
        """
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(partitions):
            topics.setdefault(topic, []).append(index)
        progress = self.progress
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=progress.producer.id,
            v3_and_below_producer_epoch=progress.producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=some) for name, some in topics.items()
            ],
        )
        progress.asked_to_join()
        try:
            answer = coordinator.call(request, AddPartitionsToTxnResponse)
            refused = {
                TopicPartition(topic.name, part.partition_index): part.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            }
            _check_each("AddPartitionsToTxn", refused, partitions)
        except KafkaError as fault:
            _forget_if_moved(coordinator, fault)
            raise
        progress.has_joined()
        progress.joined.update(partitions)

    # -- requests ----------------------------------------------------------------------------

    def _take_identity(self, deadline: float) -> None:
        """Get a producer id and an epoch: the first ones, or the next epoch."""

        def ask() -> ProducerIdentity:
            was = self.progress.producer
            answer = self._coordinator.call(
                InitProducerIdRequest(
                    transactional_id=self.transactional_id,
                    transaction_timeout_ms=self._timeout_ms,
                    producer_id=was.id,
                    producer_epoch=was.epoch,
                ),
                InitProducerIdResponse,
            )
            self._check(answer.error_code, "InitProducerId")
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

        self.progress.initialized(self._settled(ask, self._coordinator, deadline))

    def _add_group(self, group_id: str, deadline: float) -> None:
        producer = self.progress.producer

        def ask() -> None:
            answer = self._coordinator.call(
                AddOffsetsToTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    group_id=group_id,
                ),
                AddOffsetsToTxnResponse,
            )
            self._check(answer.error_code, "AddOffsetsToTxn")

        self.progress.asked_to_join()
        self._settled(ask, self._coordinator, deadline)
        self.progress.has_joined()
        self.progress.groups.add(group_id)

    def _commit_offsets(self, offsets: Offsets, group: GroupMetadata, deadline: float) -> None:
        """Send offsets to the group's coordinator, which is not the transaction's."""
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = Coordinator(self._cluster, KeyType.GROUP, group.group_id, self._to_groups)
            self._groups[group.group_id] = coordinator
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for at, offset in offsets.items():
            entry = with_metadata(offset)
            topics.setdefault(at.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=at.partition,
                    committed_offset=entry.offset,
                    committed_leader_epoch=entry.leader_epoch,
                    committed_metadata=entry.metadata,
                )
            )
        producer = self.progress.producer
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id=group.generation,
            member_id=group.member_id,
            group_instance_id=group.instance_id,
            topics=[
                TxnOffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )

        def ask() -> None:
            answer = coordinator.call(request, TxnOffsetCommitResponse)
            refused = {
                TopicPartition(topic.name, part.partition_index): part.error_code
                for topic in answer.topics
                for part in topic.partitions
            }
            _check_each(f"TxnOffsetCommit for group {group.group_id!r}", refused, offsets)

        try:
            self._settled(ask, coordinator, deadline)
        except KafkaError as fault:
            if fault.code in NOT_OURS_ANY_MORE:
                raise CommitFailed(str(fault)) from fault
            raise

    def _end(self, *, commit: bool, deadline: float) -> None:
        """Let the coordinator decide; it then ends the transaction in every partition."""
        progress = self.progress

        def ask() -> None:
            answer = self._coordinator.call(
                EndTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=progress.producer.id,
                    producer_epoch=progress.producer.epoch,
                    committed=commit,
                ),
                EndTxnResponse,
            )
            self._check(answer.error_code, "EndTxn")

        try:
            self._settled(ask, self._coordinator, deadline)
        except KafkaError as fault:
            if fault.retriable:
                raise  # not known yet: the application may call again
            is_unknown_there = fault.code == ErrorCode.INVALID_TXN_STATE and not progress.is_open
            if commit or not is_unknown_there:
                error = progress.refuse(fault)
                raise error from error.__cause__
            # Nothing has joined. A request to join may still arrive: too late for the next epoch.
            progress.is_unsure = True
        progress.ended_there()

    def _check(self, code: int, what: str) -> None:
        if code != ErrorCode.NONE:
            raise error_for(code, f"{what} of {self}: {error_for(code)}")

    # -- patience ----------------------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._block_s

    def _settled(self, attempt: Callable[[], T], coordinator: Coordinator, deadline: float) -> T:
        """Repeat a request until it succeeds or is refused for good.

        Raises:
            RequestTimedOut: no such response came in time; the request may have succeeded.
            ProducerClosed: the producer was closed meanwhile.
            KafkaError: a refusal.
        """
        wait_s = FIRST_BACKOFF_S
        while not self._closing.is_set():
            try:
                return attempt()
            except KafkaError as fault:
                if not fault.retriable:
                    raise
                _forget_if_moved(coordinator, fault)
                if time.monotonic() + wait_s >= deadline:
                    waited = f"gave up after max_block_ms={self._block_s * 1000:g}"
                    raise RequestTimedOut(f"{self}: {waited}; last: {fault}") from fault
            # Random, so that many producers do not retry at the same time.
            self._closing.wait(wait_s * random.uniform(0.8, 1.2))
            wait_s = min(wait_s * 2, MAX_BACKOFF_S)
        raise ProducerClosed("the producer is closed")

    # -- the end -----------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Make a waiting call give up with ProducerClosed. Thread-safe."""
        self._closing.set()
        for coordinator in [self._coordinator, *list(self._groups.values())]:
            coordinator.interrupt()
        self._cluster.interrupt()

    def close(self, timeout_s: float) -> None:
        """Close the connections, as soon as no call is running."""
        self.interrupt()
        if self._calls.acquire(timeout=timeout_s):
            try:
                for coordinator in (self._coordinator, *self._groups.values()):
                    coordinator.forget()
                self._cluster.close()
            finally:
                self._calls.release()

    def __str__(self) -> str:
        return KeyType.TRANSACTION.named(self.transactional_id)


def _interrupted(stop: BaseException) -> TransactionAborted:
    return TransactionAborted(f"{stop!r} interrupted the transaction")


def _check_each(
    what: str, codes: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> None:
    """Raise the refusal of a partition, if one was refused."""
    lacking = [at for at in partitions if at not in codes]
    if lacking:
        raise InvalidRequest(f"{what}: the response lacks {lacking[0]}")
    # OPERATION_NOT_ATTEMPTED only says that another partition was refused.
    for at, code in codes.items():
        if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED):
            raise error_for(code, f"{what}, {at}: {error_for(code)}")
    if any(codes.values()):
        raise error_for(ErrorCode.OPERATION_NOT_ATTEMPTED, what)


def _forget_if_moved(coordinator: Coordinator, fault: KafkaError) -> None:
    if fault.code != ErrorCode.CONCURRENT_TRANSACTIONS:
        coordinator.forget()
