"""Calls of the coordination store, made beside the event loop: the store may be away for long.

Owns the threads that wait for the store, and the bound on the calls that wait for a thread. Never
makes a call again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, TypeVar

from plog.cluster.store import Unreachable
from plog.network.connections import Work

T = TypeVar("T")

Begin = Callable[[Callable[[], bool]], Future[T]]
"""Queues something that is to be done. Its argument returns whether the caller has given up."""

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
        self._waiting: deque[_Place] = deque()

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

        def begin(is_given_up: Callable[[], bool]) -> Future[T]:
            def unless_given_up() -> T:
                if is_given_up():
                    raise CancelledError
                return call()

            return self._threads.submit(unless_given_up)

        return await self.wait_for(begin, size=size, within_s=within_s, waiting=waiting)

    async def wait_for(
        self,
        begin: Begin[T],
        *,
        size: int = 0,
        within_s: float | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> T:
        """Have something done by another thread that may wait for the store; return its result.

        Args:
            begin: queues it. When its turn comes, and the caller has given up, the future that
                `begin` returned is cancelled, and nothing is done.

        The other arguments and the errors are those of `make`.
        """
        loop = asyncio.get_running_loop()
        patience_s = self._patience_s if within_s is None else within_s
        ends_at = loop.time() + patience_s
        await self._enter(size, ends_at)
        result: asyncio.Future[T] = loop.create_future()
        made = begin(result.done)
        made.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._end, done, result, size)
        )
        try:
            with waiting():
                await asyncio.wait([result], timeout=max(ends_at - loop.time(), 0))
            if not result.done():
                raise Unreachable(f"no answer within {patience_s:g} s")
            return result.result()
        finally:
            # The call keeps its room until a thread has passed it: it holds its request.
            result.cancel()

    def stop(self) -> None:
        """End the threads after their present calls."""
        self._threads.shutdown(cancel_futures=True)

    async def _enter(self, size: int, ends_at: float) -> None:
        """Take room, after the callers that wait for it."""
        if self._room.has_room and not self._waiting:
            self._begin(size)
            return
        loop = asyncio.get_running_loop()
        place = _Place(loop.create_future(), size)
        self._waiting.append(place)
        try:
            while not place.given.done():
                left_s = min(self._heard_at + FULL_S, ends_at) - loop.time()
                if left_s <= 0:
                    raise Unreachable(f"{self._room.count} requests wait for its answer already")
                await asyncio.wait([place.given], timeout=left_s)
        except BaseException:
            if place.given.done():
                self._room.end(size)
            else:
                self._waiting.remove(place)
            raise

    def _begin(self, size: int) -> None:
        if not self._room.count:
            self._heard_at = asyncio.get_running_loop().time()
        self._room.begin(size)

    def _on_room(self) -> None:
        while self._waiting and self._room.has_room:
            place = self._waiting.popleft()
            self._begin(place.size)
            place.given.set_result(None)

    def _end(self, made: Future[T], result: asyncio.Future[T], size: int) -> None:
        error = CancelledError() if made.cancelled() else made.exception()
        if not isinstance(error, Unreachable | CancelledError):
            self._heard_at = asyncio.get_running_loop().time()
        self._room.end(size)
        if result.done():
            return
        if error is None:
            result.set_result(made.result())
        else:
            result.set_exception(error)


class _Place(NamedTuple):
    """The place of a caller that waits for room, and of the bytes of its request."""

    given: asyncio.Future[None]
    size: int
