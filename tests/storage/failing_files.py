"""File systems whose Nth operation fails, and how the sweeps over all operations use them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from plog.storage.filesystem import Filesystem

ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EIO, errno.ENOMEM)
TAKE_A_DESCRIPTOR = frozenset({"open_file", "open_directory", "list_directory"})
TAKE_SPACE = frozenset({"open_file", "pwrite", "ftruncate", "make_directory", "rename"})
SYNCS = frozenset({"fdatasync", "fsync"})
OPERATIONS = TAKE_A_DESCRIPTOR | frozenset(
    {
        *("pwrite", "pread", "fdatasync", "fsync", "ftruncate", "size_bytes", "exists"),
        *("modified_ms", "set_modified_ms", "make_directory", "remove_directory", "rename"),
        "unlink",
    }
)


class FailingFilesystem(Filesystem):
    """Fails at an operation, once or (`lasting`) from then on, while it is `armed`.

    Of a full disk only what may take space is counted, of a want of descriptors only what takes
    one, unless `everything` is. For these and for ENOMEM a sync is never counted: its failure is
    final whatever the errno.
    """

    def __init__(
        self, fail_at: int, error: int, *, lasting: bool = False, everything: bool = False
    ) -> None:
        self.count = 0
        self.failed: list[str] = []
        self._fail_at = fail_at
        self._error = error
        self._lasting = lasting
        self._armed = False
        self._counted = OPERATIONS
        if error in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            # A rename that has worked can be undone, so that none fails for ever.
            never = SYNCS | ({"rename"} if lasting else set())
            everything = everything or error == errno.ENOMEM
            self._counted = OPERATIONS - never if everything else TAKE_A_DESCRIPTOR
        elif error == errno.ENOSPC:
            self._counted = TAKE_SPACE

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Fail within a block."""
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in OPERATIONS or not self._armed or name not in self._counted:
            return found
        if name == "open_file" and self._error == errno.ENOSPC:
            return self._open_on_full_disk
        return self._counted_call(name, found)

    def _open_on_full_disk(self, path: Path, **options: bool) -> int:
        opens: Callable[..., int] = super().open_file
        if any(options.values()) and not os.path.lexists(path):  # only a new file takes space
            opens = self._counted_call("open_file", opens)
        return opens(path, **options)

    def _counted_call(self, name: str, found: Callable[..., Any]) -> Callable[..., Any]:
        number, self.count = self.count, self.count + 1
        if number == self._fail_at or (self._lasting and number > self._fail_at >= 0):

            def fails(*args: object, **options: object) -> NoReturn:
                self.failed.append(name)
                path = next((str(one) for one in args if isinstance(one, Path)), None)
                raise OSError(self._error, os.strerror(self._error), path)

            return fails
        return found
