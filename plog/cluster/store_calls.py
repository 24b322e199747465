"""Calls of the coordination store, made beside the event loop: the store may be away for long.

Owns the threads that wait for the store, and the bound on the calls that wait for a thread. Never
makes a call again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

from plog.cluster.store import Unreachable
from plog.network.connections import Work

T = TypeVar("T")

THREADS: Final = 6
FULL_S: Final = 1.0
"""How long the store may be silent before a full queue refuses further calls."""


class StoreCalls:
    """The calls that are under way or queued. For the event loop's thread.

    Args:
        most: how many there may be. Their requests have a bound in bytes too, as in `Work`.
        patience_s: how long a call may take in all, if its caller does not say.
    """

    def __init__(self, *, most: int, patience_s: float) -> None:
        self._room = Work(most, self._on_room)
        self._patience_s = patience_s
        self._threads = ThreadPoolExecutor(THREADS, "store calls")
        self._heard_at = 0.0
        self._room_came: asyncio.Future[None] | None = None

    async def make(
        self,
        call: Callable[[], T],
        *,
        size: int = 0,
        within_s: float | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> T:
        """Make a call in a thread, and return its result.

        While the queue is full and the store answers, the caller waits for room.

        Args:
            size: bytes of the request that needs the call.
            within_s: how long it may take in all.
            waiting: entered once the call is queued.

        Raises:
            Unreachable: it is not done in time, or the queue stays full. A call that has begun
                goes on, so that it may be done yet.
        """
        await self._until_room()
        loop = asyncio.get_running_loop()
        if not self._room.count:
            self._heard_at = loop.time()
        self._room.begin(size)
        made = self._threads.submit(call)
        made.add_done_callback(lambda done: loop.call_soon_threadsafe(self._end, done, size))
        result = asyncio.wrap_future(made)
        patience_s = self._patience_s if within_s is None else within_s
        try:
            with waiting():
                await asyncio.wait([result], timeout=patience_s)
            if not result.done():
                raise Unreachable(f"no answer within {patience_s:g} s")
            return result.result()
        finally:
            result.cancel()  # of use if no thread has begun it

    def stop(self) -> None:
        """End the threads after their present calls."""
        self._threads.shutdown(cancel_futures=True)

    async def _until_room(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._room.has_room:
            left_s = self._heard_at + FULL_S - loop.time()
            if left_s <= 0:
                raise Unreachable(f"{self._room.count} requests wait for its answer already")
            if self._room_came is None:
                self._room_came = loop.create_future()
            await asyncio.wait([self._room_came], timeout=left_s)

    def _on_room(self) -> None:
        if self._room_came is not None:
            self._room_came.set_result(None)
            self._room_came = None

    def _end(self, made: Future[T], size: int) -> None:
        if not made.cancelled() and not isinstance(made.exception(), Unreachable):
            self._heard_at = asyncio.get_running_loop().time()
        self._room.end(size)
