"""What the errno of a failed file operation says about the disk, and about one partition's files.

Owns the classes of errors, for all of storage. Never decides what happens next: the caller
refuses a request, takes a partition offline, or takes a log directory offline.

An error that is in none of the classes means that the disk has failed.
"""

from __future__ import annotations

import errno
from pathlib import Path

from plog._native.files import NO_RESOURCES
from plog.storage.segment_files import parse_directory_name

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The disk has no room. It works, and takes writes again when there is some."""
REFUSALS = DISK_FULL | NO_RESOURCES
"""The operation can be done later. Nothing is wrong with the disk or with its files."""
PATH_FAULTS = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EPERM,
    }
)
"""Something is wrong with the path: a file is a directory, is missing, or has another owner."""


def is_refusal(error: OSError) -> bool:
    """Tell whether the operation can be done later: for want of space, descriptors or memory."""
    return error.errno in REFUSALS


def is_path_fault_of_partition(error: OSError, log_dir: Path) -> bool:
    """Tell whether an error concerns only the files of one partition of a log directory."""
    if error.errno not in PATH_FAULTS:
        return False
    for name in (error.filename, error.filename2):
        if not isinstance(name, str | Path):
            continue
        path = Path(name)
        if path.is_relative_to(log_dir) and path != log_dir:
            return parse_directory_name(path.relative_to(log_dir).parts[0]) is not None
    return False
