"""Logs of shards are read two at a time, the smallest first."""

from __future__ import annotations

import asyncio
import threading

import pytest

from plog.coordinator.load_queue import LoadQueue

WAIT_S = 60


def test_two_are_read_at_a_time_and_the_smallest_of_those_that_wait_first() -> None:
    order: list[int] = []
    at_once: list[int] = []
    running = 0
    lock = threading.Lock()
    go_on = threading.Event()

    def read(size: int) -> None:
        nonlocal running
        with lock:
            running += 1
            at_once.append(running)
            order.append(size)
        go_on.wait(WAIT_S)
        with lock:
            running -= 1

    async def scenario() -> None:
        queue = LoadQueue()
        sizes = [50, 40, 30, 10, 20]
        reads = [asyncio.create_task(queue.run(size, lambda s=size: read(s))) for size in sizes]
        while len(order) < 2:
            await asyncio.sleep(0.001)
        go_on.set()
        await asyncio.gather(*reads)
        queue.close()

    asyncio.run(scenario())
    assert sorted(order[:2]) == [40, 50]
    assert order[2:] in ([10, 20, 30], [20, 10, 30], [10, 30, 20])
    assert max(at_once) == 2


def test_reader_that_fails_or_is_cancelled_lets_the_next_begin() -> None:
    async def scenario() -> None:
        queue = LoadQueue(1)
        block = threading.Event()
        first = asyncio.create_task(queue.run(1, lambda: block.wait(WAIT_S) and None))
        await asyncio.sleep(0)
        cancelled = asyncio.create_task(queue.run(1, lambda: None))
        fails = asyncio.create_task(queue.run(2, _fail))
        last = asyncio.create_task(queue.run(3, lambda: None))
        await asyncio.sleep(0)
        cancelled.cancel()
        block.set()
        await first
        with pytest.raises(RuntimeError):
            await fails
        await last
        queue.close()

    asyncio.run(scenario())


def test_turn_that_is_cancelled_as_it_comes_is_passed_on() -> None:
    async def scenario() -> None:
        queue = LoadQueue(1)
        await queue._turn(1)
        second = asyncio.create_task(queue._turn(1))
        third = asyncio.create_task(queue._turn(1))
        await asyncio.sleep(0)
        queue._pass_on()
        second.cancel()
        async with asyncio.timeout(WAIT_S):
            await third
        queue.close()

    asyncio.run(scenario())


def _fail() -> None:
    raise RuntimeError("no")
