"""What a transactional producer says to coordinators, and what it makes of their answers.

Owns the requests of transactions of version 1 (KIP-98; with KIP-360 a producer goes on after an
abort that leaves something unknown, with KIP-447 offsets are committed as a group's member) and how
long each is tried. What may be asked when is `transaction_states`'; records are the sender's, which
has partitions join by `join`, on its own thread and connection.
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
"""Short: most is waited for the markers of the transaction before, and they are soon there."""
MAX_BACKOFF_S = 1.0
NOT_OURS_ANY_MORE = EXPELLED | {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.REBALANCE_IN_PROGRESS}
"""Refusals of offsets that say that the group has gone on without the member."""

Drain = Callable[[float], bool]
"""Waits that long at most until no record is waiting or on its way; tells whether so it is."""


class Transactions:
    """The transactions of one transactional id, one after the other.

    Calls of several threads wait for each other; `join` and `interrupt` do not.

    Args:
        cluster: the coordinators are found by it; its own from now on, closed by `close`.
        timeout_ms: after which the coordinator aborts a transaction.
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
        # One to a broker, whatever the groups: of two, brokers take what comes by the one that was
        # opened first for late, once a transaction has ended by the other.
        self._to_groups: dict[int, Connection] = {}
        self._calls = threading.Lock()
        self._closing = threading.Event()

    @property
    def opened_at(self) -> float:
        """When (time.monotonic()) the connection was opened by which transactions end."""
        return self._coordinator.opened_at

    def coordinator_by(self, cluster: Cluster) -> Coordinator:
        """Return the transactional id's coordinator, to be found by a cluster."""
        return Coordinator(cluster, KeyType.TRANSACTION, self.transactional_id)

    # -- calls of the application ------------------------------------------------------------

    def init(self) -> None:
        """Become the producer: fence whoever was, and have what it left open aborted."""
        with self._calls:
            self.progress.ask(Call.INIT)
            self._take_identity(self._deadline())

    def begin(self) -> None:
        """Begin a transaction; no broker hears of it before something joins."""
        with self._calls:
            self.progress.ask(Call.BEGIN)

    def cut(self, stop: BaseException) -> None:
        """Take note that a call has sent some of its rows only, which must not be committed."""
        fault = stop if isinstance(stop, PlogError) else _interrupted(stop)
        self.progress.fail(fault, is_unsure=False)

    def send_offsets(self, offsets: Offsets, group: GroupMetadata) -> None:
        """Commit a group's offsets with the transaction: they stand once it does."""
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
                # A request that nobody answered may still be on its way.
                told = self.progress.fail(fault, is_unsure=True)
                raise told from told.__cause__
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
        """Leave the end to others, after `flush`; None where nothing has joined that would end."""
        with self._calls:
            self._flushed(Call.PREPARE, State.PREPARED, flush)
            if not self.progress.is_open:
                return None
            return PreparedTransaction(self.transactional_id, *self.progress.producer)

    def _flushed(self, call: Call, state: State, flush: Callable[[], None]) -> None:
        """Ask for what ends the sending, and wait for what was sent; raise the first failure."""
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
        """Abort, once `drain` has dropped what was not sent and waited for what was."""
        with self._calls:
            self._abort(drain, self._block_s)

    def abort_at_close(self, drain: Drain, timeout_s: float | None) -> None:
        """Abort a transaction that nobody has ended, if there is one; failures are only told.

        One that is prepared is left as it is.
        """
        most_s = self._block_s if timeout_s is None else min(timeout_s, self._block_s)
        if not self._calls.acquire(timeout=most_s):
            return
        try:
            state = self.progress.state
            if state is not State.PREPARED and (state, Call.ABORT) in ASKED:
                log.warning("%s is closed in a transaction, which is aborted", self)
                self._abort(drain, most_s)
        except PlogError as fault:
            log.warning("%s: its transaction is left to the coordinator: %s", self, fault)
        finally:
            self._calls.release()

    def _abort(self, drain: Drain, most_s: float) -> None:
        progress = self.progress
        progress.ask(Call.ABORT)
        deadline = time.monotonic() + most_s
        if not drain(most_s):
            raise RequestTimedOut(f"{self}: records are still on their way; abort once more")
        if progress.state is not State.ABORTING:
            assert progress.error is not None
            raise progress.error
        if progress.may_be_open:
            self._end(commit=False, deadline=deadline)
        if progress.is_unsure:
            # Under the next epoch sequences begin at 0 again, and nothing late gets in (KIP-360).
            try:
                self._take_identity(deadline)
            except KafkaError as fault:
                if fault.retriable:
                    raise
                told = progress.refuse(fault)
                raise told from told.__cause__
        progress.ended()

    # -- for the sender's thread -------------------------------------------------------------

    def join(self, coordinator: Coordinator, partitions: Collection[TopicPartition]) -> None:
        """Have partitions join the transaction; asks once.

        Args:
            coordinator: the sender's own.

        Raises KafkaError: none has, as far as is known.
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
        """Get a producer id and an epoch: first ones, or those that follow the present ones."""

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
        """Tell the group's coordinator, which is not the transaction's."""
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = Coordinator(self._cluster, KeyType.GROUP, group.group_id, self._to_groups)
            self._groups[group.group_id] = coordinator
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for at, offset in offsets.items():
            told = with_metadata(offset)
            topics.setdefault(at.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=at.partition,
                    committed_offset=told.offset,
                    committed_leader_epoch=told.leader_epoch,
                    committed_metadata=told.metadata,
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
        """Have the coordinator decide; it ends the transaction in every partition by itself."""
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
                raise  # not known yet: the same may be asked for again
            is_unknown_there = fault.code == ErrorCode.INVALID_TXN_STATE and not progress.is_open
            if commit or not is_unknown_there:
                told = progress.refuse(fault)
                raise told from told.__cause__
            # Nothing has joined. What asked to may be on its way still, and is late for the epoch
            # that comes.
            progress.is_unsure = True
        progress.ended_there()

    def _check(self, code: int, what: str) -> None:
        if code != ErrorCode.NONE:
            raise error_for(code, f"{what} of {self}: {error_for(code)}")

    # -- patience ----------------------------------------------------------------------------

    def _deadline(self) -> float:
        return time.monotonic() + self._block_s

    def _settled(self, attempt: Callable[[], T], coordinator: Coordinator, deadline: float) -> T:
        """Try until there is an answer that another attempt would not change.

        Raises:
            RequestTimedOut: there is none in time; what was asked for may have happened.
            ProducerClosed: the producer is closed meanwhile.
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
                    raise RequestTimedOut(f"not done in time; last: {fault}") from fault
            # Spread, so that many producers do not come back at once.
            self._closing.wait(wait_s * random.uniform(0.8, 1.2))
            wait_s = min(wait_s * 2, MAX_BACKOFF_S)
        raise ProducerClosed("the producer is closed")

    # -- the end -----------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Make a call that waits give up with ProducerClosed. Thread-safe."""
        self._closing.set()
        for coordinator in [self._coordinator, *list(self._groups.values())]:
            coordinator.interrupt()
        self._cluster.interrupt()

    def close(self, timeout_s: float) -> None:
        """Close the connections, as soon as no call is under way."""
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
    return TransactionAborted(f"the transaction was interrupted by {stop!r}")


def _check_each(
    what: str, codes: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> None:
    """Raise the refusal of a partition, if there is one."""
    lacking = [at for at in partitions if at not in codes]
    if lacking:
        raise InvalidRequest(f"{what}: the answer lacks {lacking[0]}")
    # Others are only kept out by the one that is refused itself.
    for at, code in codes.items():
        if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED):
            raise error_for(code, f"{what}, {at}: {error_for(code)}")
    if any(codes.values()):
        raise error_for(ErrorCode.OPERATION_NOT_ATTEMPTED, what)


def _forget_if_moved(coordinator: Coordinator, fault: KafkaError) -> None:
    if fault.code != ErrorCode.CONCURRENT_TRANSACTIONS:
        coordinator.forget()
