"""Questions to other brokers: those that come meanwhile go together, and each gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from plog.coordinator.peer_batches import MAX_BATCH, PeerBatches
from plog.errors import InvalidTxnState, KafkaError, NetworkException, RequestTimedOut

WAIT_S = 60


class Peer:
    """Answers each number with its double, when it is let."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[int]]] = []
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None

    async def send(self, broker_id: int, questions: Sequence[int]) -> list[int | KafkaError]:
        self.sent.append((broker_id, list(questions)))
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [InvalidTxnState("odd") if one % 2 else 2 * one for one in questions]


async def ask_all(batches: PeerBatches[int, int], broker_id: int, numbers: Sequence[int]) -> list:
    asked = [asyncio.create_task(batches.ask(broker_id, number)) for number in numbers]
    await asyncio.sleep(0)
    return asked


def test_questions_that_come_meanwhile_are_one_request() -> None:
    async def scenario() -> None:
        peer = Peer()
        batches: PeerBatches[int, int] = PeerBatches(peer.send)
        first = await ask_all(batches, 1, [2])
        await asyncio.sleep(0)
        rest = await ask_all(batches, 1, [4, 6, 8])
        other = await ask_all(batches, 2, [10])
        peer.may_answer.set()
        async with asyncio.timeout(WAIT_S):
            assert await asyncio.gather(*first, *rest, *other) == [4, 8, 12, 16, 20]
        assert sorted(peer.sent) == [(1, [2]), (1, [4, 6, 8]), (2, [10])]

    asyncio.run(scenario())


def test_refusal_of_one_leaves_the_others_alone() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.may_answer.set()
        batches: PeerBatches[int, int] = PeerBatches(peer.send)
        good, bad = await ask_all(batches, 1, [2, 3])
        assert await good == 4
        with pytest.raises(InvalidTxnState):
            await bad

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "failure", [NetworkException("gone"), RequestTimedOut("late"), RuntimeError("a bug")]
)
def test_broker_that_does_not_answer_fails_its_questions_and_is_asked_again(
    failure: Exception,
) -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.may_answer.set()
        peer.failure = failure
        batches: PeerBatches[int, int] = PeerBatches(peer.send)
        async with asyncio.timeout(WAIT_S):
            for asked in await ask_all(batches, 1, [2, 4]):
                with pytest.raises(KafkaError):
                    await asked
        peer.failure = None
        assert await batches.ask(1, 6) == 12

    asyncio.run(scenario())


def test_caller_that_gives_up_does_not_disturb_the_others() -> None:
    async def scenario() -> None:
        peer = Peer()
        batches: PeerBatches[int, int] = PeerBatches(peer.send)
        gone, stays = await ask_all(batches, 1, [2, 4])
        gone.cancel()
        await asyncio.sleep(0)
        peer.may_answer.set()
        assert await stays == 8

    asyncio.run(scenario())


def test_broker_that_hangs_fails_each_question_in_its_time_and_gets_no_late_ones() -> None:
    async def scenario() -> None:
        peer = Peer()
        batches: PeerBatches[int, int] = PeerBatches(peer.send)
        sent = asyncio.create_task(batches.ask(1, 2, within_s=0.01))
        await asyncio.sleep(0)
        (patient,) = await ask_all(batches, 1, [6])
        for asked in sent, batches.ask(1, 4, within_s=0.01):
            with pytest.raises(RequestTimedOut, match=r"broker 1 does not answer within 0\.01 s"):
                await asked
        peer.may_answer.set()
        async with asyncio.timeout(WAIT_S):
            assert await patient == 12
        assert [numbers for _, numbers in peer.sent if numbers != [2]] == [[6]]

    asyncio.run(scenario())


def test_no_request_is_sent_if_every_caller_has_given_up() -> None:
    async def scenario() -> None:
        peer = Peer()
        batches: PeerBatches[int, int] = PeerBatches(peer.send)
        (first,) = await ask_all(batches, 1, [2])
        await asyncio.sleep(0)
        with pytest.raises(RequestTimedOut):
            await batches.ask(1, 4, within_s=0.01)
        peer.may_answer.set()
        assert await first == 4
        await asyncio.sleep(0)
        assert await batches.ask(1, 6) == 12
        assert peer.sent == [(1, [2]), (1, [6])]

    asyncio.run(scenario())


def test_request_is_bounded() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.may_answer.set()
        batches: PeerBatches[int, int] = PeerBatches(peer.send)
        asked = await ask_all(batches, 1, range(0, 2 * (MAX_BATCH + 5), 2))
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*asked)
        assert max(len(questions) for _, questions in peer.sent) == MAX_BATCH

    asyncio.run(scenario())
