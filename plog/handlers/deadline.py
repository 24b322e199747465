"""Until when a request waits for its effects: its own timeout, and no longer than its client."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

from plog.cluster.metadata_cache import MetadataSnapshot
from plog.errors import RequestTimedOut
from plog.handlers.context import Context

T = TypeVar("T")


class Deadline:
    """Until when one request waits for its effects, while its client does.

    An effect that is visible already is found after the deadline, too, unless the timeout was 0.

    Raises (every wait):
        RequestTimedOut: not in time; it goes on all the same.
    """

    def __init__(self, ctx: Context, timeout_ms: int) -> None:
        self._ctx = ctx
        self._has_time = timeout_ms > 0
        self._ends_ms = ctx.ends_in(timeout_ms)

    def _left_s(self, otherwise: str) -> float:
        if not self._has_time:
            raise RequestTimedOut(otherwise)
        return max(self._ends_ms - self._ctx.services.clock.monotonic_ms(), 0) / 1000

    async def until_shown(self, shown: Callable[[MetadataSnapshot], bool], otherwise: str) -> None:
        """Wait until this broker's clients would see a change."""
        await self.is_shown_within(math.inf, shown, otherwise)

    async def is_shown_within(
        self, most_s: float, shown: Callable[[MetadataSnapshot], bool], otherwise: str
    ) -> bool:
        """Wait as `until_shown` does, at most `most_s`; return whether it is shown."""
        left_s = self._left_s(otherwise)
        with self._ctx.connection.while_open():
            is_shown = await self._ctx.services.metadata.until(shown, min(left_s, most_s))
        if not is_shown and left_s <= most_s:
            raise RequestTimedOut(otherwise)
        return is_shown

    async def until_done(self, future: asyncio.Future[T], otherwise: str) -> T:
        """Wait for a future, and return its result."""
        with self._ctx.connection.while_open():
            done, _ = await asyncio.wait([future], timeout=self._left_s(otherwise))
        if not done:
            raise RequestTimedOut(otherwise)
        return future.result()
