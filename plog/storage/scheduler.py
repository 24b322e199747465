"""Runs storage's background tasks, one after the other, on one thread.

Owns when a task runs. Never decides what it does, and runs nothing at the same time as
another task, so that checkpoints, retention and deletions need no locks between them.
Tasks handle what they expect; one that raises all the same is logged with its traceback,
and the others go on: a broker without retention or checkpoints is worse off.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable

from plog.runtime.clock import Clock

log = logging.getLogger(__name__)

Task = Callable[[], object]
SECOND_MS = 1_000


class Scheduler:
    """A queue of tasks by time. `start` gives it a thread; tests may call `run_due` instead."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._condition = threading.Condition()
        self._queue: list[tuple[int, int, Task]] = []
        self._number = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    def soon(self, task: Task) -> None:
        """Run `task` as soon as the thread is free."""
        self.after(0, task)

    def after(self, delay_ms: int, task: Task) -> None:
        """Run `task` once, no earlier than `delay_ms` from now."""
        self._add(self._clock.monotonic_ms() + delay_ms, task)

    def every(self, interval_ms: int, task: Task, *, first_ms: int | None = None) -> None:
        """Run `task` again and again, `interval_ms` after the end of its last run.

        Intervals of a second and more end up to a second earlier, when the clock is at a full one:
        an idle broker wakes up once for all that is due in a second.

        Args:
            first_ms: from now to its first run; `interval_ms` if it is left out.
        """

        def again() -> None:
            try:
                task()
            finally:
                due_ms = self._clock.monotonic_ms() + interval_ms
                whole_ms = due_ms - due_ms % SECOND_MS
                self._add(due_ms if interval_ms < SECOND_MS else whole_ms, again)

        self.after(interval_ms if first_ms is None else first_ms, again)

    def run_due(self) -> int:
        """Run every task that is due, on this thread; return how many."""
        count = 0
        while (task := self._take_due()) is not None:
            try:
                task()
            except Exception:
                # Deliberately broad, and here alone: nobody else would start the thread again.
                log.exception("%s: a task failed", self._name)
            count += 1
        return count

    def start(self) -> None:
        """Run tasks on a thread from now on."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the task it is at; what is queued is forgotten."""
        with self._condition:
            self._stopped = True
            self._queue.clear()
            self._condition.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _add(self, due_ms: int, task: Task) -> None:
        with self._condition:
            self._number += 1
            heapq.heappush(self._queue, (due_ms, self._number, task))
            self._condition.notify()

    def _take_due(self) -> Task | None:
        with self._condition:
            if self._queue and self._queue[0][0] <= self._clock.monotonic_ms():
                return heapq.heappop(self._queue)[2]
        return None

    def _run(self) -> None:
        while True:
            self.run_due()
            with self._condition:
                if self._stopped:
                    return
                timeout = None
                if self._queue:
                    timeout = (self._queue[0][0] - self._clock.monotonic_ms()) / 1000
                if timeout is None or timeout > 0:
                    self._condition.wait(timeout)
