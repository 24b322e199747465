"""What an error of a log's files means: for the caller, for the partition, for the disk.

Owns which method of the owner is called, and the error that is raised instead. A full disk and a
want of descriptors or memory refuse the operation. Damaged bytes, and a path that is not the file
that it should be, take the partition offline. Any other error means that the disk has failed, and
takes its log directory offline. Never takes anything offline itself: the owner does. What an errno
means is `file_errors`'.

Takes no lock: the data path and callbacks may hold any lock when they come here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plog._native.files import NO_RESOURCES
from plog.errors import CorruptRecord, KafkaStorageError
from plog.storage.file_errors import (
    DISK_FULL,
    PATH_FAULTS,
    is_path_fault_of_partition,
)
from plog.storage.log_owner import LogOwner

if TYPE_CHECKING:
    from plog.storage.log import Log


def is_of_full_disk(failure: BaseException) -> bool:
    """Tell whether the cause of a failure is a full disk, which its log directory has reported."""
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
        """Tell the owner that the disk has failed, or that the partition's path is wrong.

        Once the log is offline for another reason, or has moved, its errors say nothing about the
        disk. A want of descriptors or memory never does.
        """
        if self._silent or error.errno in NO_RESOURCES:
            return
        if self._is_path_fault(error):
            self._owner.on_damage(self._log, f"{self._log.directory}: {error}")
        else:
            self._owner.on_io_error(self._log, error)

    def _is_path_fault(self, error: OSError) -> bool:
        if error.filename is None:  # the kernels open no path but the partition's directory
            return error.errno in PATH_FAULTS
        return is_path_fault_of_partition(error, self._log.log_dir)

    def failed(self, error: OSError) -> KafkaStorageError:
        """Tell the owner what kind of error it is; return what to raise."""
        if error.errno in DISK_FULL:
            self._owner.on_disk_full(self._log, error)
        elif error.errno in NO_RESOURCES:
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
