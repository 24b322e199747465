"""What a log asks of whoever owns it: to run things later, and to hear of failures.

Owns nothing; types. `LogManager` is the owner; tests have simpler ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from plog.storage.log import Log


class LogOwner(Protocol):
    """The log manager, as a log sees it. May be called with the log's lock held."""

    def commit(self, log: Log, done: Callable[[OSError | None], None]) -> None:
        """Flush the log soon, and again while there is no descriptor for it."""

    def soon(self, log: Log, task: Callable[[], None]) -> None:
        """Run a task that touches the log's files, on another thread."""

    def remove_later(self, log: Log, paths: Sequence[Path], delay_ms: int) -> None:
        """Unlink files that have been renamed out of the way, after a delay."""

    def lower_recovery_point(self, log: Log, offset: int) -> None:
        """Make durable that the log may end at `offset`, before it is truncated. Raises OSError."""

    def allow_gaps(self, log: Log, end: int) -> None:
        """Make durable that batches may be missing below an offset, before any goes.

        Raises OSError.
        """

    def on_io_error(self, log: Log, error: OSError) -> None:
        """Take the log directory offline: its disk has failed."""

    def on_disk_full(self, log: Log, error: OSError) -> None:
        """Take note that a write was refused: the log directory's disk is full."""

    def on_no_descriptor(self, log: Log) -> None:
        """Take note that something was refused for want of a descriptor."""

    def on_damage(self, log: Log, reason: str) -> None:
        """Take the partition offline: its bytes are not what was written."""


def report_nothing(error: OSError | None) -> None:
    """For commits that nobody waits for: the owner hears of a failure anyway."""
