"""Administrative requests about transactions, as coordinators and as partitions know them.

Owns no state but its connections. What a transactional id is at, its coordinator says; which
transactions are open in a partition, and since which offset, its leader (KIP-664). Where the two
contradict each other a transaction hangs: nobody will ever end it, and readers of committed records
wait before it for good.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import NamedTuple

from plog.client import coordinators
from plog.client.administration import Administration
from plog.client.connection import Connection
from plog.client.coordinators import Coordinators, KeyType
from plog.client.metadata import Node
from plog.client.partition_producers import (
    OpenTransaction,
    Told,
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
    UnknownTopicOrPartition,
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
"""The state of a transactional id whose open transaction nobody has decided to end."""
HINTS: Mapping[int, str] = {
    **coordinators.HINTS,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "it does not exist",
}
"""What a code means here, where the brokers send no words with it."""


class ListedTransaction(NamedTuple):
    """A transactional id as its coordinator, the broker `coordinator_id`, lists it."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id; `started_ms` (since 1970) and `partitions` are of an open transaction."""

    transactional_id: str
    coordinator: Node
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


class HangingTransaction(NamedTuple):
    """A transaction that nobody will end; `transactional_id` is None where it has expired."""

    transaction: OpenTransaction
    transactional_id: str | None


class TransactionAdmin(Administration):
    """Administers the transactions of a cluster. Its arguments are those of `Administration`."""

    @cached_property
    def _coordinators(self) -> Coordinators:
        return Coordinators(self._cluster, KeyType.TRANSACTION, timeout_ms=self._timeout_ms)

    # -- as coordinators know them ---------------------------------------------------------------

    def transactions(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """Return every broker's transactional ids by name, all of them unless less is asked for.

        Args:
            states: only in these states (Kafka's names).
            producer_ids: only of these producers.
            longer_than_ms: only those whose last transaction began so long ago, whether it has
                ended or not; ids that have had none count as well.

        Raises:
            UnsupportedVersion: a broker cannot tell (before Kafka 3.0, by duration before 3.8).
        """
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=ALL_DURATIONS if longer_than_ms is None else longer_than_ms,
        )
        self._cluster.refresh([])
        found: dict[str, ListedTransaction] = {}
        for node_id in sorted(self._cluster.nodes):
            answer = self._coordinators.settled(partial(self._list, node_id, request))
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
        """Return what a transactional id is at.

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
        """End a transaction that its producer has prepared; done again, it says the same.

        Its markers follow by themselves. Another transaction of the transactional id is never
        touched: it has another epoch.

        Raises:
            ProducerFenced: the transaction has ended otherwise (its time was over), or another
                producer has the transactional id by now.
            InvalidTxnState: it has ended the other way, or has not begun.
            KafkaError: another refusal, or no answer in time; it may have ended.
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
                raise ProducerFenced(f"{what}: not at epoch {transaction.producer_epoch} any more")
            _check(code, what)

        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            try:
                return self._coordinators.ask(transaction.transactional_id, ask)
            except KafkaError as fault:
                if not fault.retriable or time.monotonic() >= deadline:
                    raise
            time.sleep(coordinators.RETRY_BACKOFF_S)

    # -- as partitions know them -----------------------------------------------------------------

    def partitions_of(self, topic: str, numbers: Iterable[int] = ()) -> list[TopicPartition]:
        """Return these partitions of a topic; none named are all of them.

        Raises:
            UnknownTopicOrPartition: no such topic or partition.
        """
        known = self._cluster.topic(topic).partitions
        wanted = [TopicPartition(topic, number) for number in sorted(set(numbers) or known)]
        for at in wanted:
            if at.partition not in known:
                raise UnknownTopicOrPartition(f"partition {at} does not exist")
        return wanted

    def all_partitions(self) -> list[TopicPartition]:
        """Return the partitions of every topic, the brokers' own among them."""
        self._cluster.refresh(None)
        return sorted(
            TopicPartition(name, number)
            for name, topic in self._cluster.topics.items()
            for number in topic.partitions
        )

    def producers(self, partitions: Iterable[TopicPartition]) -> Told:
        """Return which producers the leaders of partitions remember.

        Raises: as `describe_producers`.
        """
        return describe_producers(self._cluster, partitions)

    def open_since(self, at: TopicPartition, start_offset: int) -> OpenTransaction:
        """Return the transaction that is open in a partition since an offset.

        Raises:
            InvalidTxnState: there is none.
            KafkaError: the partition's leader does not tell.
        """
        told = self.producers([at])
        if at in told.faults:
            raise told.faults[at]
        for one in told.open_transactions():
            if one.producer.txn_start_offset == start_offset:
                return one
        raise InvalidTxnState(f"no transaction is open in {at} since offset {start_offset}")

    # -- both ------------------------------------------------------------------------------------

    def owners(
        self, transactions: Iterable[OpenTransaction]
    ) -> dict[OpenTransaction, TransactionDescription | None]:
        """Return the transactional id behind each transaction; None where nobody knows one.

        Whether its coordinator will end the transaction, `will_end` tells.

        Raises:
            KafkaError: a broker does not tell, so that nothing can be said.
        """
        wanted = list(transactions)
        if not wanted:
            return {}
        producer_ids = sorted({one.producer.producer_id for one in wanted})
        by_producer: dict[int, TransactionDescription] = {}
        for listed in self.transactions(producer_ids=producer_ids):
            try:
                # By the id that was listed: the description is of a moment later, and has the next
                # one where this one's epochs were used up.
                by_producer[listed.producer_id] = self.describe(listed.transactional_id)
            except TransactionalIdNotFound:  # it has just expired
                continue
        return {one: by_producer.get(one.producer.producer_id) for one in wanted}

    def hanging(
        self, partitions: Iterable[TopicPartition], *, longer_than_ms: int, now_ms: int
    ) -> tuple[list[HangingTransaction], dict[TopicPartition, KafkaError]]:
        """Find the transactions in partitions that no coordinator will end.

        Args:
            longer_than_ms: only those that have written nothing for so long, by the timestamps of
                their records.
            now_ms: the time to judge this by, in ms since 1970.

        Returns:
            The transactions, and the partitions that could not be judged, with the reason.

        Raises:
            KafkaError: a coordinator does not tell, so that nothing can be said.
        """
        told = self.producers(partitions)
        old = [
            one
            for one in told.open_transactions()
            if max(now_ms - one.producer.last_timestamp, 0) >= longer_than_ms
        ]
        suspects = {
            one: owner
            for one, owner in self.owners(old).items()
            if owner is None or not will_end(owner, one)
        }
        if not suspects:
            return [], told.faults
        # Those that have ended since are none: a coordinator forgets that a partition is in a
        # transaction only once its marker is there or refused.
        again = self.producers({one.partition for one in suspects})
        still_open = {one.identity for one in again.open_transactions()}
        found = [
            HangingTransaction(one, None if owner is None else owner.transactional_id)
            for one, owner in suspects.items()
            if one.identity in still_open
        ]
        return found, told.faults | again.faults

    def abort(
        self,
        at: TopicPartition,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
    ) -> None:
        """Abort a producer's transaction in one partition, whatever its coordinator knows.

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
    """Tell whether the coordinator of a transactional id will end a producer's transaction.

    Where it has decided to, under the producer's epoch or under a later one, by which it fences
    the producer. Before that the epochs must be the same: what a later epoch of the producer has
    begun is another transaction.
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
    # Where a transaction has ended its start is told on, until the next one begins.
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
