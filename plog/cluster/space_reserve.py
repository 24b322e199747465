"""Space on a disk that is kept for the coordination store alone.

Owns one file of bytes that mean nothing, in a log directory. A disk that clients have
filled up must still take a broker's registration, or the broker cannot start and its
retention can never free anything. The file is given up in steps, so that the logs beside
it take no more than one of them. Never decides when the disk is full.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

FILE_NAME = "plog-store.reserve"
RESERVE_BYTES = 1 << 20
STEP_BYTES = 128 << 10
"""More than a transaction of the store usually takes, and little for the logs to win."""
ROOM_BYTES = 4 * RESERVE_BYTES
"""How much must be free before the reserve is filled (again)."""


class SpaceReserve:
    """The reserve of one directory. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._bytes = self._found_bytes()

    def _found_bytes(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

    def fill(self) -> None:
        """Make the reserve whole if it is not and the disk has room.

        It is worth having, not needing: an error is logged, and tried again at the next call.
        """
        if self._bytes >= RESERVE_BYTES:
            return
        try:
            disk = os.statvfs(self._path.parent)
            if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
                return
            with self._path.open("ab", buffering=0) as file:
                # Random bytes: some file systems keep zeros, or what repeats, in no space at all.
                data = memoryview(os.urandom(RESERVE_BYTES - self._bytes))
                while data:
                    data = data[file.write(data) :]
        except OSError as error:
            log.warning("cannot reserve space for the coordination store: %s", error)
        self._bytes = self._found_bytes()

    def give_up_a_step(self) -> bool:
        """Give some of the reserve back to the disk; tell whether there was any left."""
        if not self._bytes:
            return False
        left = max(0, self._bytes - STEP_BYTES)
        try:
            os.truncate(self._path, left)
        except OSError as error:
            log.warning("cannot release the space reserved for the coordination store: %s", error)
            return False
        log.warning(
            "%s is full: the coordination store uses its reserved space, %d bytes are left",
            self._path.parent,
            left,
        )
        self._bytes = left
        return True
