"""Directories in memory: there a sync costs nothing, which on a disk is most of what a log does."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 1 << 30
"""Containers may have less; then the directories are on the disk."""


@contextlib.contextmanager
def directory_in_memory() -> Iterator[Path]:
    """Make a directory that is removed at the end."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= LEAST_FREE_BYTES
    with tempfile.TemporaryDirectory(prefix="plog-", dir=MEMORY if has_room else None) as made:
        yield Path(made)
