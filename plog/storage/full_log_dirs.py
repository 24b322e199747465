"""Which log directories' disks are full.

Owns what has been said of it: once that a directory takes no writes, and later that it
does again. Never refuses a write itself, and a full disk never takes a directory
offline: reads, retention and deletions go on.

Locks: `_lock` guards the two sets, and nothing is called while it is held: logs tell of a
refused write with their own lock held.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path

from plog.storage.live_log_dir import LiveLogDir
from plog.storage.scheduler import Scheduler

_log = logging.getLogger(__name__)

FULL_CHECK_MS = 1_000


class FullLogDirs:
    """The full ones among a broker's log directories; the scheduler looks when that ends."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        # Directories whose disk is full, and those where that was noticed since the last look.
        self._full: set[Path] = set()
        self._refused: set[Path] = set()

    def on_refused_write(self, live: LiveLogDir, error: OSError) -> None:
        """Say once that the directory takes no writes, and later that it does again."""
        with self._lock:
            begins = live.path not in self._full
            self._full.add(live.path)
            self._refused.add(live.path)
        if begins:
            _log.error("log directory %s is full, writes are refused: %s", live.path, error)
            self._scheduler.after(FULL_CHECK_MS, partial(self._look, live))

    def _look(self, live: LiveLogDir) -> None:
        if live.failure is not None:
            return
        with self._lock:
            refused = live.path in self._refused
            self._refused.discard(live.path)
        if not refused and live.has_space():
            with self._lock:
                self._full.discard(live.path)
            _log.info("log directory %s has space again, no writes are refused", live.path)
        else:
            self._scheduler.after(FULL_CHECK_MS, partial(self._look, live))
