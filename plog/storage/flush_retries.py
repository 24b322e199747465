"""Flushes that there was no descriptor for, tried again until there is one.

Owns which logs wait for that, and who waits for them. Nothing of such a log is lost, so
that its clients wait on, until it is flushed or their time is over. Never decides what
a failed flush means.

Locks: `_lock` guards the list, and nothing is called while it is held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from plog.storage.group_commit import Done
from plog.storage.log import Log
from plog.storage.scheduler import Scheduler

_log = logging.getLogger(__name__)

RETRY_MS = 1_000


class FlushRetries:
    """The logs of a broker that wait for another flush; `commit` asks for it."""

    def __init__(self, scheduler: Scheduler, commit: Callable[[Log, Done], None]) -> None:
        self._scheduler = scheduler
        self._commit = commit
        self._lock = threading.Lock()
        self._waiting: list[tuple[Log, Done]] = []

    def add(self, log: Log, done: Done, error: OSError) -> None:
        """Have a log flushed again in a second; say so once for all that wait for that."""
        with self._lock:
            begins = not self._waiting
            self._waiting.append((log, done))
        if begins:
            _log.error(
                "%s (there may be more) cannot be flushed yet: %s", log.topic_partition, error
            )
            self._scheduler.after(RETRY_MS, self._try_again)

    def _try_again(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for log, done in waiting:
            self._commit(log, done)
