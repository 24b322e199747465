"""Which log directories' disks are full, and how much clients may write to the others.

Owns the reserve, one for each file system: what clients' records leave free is for whatever
gives space back, which has to write first (renames, leader epochs, checkpoints, the
coordination store), and for a start. Owns also what is said of it: once that a directory
takes no records, and later that it does again. Never refuses a write itself (the append
does, when there is no room), and a full disk never takes a directory offline: reads,
retention and deletions go on.

Locks: `_lock` guards what is known of them, and nothing is called while it is held: logs tell of a
refused write with their own lock held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from plog._native.disk_room import DiskRoom
from plog.storage.filesystem import Filesystem
from plog.storage.live_log_dir import LiveLogDir

_log = logging.getLogger(__name__)

LOOK_MS = 1_000
RESERVE_SHARE = 10
"""The reserve is this part of a disk at most: a small one must hold records too."""
ENOUGH_SHARE = 4
ENOUGH_BYTES = 1 << 20
"""A full disk has space again when this part of the reserve, and so much, is free beside it: else
records and refusals would take turns."""


def share_rooms(dirs: Iterable[LiveLogDir], fs: Filesystem) -> None:
    """Have the log directories of one file system take of one room; before any log is loaded."""
    rooms: dict[int, DiskRoom] = {}
    for live in dirs:
        try:
            live.room = rooms.setdefault(fs.device(live.path), live.room)
        except OSError as error:
            live.note(error)


class FullLogDirs:
    """The full ones among a broker's log directories; `look` is to be called every LOOK_MS."""

    def __init__(self, reserve_bytes: int) -> None:
        self._reserve_bytes = reserve_bytes
        self._lock = threading.Lock()
        # Directories whose disk is full, with its room, and those where that was noticed since
        # the last look.
        self._full: dict[Path, DiskRoom] = {}
        self._refused: set[Path] = set()

    def look(self, live: LiveLogDir) -> None:
        """Say how much clients may write to a directory until the next look."""
        try:
            free_bytes, disk_bytes = live.space()
        except OSError as error:
            live.note(error)
            return
        reserve = min(self._reserve_bytes, disk_bytes // RESERVE_SHARE)
        with self._lock:
            was_full = live.path in self._full
            is_short = live.room in self._full.values()  # or its neighbour was
            refused = live.path in self._refused
            self._refused.discard(live.path)
        enough = reserve + (max(reserve // ENOUGH_SHARE, ENOUGH_BYTES) if is_short else 0)
        live.room.left = free_bytes - reserve if free_bytes >= enough else 0
        if was_full and free_bytes >= enough and not refused:
            with self._lock:
                del self._full[live.path]
            _log.info("log directory %s has space again, no writes are refused", live.path)

    def on_refused_write(self, live: LiveLogDir, error: OSError) -> None:
        """Log once that the directory is full, and later that it has space again."""
        with self._lock:
            begins = live.path not in self._full
            self._full[live.path] = live.room
            self._refused.add(live.path)
            live.refused_writes += 1
        if begins:
            _log.error(
                "log directory %s is full, writes are refused (log.dir.reserve.bytes is"
                " reserved for retention and deletions): %s",
                live.path,
                error,
            )
