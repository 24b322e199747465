"""Answers health checks: whether the broker is alive, and whether it is ready for clients.

Owns the texts of the answers and the bound of a check. The functions may be called from any thread,
and wait at most ALIVE_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from enum import Enum

ALIVE_S = 2.0
"""The event loop counts as stuck after this time."""
NETWORK_S = 1.0
"""The network threads count as stuck after this time."""


class Phase(Enum):
    """Phases of a broker's life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Probes:
    """The checks of one broker.

    Args:
        network_answers: returns whether all network threads answer within a time, in seconds.
        progress: returns how far the start is; its text is shown.
        log_dirs_left: returns the number of log directories that are online.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        network_answers: Callable[[float], Awaitable[bool]],
        progress: Callable[[], object],
        log_dirs_left: Callable[[], int],
    ) -> None:
        self.phase = Phase.STARTING
        self._loop = loop
        self._network_answers = network_answers
        self._progress = progress
        self._log_dirs_left = log_dirs_left
        self._check: Future[bool] | None = None
        self._asked_s = 0.0

    def not_alive(self) -> str | None:
        """Return why the broker is not alive, None if it is. For one thread at a time.

        A check that the event loop has not answered is not repeated, so that checks do not queue
        up in it.
        """
        if self._check is None:
            self._asked_s = time.monotonic()
            self._check = asyncio.run_coroutine_threadsafe(self._answer(), self._loop)
        check = self._check
        left_s = self._asked_s + ALIVE_S - time.monotonic()
        try:
            answers = check.result(max(left_s, 0))
        except TimeoutError:
            waited_s = time.monotonic() - self._asked_s
            return f"the event loop has not answered for {waited_s:.0f} s"
        except CancelledError:
            answers = True  # the broker has just stopped
        finally:
            if check.done():
                self._check = None
        return None if answers else f"a network thread has not answered for {NETWORK_S:.0f} s"

    async def _answer(self) -> bool:
        return self.phase is not Phase.RUNNING or await self._network_answers(NETWORK_S)

    def not_ready(self) -> str | None:
        """Return why the broker is not ready, None if it is."""
        if self.phase is Phase.STARTING:
            return f"starting: {self._progress()}"
        if self.phase is Phase.STOPPING:
            return "stopping"
        return None if self._log_dirs_left() else "no log directory is online"
