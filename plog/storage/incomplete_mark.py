"""The mark of a replica that has lost its log, and has not copied all records of a leader since.

Such a log must not lead: what it lacks may be acknowledged. The mark is a file in the partition's
directory, which is made with it and is durable before the first record.
"""

from __future__ import annotations

from pathlib import Path

from plog.storage.filesystem import Filesystem

INCOMPLETE_FILE = "incomplete-replica"
TEXT = (
    "This replica lost its log. The records here were copied from the leader since then, and some"
    " may be missing. plog removes this file when all are here.\n"
)


def mark_incomplete(fs: Filesystem, directory: Path) -> None:
    """Write the mark into a new directory, whose names are yet to be synced. Raises OSError."""
    fs.rename_into_place(directory / INCOMPLETE_FILE, TEXT.encode())


def is_incomplete(fs: Filesystem, directory: Path) -> bool:
    """Return whether a partition's directory has the mark."""
    return fs.exists(directory / INCOMPLETE_FILE)


def mark_complete(fs: Filesystem, directory: Path) -> None:
    """Remove the mark. After a power cut it may be there again, which costs nothing."""
    fs.unlink(directory / INCOMPLETE_FILE)
