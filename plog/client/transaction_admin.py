"""Administrative requests about transactions, to coordinators and to leaders of partitions.

Owns only its connections. A coordinator knows the state of a transactional id. A leader knows which
transactions are open in a partition, and since which offset (KIP-664). A transaction that is open
at a leader but unknown to a coordinator hangs: it never ends by itself, and readers of committed
records wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import NamedTuple

from plog.client import coordinators
from plog.client.administration import Administration
from plog.client.attempts import retry
from plog.client.connection import Connection
from plog.client.coordinators import Coordinators, KeyType
from plog.client.metadata import Node
from plog.client.partition_producers import (
    DescribedProducers,
    OpenTransaction,
    describe_producers,
    write_abort_marker,
)
from plog.client.transaction_states import FENCED, PreparedTransaction
from plog.errors import (
    ErrorCode,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionalIdNotFound,
    error_for,
)
from plog.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from plog.types import TopicPartition

ALL_DURATIONS = -1
ONGOING = "Ongoing"
"""The state of a transactional id with an open transaction whose end is not decided."""
HINTS: Mapping[int, str] = {
    **coordinators.HINTS,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "it does not exist",
}
"""What a code means here, if the brokers send no message with it."""


class ListedTransaction(NamedTuple):
    """A transactional id as its coordinator, broker `coordinator_id`, lists it."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id; `started_ms` (since 1970) and `partitions` describe an open one."""

    transactional_id: str
    coordinator: Node
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


class HangingTransaction(NamedTuple):
    """A transaction that never ends by itself; `transactional_id` is None after it has expired."""

    transaction: OpenTransaction
    transactional_id: str | None


class TransactionAdmin(Administration):
    """Administers the transactions of a cluster. Its arguments are those of `Administration`."""

    @cached_property
    def _coordinators(self) -> Coordinators:
        return Coordinators(self._cluster, KeyType.TRANSACTION, timeout_ms=self._timeout_ms)

    # -- at coordinators -------------------------------------------------------------------------

    def transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """Return every broker's transactional ids by name; the arguments select some of them.

        Args:
            states: only in these states (Kafka's names).
            producer_ids: only of these producers.
            longer_than_ms: only ids whose last transaction began at least this long ago, whether it
                has ended or not, and ids without a transaction.

        Raises:
            UnsupportedVersion: a broker is older than Kafka 3.0, or than 3.8 for `longer_than_ms`.
        """
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=ALL_DURATIONS if longer_than_ms is None else longer_than_ms,
        )
        self._cluster.refresh([])
        found: dict[str, ListedTransaction] = {}
        for node_id in sorted(self._cluster.nodes):
            answer = self._coordinators.settled(
                partial(self._list, node_id, request), f"the transactions of broker {node_id}"
            )
            for one in answer.transaction_states:
                found[one.transactional_id] = ListedTransaction(
                    one.transactional_id, node_id, one.producer_id, one.transaction_state
                )
        return [one for _, one in sorted(found.items())]

    def _list(self, node_id: int, request: ListTransactionsRequest) -> ListTransactionsResponse:
        answer = self._cluster.connection(node_id).call(request, ListTransactionsResponse)
        _check(answer.error_code, f"transactions of broker {node_id}")
        return answer

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Return the state of a transactional id.

        Raises:
            TransactionalIdNotFound: it does not exist.
        """

        def ask(coordinator: Node, connection: Connection) -> TransactionDescription:
            answer = connection.call(
                DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                DescribeTransactionsResponse,
            )
            (state,) = answer.transaction_states
            _check(state.error_code, f"transactional id {transactional_id!r}")
            return _description(state, coordinator)

        return self._coordinators.ask(transactional_id, ask)

    def end(self, transaction: PreparedTransaction, *, commit: bool) -> None:
        """End a transaction that its producer has prepared. The call may be repeated.

        The coordinator writes the markers afterwards. Other transactions of the transactional id
        have another epoch and are not affected.

        Raises:
            ProducerFenced: the transaction timed out, or another producer has taken over the
                transactional id.
            InvalidTxnState: it has ended the other way, or has not begun.
            KafkaError: another refusal, or no response in time; the transaction may have ended.
        """
        request = EndTxnRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            committed=commit,
        )

        def ask(coordinator: Node, connection: Connection) -> None:
            code = connection.call(request, EndTxnResponse).error_code
            what = f"transactional id {transaction.transactional_id!r}"
            if code in FENCED:
                epoch = transaction.producer_epoch
                raise ProducerFenced(f"{what}: its producer epoch is no longer {epoch}")
            _check(code, what)

        return retry(
            lambda: self._coordinators.ask(transaction.transactional_id, ask),
            timeout_s=self._timeout_ms / 1000,
            may_pass=lambda fault: fault.retriable,
        )

    # -- at leaders of partitions ----------------------------------------------------------------

    def all_partitions(self) -> list[TopicPartition]:
        """Return the partitions of every topic, internal ones included."""
        self._cluster.refresh(None)
        return sorted(
            TopicPartition(name, number)
            for name, topic in self._cluster.topics.items()
            for number in topic.partitions
        )

    def producers(self, partitions: Iterable[TopicPartition]) -> DescribedProducers:
        """Return the producers of partitions, from their leaders.

        Raises: as `describe_producers`.
        """
        return describe_producers(self._cluster, partitions)

    def open_since(self, at: TopicPartition, start_offset: int) -> OpenTransaction:
        """Return the transaction that is open in a partition since an offset.

        Raises:
            InvalidTxnState: no such transaction.
            KafkaError: the partition's leader does not answer.
        """
        described = self.producers([at])
        if at in described.faults:
            raise described.faults[at]
        for one in described.open_transactions():
            if one.producer.txn_start_offset == start_offset:
                return one
        raise InvalidTxnState(f"no transaction is open in {at} since offset {start_offset}")

    # -- both ------------------------------------------------------------------------------------

    def owners(
        self, transactions: Iterable[OpenTransaction]
    ) -> dict[OpenTransaction, TransactionDescription | None]:
        """Return the transactional id of each transaction; None if no coordinator knows it.

        `will_end` decides whether the coordinator will end the transaction.

        Raises:
            KafkaError: a broker does not answer, so the result would be incomplete.
        """
        wanted = list(transactions)
        if not wanted:
            return {}
        producer_ids = sorted({one.producer.producer_id for one in wanted})
        by_producer: dict[int, TransactionDescription] = {}
        for listed in self.transactions(producer_ids=producer_ids):
            try:
                # By the listed producer id: the later description has the next id if the epochs of
                # this one were used up.
                by_producer[listed.producer_id] = self.describe(listed.transactional_id)
            except TransactionalIdNotFound:  # it has just expired
                continue
        return {one: by_producer.get(one.producer.producer_id) for one in wanted}

    def hanging(
        self, partitions: Iterable[TopicPartition], *, longer_than_ms: int, now_ms: int
    ) -> tuple[list[HangingTransaction], dict[TopicPartition, KafkaError]]:
        """Find the transactions in partitions that no coordinator will end.

        Args:
            longer_than_ms: only transactions without a record for this long, by the timestamps of
                their records.
            now_ms: the current time, in ms since 1970.

        Returns:
            The transactions, and the errors of partitions whose leaders did not answer.

        Raises:
            KafkaError: a coordinator does not answer, so the result would be incomplete.
        """
        described = self.producers(partitions)
        old = [
            one
            for one in described.open_transactions()
            if max(now_ms - one.producer.last_timestamp, 0) >= longer_than_ms
        ]
        suspects = {
            one: owner
            for one, owner in self.owners(old).items()
            if owner is None or not will_end(owner, one)
        }
        if not suspects:
            return [], described.faults
        # Leave out transactions that have ended since: a coordinator forgets that a partition is in
        # a transaction only once its marker is written or refused.
        again = self.producers({one.partition for one in suspects})
        still_open = {one.identity for one in again.open_transactions()}
        found = [
            HangingTransaction(one, None if owner is None else owner.transactional_id)
            for one, owner in suspects.items()
            if one.identity in still_open
        ]
        return found, described.faults | again.faults

    def abort(
        self,
        at: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
    ) -> None:
        """Abort a producer's transaction in one partition without asking its coordinator.

        Raises: as `write_abort_marker`.
        """
        write_abort_marker(
            self._cluster,
            at,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timeout_ms=self._timeout_ms,
        )


def will_end(owner: TransactionDescription, transaction: OpenTransaction) -> bool:
    """Return whether the coordinator of a transactional id will end a producer's transaction.

    If the coordinator has decided to end it, the epoch is the producer's or a later one, which
    fences the producer. Before that the epochs must be equal: a later epoch of the producer belongs
    to another transaction.
    """
    if transaction.partition not in owner.partitions:
        return False
    epoch = transaction.producer.producer_epoch
    if owner.state == ONGOING:
        return owner.producer_epoch == epoch
    return owner.producer_epoch >= epoch


def _check(code: int, what: str) -> None:
    if code == ErrorCode.NONE:
        return
    text = f"{what}: {HINTS.get(code) or error_for(code)}"
    if code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise TransactionalIdNotFound(text)
    raise error_for(code, text)


def _description(state: TransactionState, coordinator: Node) -> TransactionDescription:
    partitions = tuple(
        sorted(
            TopicPartition(topic.topic, number)
            for topic in state.topics
            for number in topic.partitions
        )
    )
    # The coordinator still sends the start of a transaction that has ended, until the next begins.
    is_open = bool(partitions) and state.transaction_start_time_ms >= 0
    return TransactionDescription(
        state.transactional_id,
        coordinator,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        state.transaction_start_time_ms if is_open else None,
        partitions,
    )
