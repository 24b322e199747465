"""Lets a few logs be read at a time, the smallest of those that wait first.

After a failover a broker takes over many shards at once. Each reader holds the interpreter's lock
in turns, so that more readers make none of them faster. Owns the threads. For the event loop's
thread.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MAX_AT_ONCE = 2

R = TypeVar("R")


class LoadQueue:
    """The threads that read the logs of shards, and those that wait for one."""

    def __init__(self, at_once: int = MAX_AT_ONCE) -> None:
        self._free = at_once
        self._threads = ThreadPoolExecutor(at_once, "load shards")
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def run(self, size_bytes: int, read: Callable[[], R]) -> R:
        """Call `read` in a thread, when it is the turn of a log of this size.

        Returns and raises as `read`.
        """
        await self._turn(size_bytes)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, read)
        finally:
            self._pass_on()

    def close(self) -> None:
        """End the threads once they are idle."""
        self._threads.shutdown(wait=False)

    async def _turn(self, size_bytes: int) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size_bytes, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
