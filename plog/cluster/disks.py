"""Which log directories' disks are slow just now, and the threads that wait for them.

Owns a mark for each directory, which both planes see and which every append moves, and
a thread for each where the handlers append and read what would keep the event loop from
its other clients. Decides which calls on logs those are, never what is done there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from plog._native.work_queue import WorkThread
from plog.storage.log import Log

P = ParamSpec("P")
T = TypeVar("T")

STEADY_US = 10_000_000
"""One of several disks that is slow now and then would keep a reactor waiting each time, if it were
called fast again at once."""


class Disks:
    """The disks below the log directories. Thread-safe.

    Args:
        several: there is more than one, and none may keep the clients of another waiting.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self._lock = threading.Lock()
        self._workers: dict[Path, WorkThread] = {}
        self._threads: dict[Path, ThreadPoolExecutor] = {}

    def worker(self, log_dir: Path) -> WorkThread:
        """Return the mark of a directory, with the queue that the fast path has for it."""
        found = self._workers.get(log_dir)
        if found is None:
            with self._lock:
                made = WorkThread(steady_us=STEADY_US if self._several else 0)
                found = self._workers.setdefault(log_dir, made)
        return found

    def is_slow(self, log_dir: Path) -> bool:
        """Tell whether a directory's disk has made somebody wait just now.

        One of several also until it has shown that it does not.
        """
        return self.worker(log_dir).is_slow

    def counts_as_slow(self, log_dir: Path) -> bool:
        """Tell what `is_slow` would, for those who only look: nothing is made for a directory."""
        found = self._workers.get(log_dir)
        return self._several if found is None else found.is_slow

    def note_append(self, log_dir: Path, took_us: int) -> None:
        """Take note of how long an append took."""
        self.worker(log_dir).note_time(took_us)

    async def in_thread(
        self, log_dir: Path, call: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Make a call that waits for a directory's disk beside the event loop.

        One at a time: it is one disk, and other directories' calls must find threads too.
        """
        with self._lock:
            thread = self._threads.get(log_dir)
            if thread is None:
                thread = self._threads[log_dir] = ThreadPoolExecutor(1, f"disk {log_dir}")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(thread, partial(call, *arguments, **options))

    def slow_among(self, logs: Iterable[Log]) -> Path | None:
        """Return the directory of the first log whose disk is slow; None: of none it is."""
        return next((log.log_dir for log in logs if self.is_slow(log.log_dir)), None)

    async def at_logs(
        self,
        logs: Sequence[Log],
        call: Callable[[], T],
        *,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> T:
        """Make a short call that writes logs, or takes their locks, where it keeps nobody waiting.

        That is in the event loop, unless a disk is slow or somebody else has a log's lock, who may
        be waiting for any disk; then in the thread of that log's directory.

        Args:
            waiting: entered while the call is in the thread.
        """
        place = self.slow_among(logs)
        if place is None:
            held, place = _hold(logs)
            try:
                if place is None:
                    return call()
            finally:
                for log in held:
                    log.let_go()
        with waiting():
            return await self.in_thread(place, call)

    def stop(self) -> None:
        """End the threads, after what they are at."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)


def _hold(logs: Iterable[Log]) -> tuple[list[Log], Path | None]:
    """Hold logs up to the first that somebody else changes; return those, and its directory."""
    held: list[Log] = []
    for log in logs:
        if not log.try_hold():
            return held, log.log_dir
        held.append(log)
    return held, None
