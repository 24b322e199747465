"""acks=all while leadership moves: Produce by both ways, and the broker's own appends.

The rule itself is tested in tests/storage/test_ack_status.py; here it is seen that all three obey
it. The waiting batch is at offset 0 of a partition with two replicas in sync, so that it waits
until the test plays the other replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from plog.cluster.change_bells import ChangeBells
from plog.cluster.leadership import Leadership
from plog.cluster.own_appends import OwnAppends, Pair
from plog.cluster.partition import Partition
from plog.errors import ErrorCode, KafkaError
from plog.protocol.messages.api_versions import ApiVersionsRequest
from plog.protocol.messages.produce import ProduceResponse
from plog.runtime.clock import SystemClock
from plog.runtime.purgatory import Purgatory
from plog.settings.definitions import BrokerSettings, TopicSettings
from plog.types import TopicPartition
from tests.handlers.running import Running, decoded
from tests.handlers.wire import WAIT_MS, create_topic, eventually, flat, make_batch, produce_request

NONE = ErrorCode.NONE
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
TOO_FEW = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
ME, PEER = 0, 1
PRODUCER_ID = 4711


class Moves:
    """What becomes of one partition, by the broker's own calls."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log = partition.log
        self._epoch = partition.leadership.leader_epoch

    def lead(self, isr: Sequence[int] = (ME, PEER)) -> None:
        self.partition.make_leader(self._next(ME, isr), self.log)

    def follow(self) -> None:
        self.partition.make_follower(self._next(PEER, (ME, PEER)), self.log)

    def _next(self, leader: int, isr: Sequence[int]) -> Leadership:
        self._epoch += 1
        return Leadership(leader, self._epoch, tuple(isr), (ME, PEER), self._epoch, 1)

    def cut(self) -> None:
        self.log.truncate_to(0)

    def refill(self) -> None:
        self.partition.append(bytearray(make_batch([b"another"])), acks=1, now_ms=0)

    def replicate(self) -> None:
        """Play the other replica: it has everything."""
        self.log.native.advance_high_watermark(self.log.log_end_offset)
        self.partition._on_change(self.partition.topic_partition)


Step = Callable[[Moves], None]


def shrink(moves: Moves) -> None:
    moves.lead(isr=(ME,))


class Case(NamedTuple):
    steps: Sequence[Step]
    error: ErrorCode
    minimum: int = 1  # min.insync.replicas


CASES = {
    "replicated": Case([Moves.replicate], NONE),
    "deposed": Case([Moves.follow], NOT_LEADER),
    "deposed and cut": Case([Moves.follow, Moves.cut], NOT_LEADER),
    "leads again": Case([Moves.follow, Moves.lead, Moves.replicate], NOT_LEADER),
    "cut, refilled, leads again": Case(
        [Moves.follow, Moves.cut, Moves.lead, Moves.refill, Moves.replicate], NOT_LEADER
    ),
    "next epoch": Case([Moves.lead, Moves.replicate], NONE),
    "alone is enough": Case([shrink], NONE),
    "alone is too few until the other is back": Case(
        [shrink, Moves.lead, Moves.replicate], NONE, minimum=2
    ),
    "alone is too few at the commit": Case([shrink, Moves.replicate], TOO_FEW, minimum=2),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("acks") / "data")
    yield one
    one.stop()


def led(running: Running, case: Case) -> Moves:
    topic, _ = create_topic(
        running.wire, flush_before_ack="false", min_insync_replicas=case.minimum
    )
    partition = running.broker._replicas.leader(TopicPartition(topic, 0))
    moves = Moves(partition)
    moves.lead()
    return moves


def take(moves: Moves, steps: Sequence[Step]) -> None:
    """Take all steps before the one that waits can look: the event loop's thread is busy."""
    for step in steps:
        step(moves)


@pytest.mark.parametrize("name", CASES)
def test_fast_path(running: Running, name: str) -> None:
    moves = led(running, CASES[name])
    before = running.fast_requests
    running.send(produce_request([(moves.partition.topic_partition.topic, 0, make_batch())]), 9)
    running.until_waiting()
    take(moves, CASES[name].steps)
    (part,) = flat(decoded(ProduceResponse, 9, running.receive()))
    assert running.fast_requests > before
    assert ErrorCode(part.error_code) == CASES[name].error


@pytest.mark.parametrize("name", CASES)
def test_handler(running: Running, name: str) -> None:
    moves = led(running, CASES[name])
    before = sum(running.callouts.values())
    # A producer that is new is the handler's.
    data = make_batch(producer=(PRODUCER_ID, 0, 0))
    running.send(produce_request([(moves.partition.topic_partition.topic, 0, data)]), 9)
    eventually(lambda: moves.log.log_end_offset == 1, "the batch is appended")
    in_loop(running, lambda: take(moves, CASES[name].steps))
    (part,) = flat(decoded(ProduceResponse, 9, running.receive()))
    assert sum(running.callouts.values()) > before
    assert ErrorCode(part.error_code) == CASES[name].error


@pytest.mark.parametrize("safe_first", [True, False], ids=["first", "last"])
def test_handler_keeps_the_answer_of_a_partition_that_was_safe(
    running: Running, safe_first: bool
) -> None:
    """As the reactor does: what becomes of it while the other partition waits changes nothing."""
    safe, waiting = (led(running, Case([], NONE)) for _ in range(2))
    order = [safe, waiting] if safe_first else [waiting, safe]
    data = make_batch(producer=(PRODUCER_ID, 0, 0))
    running.send(
        produce_request([(one.partition.topic_partition.topic, 0, data) for one in order]), 9
    )
    eventually(lambda: all(one.log.log_end_offset == 1 for one in order), "both are appended")
    in_loop(running, safe.replicate)
    # The reactor has looked at the wait once it passes on a request that was sent after the change.
    running.wire.ask(ApiVersionsRequest())
    in_loop(running, lambda: take(waiting, [lambda _: safe.follow(), Moves.replicate]))
    found = flat(decoded(ProduceResponse, 9, running.receive()))
    assert [ErrorCode(part.error_code) for part in found] == [NONE, NONE]


@pytest.mark.parametrize("name", CASES)
def test_own_append(running: Running, name: str) -> None:
    moves = led(running, CASES[name])

    async def append() -> ErrorCode:
        loop = asyncio.get_running_loop()
        purgatory = Purgatory[TopicPartition](loop)
        bells = ChangeBells(loop, purgatory)
        appends = OwnAppends(
            replicas=running.broker._replicas,
            logs=None,  # type: ignore[arg-type]  # nothing is flushed
            purgatory=purgatory,
            bells=bells,
            clock=SystemClock(),
            timeout_ms=WAIT_MS,
        )
        tp = moves.partition.topic_partition
        waiting = asyncio.ensure_future(appends.append(tp, [Pair(b"k", b"v")]))
        async with asyncio.timeout(WAIT_MS / 1000):
            while moves.log.log_end_offset == 0:
                await asyncio.sleep(0.001)
        assert not waiting.done()
        take(moves, CASES[name].steps)
        purgatory.touch(tp)
        try:
            assert await waiting == 0
        except KafkaError as refusal:
            return ErrorCode(refusal.code)
        return NONE

    assert asyncio.run(append()) == CASES[name].error


def in_loop(running: Running, act: Callable[[], None]) -> None:
    async def run() -> None:
        act()

    asyncio.run_coroutine_threadsafe(run(), running._loop).result(60)


def test_high_watermark_stands_still_below_the_minimum(running: Running) -> None:
    moves = led(running, Case([], NONE, minimum=2))
    moves.lead(isr=(ME,))
    moves.refill()
    assert moves.log.high_watermark == 0
    moves.lead()
    moves.replicate()
    assert moves.log.high_watermark == 1


def test_smaller_minimum_commits_at_once(running: Running) -> None:
    moves = led(running, Case([], NONE, minimum=2))
    moves.lead(isr=(ME,))
    moves.refill()
    moves.partition.update_settings(TopicSettings(BrokerSettings(), {}))
    assert moves.log.high_watermark == 1
