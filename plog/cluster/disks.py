"""Tracks which log directories' disks are slow, and has the threads that wait for them.

Owns a mark for each directory, which reactors and handlers share and every append updates, and a
thread for each directory, in which handlers append and read when that would block the event loop.
Decides which calls run in that thread, never what they do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
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
"""How long a disk counts as slow after a slow write, if there are several disks. Otherwise one that
is slow now and then would block a reactor each time."""


class Disks:
    """The disks below the log directories. Thread-safe.

    Args:
        several: there are several disks, and a slow one must not delay clients of the others.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self._lock = threading.Lock()
        self._workers: dict[Path, WorkThread] = {}
        self._threads: dict[Path, ThreadPoolExecutor] = {}

    def worker(self, log_dir: Path) -> WorkThread:
        """Return the mark of a directory, with the fast path's queue for it."""
        found = self._workers.get(log_dir)
        if found is None:
            with self._lock:
                made = WorkThread(steady_us=STEADY_US if self._several else 0)
                found = self._workers.setdefault(log_dir, made)
        return found

    def is_slow(self, log_dir: Path) -> bool:
        """Return whether a directory's disk counts as slow.

        Each of several disks does until it has proved fast.
        """
        return self.worker(log_dir).is_slow

    def counts_as_slow(self, log_dir: Path) -> bool:
        """Return what `is_slow` would, without creating a mark for the directory."""
        found = self._workers.get(log_dir)
        return self._several if found is None else found.is_slow

    def note_append(self, log_dir: Path, took_us: int) -> None:
        """Record how long an append took."""
        self.worker(log_dir).note_time(took_us)

    async def in_thread(
        self, log_dir: Path, call: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """Make a call that waits for a directory's disk, in that directory's thread.

        One call at a time per directory, so that a slow disk occupies only its own thread.
        """
        with self._lock:
            thread = self._threads.get(log_dir)
            if thread is None:
                thread = self._threads[log_dir] = ThreadPoolExecutor(1, f"disk {log_dir}")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(thread, partial(call, *arguments, **options))

    async def at_log(
        self,
        log: Log,
        call: Callable[[], T],
        *,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> T:
        """Make a short call that writes or locks a log, without blocking the event loop.

        It runs in the event loop, unless the disk is slow or another thread holds the log's lock:
        that thread may be waiting for the disk. Then it runs in the thread of the log's directory.
        There every call would cost as much again as an append (BENCHMARKS.md).

        Args:
            waiting: entered while the call is in the thread.
        """
        if not self.is_slow(log.log_dir) and log.try_hold():
            try:
                return call()
            finally:
                log.let_go()
        with waiting():
            return await self.in_thread(log.log_dir, call)

    def stop(self) -> None:
        """End the threads after their current calls; cancel the queued ones."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)
