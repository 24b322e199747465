"""The mark of a replica that may lack records, and has not copied all of a leader since.

Such a log must not lead: what it lacks may be acknowledged. The mark is a file in the partition's
directory, durable before the log takes a record.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Final

from plog.storage.filesystem import Filesystem


class Lack(Enum):
    """Why a replica may lack records. The values are the names of the marks."""

    LOST_LOG = "incomplete-replica"
    """Another log is in the place of the one that was here."""
    UNCLEAN_STOP = "unclean-stop"
    """The machine has stopped without a clean shutdown, and acknowledged records were in its page
    cache alone (flush.before.ack=false, KIP-966). Without other replicas nothing else is left."""

    @property
    def reason(self) -> str:
        """Why the replica does not lead."""
        return REASONS[self]


HOW_TO_LEAD: Final = "unclean.leader.election.enable=true of the topic lets it lead"
REASONS: Final = {
    Lack.LOST_LOG: (
        f"lost its log, and has not copied all records of a leader since; {HOW_TO_LEAD}"
    ),
    Lack.UNCLEAN_STOP: (
        "may lack records, for the machine stopped without a clean shutdown and"
        f" flush.before.ack=false; {HOW_TO_LEAD}"
    ),
}
TEXTS: Final = {
    Lack.LOST_LOG: (
        "This replica lost its log. The records here were copied from the leader since then, and"
        " some may be missing. plog removes this file when all are here.\n"
    ),
    Lack.UNCLEAN_STOP: (
        "The machine stopped without a clean shutdown, and flush.before.ack is false: records that"
        " were acknowledged may be missing here. plog removes this file when all are here.\n"
    ),
}


def mark_incomplete(fs: Filesystem, directory: Path, lack: Lack = Lack.LOST_LOG) -> None:
    """Write the mark. Its name is durable once the directory is synced. Raises OSError."""
    fs.rename_into_place(directory / lack.value, TEXTS[lack].encode())


def lack_of(fs: Filesystem, directory: Path) -> Lack | None:
    """Return what a partition's directory is marked with."""
    return next((lack for lack in Lack if fs.exists(directory / lack.value)), None)


def mark_complete(fs: Filesystem, directory: Path) -> None:
    """Remove the marks. After a power cut they may be there again, which costs nothing."""
    for lack in Lack:
        fs.unlink(directory / lack.value, missing_ok=True)
