"""A disk that keeps what was synced, and of the rest what it likes: power cuts of one directory.

`tests/crash/power_cut` cuts whole brokers at moments that come by chance; this one a log, at every
step that it takes, and what was removed or replaced may come back.
"""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path
from typing import NamedTuple

from .storage_logs import FaultyFilesystem


class _Change(NamedTuple):
    """A file was made (`old` is None), renamed, or removed (`new` is None)."""

    file: int
    old: str | None
    new: str | None


class LosingFilesystem(FaultyFilesystem):
    """Knows what of a directory is on disk for certain; `left` is what may be there after a cut.

    Of a file those are its bytes of the last sync. Changes of names that no sync of the directory
    has followed are there or not, each for itself: nobody promises their order. What kernels write
    and sync does not come by here: `settle` has everything on disk.
    """

    def __init__(self, directory: Path, *, fail_at: int = -1) -> None:
        super().__init__(fail_at, crash=True)
        self.directory = directory
        self._numbers: dict[int, int] = {}  # by inode, which others get when a file is gone
        self._synced: list[bytes] = []  # by a file's number
        self._names: dict[str, int] = {}
        self._changes: list[_Change] = []
        self.settle()

    def settle(self) -> None:
        """Have everything on disk as it is now."""
        self._names, self._changes = {}, []
        for path in self.directory.iterdir():
            self._names[path.name] = self._add(os.stat(path).st_ino, path.read_bytes())

    def is_on_disk(self, path: Path) -> bool:
        """Tell whether all bytes of a file are."""
        return self._synced[self._number(path)] == path.read_bytes()

    def left(self, chance: random.Random) -> dict[str, bytes]:
        """Return the files that may be there if the power goes now."""
        names = dict(self._names)
        kept = chance.choice([0.0, 0.5, 0.9, 1.0])
        for change in self._changes:
            if chance.random() < kept:
                _apply(names, change)
        return {name: self._synced[file] for name, file in names.items()}

    def open_file(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        is_new = (create or exclusive) and not self.exists(path)
        fd = super().open_file(path, create=create, exclusive=exclusive)
        if is_new:
            file = self._add(os.fstat(fd).st_ino, b"")
            self._changes.append(_Change(file, None, path.name))
        return fd

    def rename(self, old: Path, new: Path) -> None:
        file = self._number(old)
        super().rename(old, new)
        self._changes.append(_Change(file, old.name, new.name))

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        file = self._number(path) if self.exists(path) else None
        super().unlink(path, missing_ok=missing_ok)
        if file is not None:
            self._changes.append(_Change(file, path.name, None))

    def fsync(self, fd: int) -> None:
        super().fsync(fd)
        self._sync(fd)

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self._sync(fd)

    def _add(self, inode: int, data: bytes) -> int:
        self._numbers[inode] = len(self._synced)
        self._synced.append(data)
        return self._numbers[inode]

    def _number(self, path: Path) -> int:
        return self._numbers[os.stat(path).st_ino]

    def _sync(self, fd: int) -> None:
        found = os.fstat(fd)
        if not stat.S_ISDIR(found.st_mode):
            self._synced[self._numbers[found.st_ino]] = os.pread(fd, found.st_size, 0)
            return
        for change in self._changes:
            _apply(self._names, change)
        self._changes = []


def _apply(names: dict[str, int], change: _Change) -> None:
    file, old, new = change
    if new is None:
        if old is not None and names.get(old) == file:
            del names[old]
        return
    # A file has one name, also where an earlier change of it is lost.
    for name in [name for name, other in names.items() if other == file]:
        del names[name]
    names[new] = file
