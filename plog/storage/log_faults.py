"""What an error of a log's files means: for who asked, for the partition, for the disk.

Owns who is told of it, and the error that is raised instead: a full disk refuses the
write, a failed one takes its log directory offline, bytes that are not what was written
take the partition offline. Never takes anything offline itself: the owner does.

Takes no lock: the data path and callbacks come here with whatever they hold.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plog.errors import CorruptRecord, KafkaStorageError
from plog.storage.log_owner import LogOwner

if TYPE_CHECKING:
    from plog.storage.log import Log

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The one failure of a write that does not make the disk suspect."""
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""What the process lacks says nothing of the disk: only who asked is refused."""


def is_of_full_disk(failure: BaseException) -> bool:
    """Tell whether that is all that a failure is of: its log directory has told of it."""
    cause = failure.__cause__
    return isinstance(cause, OSError) and cause.errno in DISK_FULL


class LogFaults:
    """The faults of one log, told to its owner."""

    def __init__(self, log: Log, owner: LogOwner) -> None:
        self._log = log
        self._owner = owner
        self._silent = False

    def silence(self) -> None:
        """Say nothing of the disk from now on: the log is offline, or has moved."""
        self._silent = True

    def disk_failed(self, error: OSError) -> None:
        """Tell the owner that the log directory's disk has failed.

        Once the log is offline for another reason, or has moved, its errors say nothing of the
        disk; nor does a want of descriptors.
        """
        if not self._silent and error.errno not in NO_DESCRIPTORS:
            self._owner.on_io_error(self._log, error)

    def failed(self, error: OSError) -> KafkaStorageError:
        """Tell the owner of a failed or full disk, or of no descriptor; return what to raise."""
        if error.errno in DISK_FULL:
            self._owner.on_disk_full(self._log, error)
        elif error.errno in NO_DESCRIPTORS:
            self._owner.on_no_descriptor(self._log)
        else:
            self.disk_failed(error)
        failure = KafkaStorageError(f"{self._log.topic_partition}: {error}")
        failure.__cause__ = error  # by which a full disk is known
        return failure

    def of_errno(self, error: int) -> OSError:
        """Return what the struct met in the partition's directory as an error of Python's."""
        return OSError(error, os.strerror(error), str(self._log.directory))

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Turn what the files raise into KafkaStorageError, and tell the owner."""
        try:
            yield
        except CorruptRecord as error:
            raise self._damaged(error) from error
        except OSError as error:
            raise self.failed(error) from error

    def _damaged(self, error: CorruptRecord) -> KafkaStorageError:
        reason = f"{self._log.directory}: {error}"
        self._owner.on_damage(self._log, reason)
        return KafkaStorageError(f"{self._log.topic_partition} is damaged: {error}")
