"""Questions to the coordinator of another broker: one transaction must not delay the others."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from plog.coordinator.txn_events import Producer
from plog.coordinator.txn_verifier import TxnVerifier
from plog.errors import ErrorCode
from plog.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from plog.types import TopicPartition

NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
AT = TopicPartition("t", 0)
PRODUCER = Producer(1, 0)
HERE, COORDINATOR = 0, 1
WAIT_S, LOOK_S = 60, 0.001


class Coordinator:
    """Another broker, which answers each question at once."""

    def __init__(self) -> None:
        self.errors: dict[str, ErrorCode] = {}
        """Of transactional ids; the others get none."""
        self.asked: list[str] = []

    def ask(
        self, broker_id: int, request: AddPartitionsToTxnRequest, *_: object, at_most: int
    ) -> Future[AddPartitionsToTxnResponse]:
        assert broker_id == COORDINATOR
        response: Future[AddPartitionsToTxnResponse] = Future()
        response.set_result(
            AddPartitionsToTxnResponse(
                error_code=NONE,
                results_by_transaction=[
                    self._answer(one.transactional_id) for one in request.transactions
                ],
            )
        )
        return response

    def _answer(self, transactional_id: str) -> AddPartitionsToTxnResult:
        self.asked.append(transactional_id)
        part = AddPartitionsToTxnPartitionResult(
            partition_index=AT.partition,
            partition_error_code=self.errors.get(transactional_id, NONE),
        )
        topic = AddPartitionsToTxnTopicResult(name=AT.topic, results_by_partition=[part])
        return AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=[topic])


def verifier_of(coordinator: Coordinator) -> TxnVerifier:
    leader = SimpleNamespace(leader_id=COORDINATOR)
    return TxnVerifier(
        HERE,
        here=SimpleNamespace(shards=SimpleNamespace(index_of=lambda _: 0)),  # type: ignore[arg-type]
        metadata=SimpleNamespace(leader=lambda _: leader),  # type: ignore[arg-type]
        peers=coordinator,  # type: ignore[arg-type]
    )


async def asked(coordinator: Coordinator, transactional_id: str, times: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while coordinator.asked.count(transactional_id) < times:
            await asyncio.sleep(LOOK_S)


def test_transaction_that_waits_for_the_one_before_joins_later_and_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plog.coordinator.txn_verifier.LONGEST_WAIT_S", WAIT_S)

    async def run() -> None:
        coordinator = Coordinator()
        coordinator.errors["stuck"] = CONCURRENT
        verifier = verifier_of(coordinator)
        stuck = asyncio.create_task(verifier.join("stuck", PRODUCER, [AT], timeout_ms=2**31 - 1))
        await asked(coordinator, "stuck", 2)
        async with asyncio.timeout(WAIT_S):
            assert await verifier.join("other", PRODUCER, [AT]) is NONE
            assert await verifier.verify("other", PRODUCER, [AT]) == frozenset()
        assert not stuck.done()
        assert coordinator.asked.count("other") == 2
        coordinator.errors.clear()
        async with asyncio.timeout(WAIT_S):
            assert await stuck is NONE

    asyncio.run(run())


def test_transaction_whose_one_before_does_not_end_gets_the_error_at_last() -> None:
    async def run() -> None:
        coordinator = Coordinator()
        coordinator.errors["stuck"] = CONCURRENT
        verifier = verifier_of(coordinator)
        async with asyncio.timeout(WAIT_S):
            assert await verifier.join("stuck", PRODUCER, [AT]) is CONCURRENT
        assert coordinator.asked.count("stuck") > 1

    asyncio.run(run())


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.PRODUCER_FENCED])
def test_other_errors_are_returned_without_another_question(error: ErrorCode) -> None:
    async def run() -> None:
        coordinator = Coordinator()
        coordinator.errors["x"] = error
        assert await verifier_of(coordinator).join("x", PRODUCER, [AT]) is error
        assert coordinator.asked == ["x"]

    asyncio.run(run())
