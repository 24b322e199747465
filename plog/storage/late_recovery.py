"""Partitions that a start could not load for want of space or descriptors, tried again later.

Owns which they are, when each turn is due, and the thread that recovers them: that may read
whole logs, and the scheduler's other tasks make room meanwhile. What a recovery finds is
`log_loading`'s. Never decides whether a disk is full: it asks, and finds out.

Locks: `_lock` guards the list, and nothing is called while it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from plog.runtime.clock import Clock
from plog.storage.full_log_dirs import LOOK_MS
from plog.storage.live_log_dir import FoundPartition, LiveLogDir
from plog.types import TopicPartition

MOST_WAIT_MS = 60_000
"""How long a directory with some space is left alone, at most, that was not enough again and
again: each turn may read gigabytes."""


class LateRecovery:
    """The partitions of a broker that are still to be loaded; call `look` every LOOK_MS.

    Args:
        load: recovers one and has it served; False: space or descriptors were lacking again.
        done: called with each directory whose last one no longer waits, by one thread at a time,
            and perhaps more than once.
    """

    def __init__(
        self,
        clock: Clock,
        load: Callable[[LiveLogDir, FoundPartition], bool],
        done: Callable[[LiveLogDir], None],
    ) -> None:
        self._clock = clock
        self._load = load
        self._done = done
        self._lock = threading.Condition()
        self._telling = threading.Lock()  # a deletion may see the end, too, at the same time
        self._waiting: dict[TopicPartition, tuple[LiveLogDir, FoundPartition]] = {}
        self._at_work: TopicPartition | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._wait_ms: dict[LiveLogDir, int] = {}
        self._due_ms: dict[LiveLogDir, int] = {}

    def add(self, live: LiveLogDir, partition: FoundPartition) -> None:
        """Have a partition recovered when there is space for it, and descriptors."""
        with self._lock:
            self._waiting[partition.topic_partition] = live, partition

    def look(self) -> None:
        """Begin with the directories that have space, if any has and descriptors are left.

        Returns at once.
        """
        with self._lock:
            if self._stopped or self._thread is not None:
                return
            dirs = {live for live, _ in self._waiting.values()}
        now_ms = self._clock.monotonic_ms()
        due = [
            live
            for live in dirs
            if live.failure is None and self._due_ms.get(live, now_ms) <= now_ms
            if live.has_space()
        ]
        if due:
            self._thread = threading.Thread(
                target=self._run, args=(due,), name="late recovery", daemon=True
            )
            self._thread.start()

    @contextmanager
    def without(self, tp: TopicPartition) -> Iterator[None]:
        """Leave a partition alone for ever: it is to be deleted. Waits while it is at work."""
        with self._lock:
            waited = self._waiting.pop(tp, None)
            while self._at_work == tp:
                self._lock.wait()
        yield
        if waited is not None:
            self._tell_if_done(waited[0])

    def wait(self) -> None:
        """Wait until what `look` has begun is over."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def stop(self) -> None:
        """Begin nothing more, and wait for the partition that is at work."""
        with self._lock:
            self._stopped = True
        self.wait()

    def _run(self, dirs: list[LiveLogDir]) -> None:
        try:
            for live in dirs:
                self._recover(live)
        finally:
            self._thread = None

    def _recover(self, live: LiveLogDir) -> None:
        """Recover what a directory has, until space or descriptors are lacking again."""
        for tp in list(self._waiting):
            with self._lock:
                turn = self._waiting.get(tp)
                if turn is None or turn[0] is not live or self._stopped:
                    continue
                self._at_work = tp
            is_over = False
            try:
                is_over = self._load(live, turn[1])
            finally:
                with self._lock:
                    self._at_work = None
                    self._waiting.pop(tp, None)
                    if not is_over:
                        self._waiting[tp] = turn  # the last one: others may need less
                    self._lock.notify_all()
            if not is_over:
                wait_ms = min(2 * self._wait_ms.get(live, LOOK_MS // 2), MOST_WAIT_MS)
                self._wait_ms[live] = wait_ms
                self._due_ms[live] = self._clock.monotonic_ms() + wait_ms
                return
        self._wait_ms.pop(live, None)
        self._tell_if_done(live)

    def _tell_if_done(self, live: LiveLogDir) -> None:
        with self._lock:
            if any(other is live for other, _ in self._waiting.values()):
                return
        with self._telling:
            self._done(live)
