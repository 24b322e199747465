"""Asks the coordinator of a transactional id about the first write of a transaction (KIP-890).

Owns which broker that is, how long it may take, and AddPartitionsToTxn in the form that brokers
send. Several questions to one coordinator go in one request, so the coordinator answers each at
once. If a transaction has to wait for the one before, this broker asks again. For the event loop's
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.peers import Peers
from plog.coordinator.peer_batches import PeerBatches
from plog.coordinator.txn import EPOCH_PER_TRANSACTION
from plog.coordinator.txn_coordinator import LONGEST_WAIT_S, TRANSACTIONS_TOPIC, TxnCoordinator
from plog.coordinator.txn_events import Producer
from plog.errors import CoordinatorNotAvailable, ErrorCode, KafkaError, error_for
from plog.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from plog.types import TopicPartition

BROKERS_SEND = 5
"""The version of AddPartitionsToTxn between brokers; clients send 3 and below."""
TIMEOUT_MS = 10_000
"""How long a coordinator may take. To write down that partitions join, it may itself take
offsets.commit.timeout.ms, 5 s by default. A producer waits for 30 s by default, and then sends its
request again, to wait again."""
MIN_TIMEOUT_MS = 1_000
FIRST_PAUSE_S, MAX_PAUSE_S = 0.002, 0.1
"""Pauses before a question is asked again, while the transaction before ends."""
ASK_AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        # A coordinator on another broker does not answer.
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Answers, and errors of a question, after which it may be asked again."""


def patience_s(request_timeout_ms: int | None) -> float:
    """Return how long a coordinator may take, so that the request that asks is answered in time.

    At most half of the request's own timeout: the rest is for its write.
    """
    if request_timeout_ms is None:
        return TIMEOUT_MS / 1000
    return min(max(request_timeout_ms // 2, MIN_TIMEOUT_MS), TIMEOUT_MS) / 1000


class Question(NamedTuple):
    """Whether partitions are in a transaction, or that they join it."""

    transactional_id: str
    producer: Producer
    partitions: frozenset[TopicPartition]
    joins: bool


Missing: TypeAlias = frozenset[TopicPartition]


class TxnVerifier:
    """The coordinators of all transactional ids.

    Args:
        here: the coordinator in this process.
    """

    def __init__(
        self, broker_id: int, *, here: TxnCoordinator, metadata: MetadataCache, peers: Peers
    ) -> None:
        self._broker_id = broker_id
        self._here = here
        self._metadata = metadata
        self._peers = peers
        self._batches: PeerBatches[Question, ErrorCode | Missing] = PeerBatches(self._send)

    async def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        *,
        timeout_ms: int | None = None,
    ) -> ErrorCode | Missing:
        """Return the partitions that are not in a producer's open transaction, or an error.

        Args:
            timeout_ms: of the request that asks.

        Raises KafkaError: the coordinator cannot be asked now.
        """
        coordinator = self._coordinator_of(transactional_id)
        if coordinator == self._broker_id:
            return self._here.verify(transactional_id, producer, partitions)
        question = Question(transactional_id, producer, frozenset(partitions), False)
        return await self._batches.ask(coordinator, question, within_s=patience_s(timeout_ms))

    async def join(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        *,
        timeout_ms: int | None = None,
    ) -> ErrorCode:
        """Have partitions join a producer's transaction.

        Args:
            timeout_ms: of the request that asks.

        Raises KafkaError: the coordinator cannot be asked now. They may join all the same.
        """
        coordinator = self._coordinator_of(transactional_id)
        if coordinator == self._broker_id:
            return await self._here.add(
                transactional_id, producer, partitions, client_version=EPOCH_PER_TRANSACTION
            )
        question = Question(transactional_id, producer, frozenset(partitions), True)
        return await self._join_elsewhere(coordinator, question, patience_s(timeout_ms))

    async def _join_elsewhere(
        self, coordinator: int, question: Question, within_s: float
    ) -> ErrorCode:
        """Ask another broker, again while the markers of the transaction before are written.

        The wait is as long as for a coordinator in this process. As in Kafka 4, the leader asks
        again: a client would first pause for longer than markers take.
        """
        now_s = asyncio.get_running_loop().time
        begun_s, pause_s = now_s(), FIRST_PAUSE_S
        while True:
            left_s = within_s - (now_s() - begun_s)
            answer = await self._batches.ask(coordinator, question, within_s=left_s)
            if answer is not ErrorCode.CONCURRENT_TRANSACTIONS:
                return answer if isinstance(answer, ErrorCode) else ErrorCode.NONE
            if now_s() - begun_s + pause_s >= min(LONGEST_WAIT_S, within_s):
                return answer
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    def _coordinator_of(self, transactional_id: str) -> int:
        at = TopicPartition(TRANSACTIONS_TOPIC, self._here.shards.index_of(transactional_id))
        leader = self._metadata.leader(at)
        if leader is None:
            raise CoordinatorNotAvailable(f"{at} has no leader")
        return leader.leader_id

    async def _send(
        self, broker_id: int, questions: Sequence[Question]
    ) -> list[ErrorCode | Missing | KafkaError]:
        request = AddPartitionsToTxnRequest(transactions=[_encoded(one) for one in questions])
        asked = self._peers.ask(
            broker_id, request, AddPartitionsToTxnResponse, at_most=BROKERS_SEND
        )
        response = await asyncio.wrap_future(asked)
        if response.error_code != ErrorCode.NONE:
            refusal = error_for(response.error_code, f"broker {broker_id} refuses the question")
            return [refusal] * len(questions)
        return [
            _answer(
                {
                    TopicPartition(topic.name, one.partition_index): ErrorCode(
                        one.partition_error_code
                    )
                    for topic in result.topic_results
                    for one in topic.results_by_partition
                }
            )
            for result in response.results_by_transaction
        ]


def _encoded(question: Question) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer.id,
        producer_epoch=question.producer.epoch,
        verify_only=not question.joins,
        topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=[at.partition for at in some])
            for topic, some in groupby(sorted(question.partitions), attrgetter("topic"))
        ],
    )


def _answer(codes: dict[TopicPartition, ErrorCode]) -> ErrorCode | Missing:
    """Return the partitions that are missing, or the error that all have."""
    missing = {at for at, code in codes.items() if code is ErrorCode.TRANSACTION_ABORTABLE}
    others = {*codes.values()} - {ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE}
    return min(others) if others else frozenset(missing)
