"""The only access of Python storage code to the disk.

Owns no state and no policy: every method is one operation, or a fixed sequence of steps
(`replace_text`). Reads, writes and syncs use the kernels' table of file calls, so that injected
faults and the durability journal see them. Operations on names (open, rename, unlink, ...) belong
to this class, so that a test can fail or crash at the Nth of them. Never interprets errors, except
that a failed sync never looks like an operation that can be tried again.

Everything raises OSError.
"""

from __future__ import annotations

import errno
import os
import resource
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from plog._native import files
from plog.types import Buffer

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""A random id that the kernel generates at each boot."""
DEV_NULL = Path(os.devnull)
SPACE_BYTES = 1 << 20
"""Less free space counts as none: a segment's indexes need more."""


class Space(NamedTuple):
    """Free space of a file system."""

    free_bytes: int  # for users other than root
    total_bytes: int


ENDLESS = Space(1 << 62, 1 << 62)
"""The space of a file system that does not report it (ramfs, some network ones)."""


@contextmanager
def _final() -> Iterator[None]:
    """Raise EIO for a failed sync that seems to lack a descriptor or memory: pages may be lost."""
    try:
        yield
    except OSError as error:
        if error.errno in files.NO_RESOURCES:
            raise OSError(errno.EIO, f"sync: {error.strerror}") from error
        raise


def _are_closed(numbers: range) -> bool:
    """Return whether none of these descriptors is open."""
    poll = select.poll()
    for number in numbers:
        poll.register(number, 0)
    events = poll.poll(0)
    return all(event == select.POLLNVAL for _, event in events) and len(events) == len(numbers)


def _can_take(fd: int, count: int) -> bool:
    taken: list[int] = []
    try:
        while len(taken) < count:
            taken.append(os.dup(fd))
    except OSError as error:
        if error.errno not in files.NO_DESCRIPTORS:
            raise
    for each in taken:
        os.close(each)
    return len(taken) == count


class Filesystem:
    """The operating system's files."""

    # -- bytes -------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        """Write all of `data` at `offset`."""
        files.pwrite(fd, data, offset)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""
        return files.pread(fd, size, offset)

    def fdatasync(self, fd: int) -> None:
        """Make the file's bytes and size durable. A failure is final, whatever its errno."""
        with _final():
            files.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Make the file or directory durable, metadata included. A failure is final."""
        with _final():
            files.fsync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        """Cut or extend the file to `size` bytes."""
        files.ftruncate(fd, size)

    def size_bytes(self, fd: int) -> int:
        """Return the file's length."""
        return os.fstat(fd).st_size

    # -- names -------------------------------------------------------------------------------

    def open_file(self, path: Path, *, create: bool = False, exclusive: bool = False) -> int:
        """Open for reading and writing, and return the descriptor; `exclusive` must create it."""
        flags = os.O_RDWR | os.O_CLOEXEC
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return os.open(path, flags, 0o644)

    def open_directory(self, path: Path) -> int:
        """Open a directory, to fsync it later."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Close a descriptor of `open_file` or `open_directory`."""
        os.close(fd)

    def list_directory(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory exists."""
        try:
            os.stat(path)
        except FileNotFoundError:
            return False
        return True

    def is_directory(self, path: Path) -> bool:
        """Return whether `path` is a directory."""
        return path.is_dir()

    def modified_ms(self, path: Path) -> int:
        """Return when the file was last written, in ms since 1970."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, ms: int) -> None:
        """Set a file's modification time."""
        os.utime(path, ns=(ms * 1_000_000, ms * 1_000_000))

    def make_directory(self, path: Path) -> None:
        """Create one directory; it must not exist."""
        os.mkdir(path, 0o755)

    def remove_directory(self, path: Path) -> None:
        """Remove one empty directory."""
        os.rmdir(path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename atomically, replacing `new`."""
        os.rename(old, new)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file's name."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def is_at(self, fd: int, path: Path) -> bool:
        """Return whether a path refers to an open file."""
        return os.path.samestat(os.fstat(fd), os.stat(path))

    def device(self, path: Path) -> int:
        """Return the number of the file system of `path`."""
        return os.stat(path).st_dev

    def space(self, path: Path) -> Space:
        """Return the free space on the file system of `path`."""
        found = os.statvfs(path)
        if not found.f_blocks:
            return ENDLESS
        return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    # -- descriptors -------------------------------------------------------------------------

    def leaves_free(self, fd: int, count: int) -> bool:
        """Return whether at least `count` descriptors are left besides `fd`, a new one.

        May take them for a moment to find out. Raises OSError.
        """
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return True
        if fd >= limit - count:  # the kernel assigns the lowest free number
            return False
        return _are_closed(range(limit - count, limit)) or _can_take(fd, count)

    def has_descriptors(self, count: int) -> bool:
        """Return whether `count` more files could be opened; opens one to find out."""
        try:
            with self.opened(DEV_NULL) as fd:
                return self.leaves_free(fd, count - 1)
        except OSError as error:
            return error.errno not in files.NO_DESCRIPTORS

    # -- the machine -------------------------------------------------------------------------

    def boot_id(self) -> str | None:
        """Return the id of this boot; None if the kernel does not report it."""
        try:
            return BOOT_ID.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None

    # -- combinations -----------------------------------------------------------------------

    @contextmanager
    def opened(self, path: Path, *, create: bool = False, exclusive: bool = False) -> Iterator[int]:
        """`open_file` for the length of a block."""
        fd = self.open_file(path, create=create, exclusive=exclusive)
        try:
            yield fd
        finally:
            self.close(fd)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = self.open_directory(path)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def read_bytes(self, path: Path) -> bytes:
        """Read a small file whole."""
        with self.opened(path) as fd:
            return self.pread(fd, self.size_bytes(fd), 0)

    def write_bytes(self, path: Path, data: Buffer, *, sync: bool = True) -> None:
        """Overwrite a file in place; only for names that are not read before a rename."""
        with self.opened(path, create=True) as fd:
            self.ftruncate(fd, 0)
            self.pwrite(fd, data, 0)
            if sync:
                self.fsync(fd)

    def replace_bytes(self, path: Path, data: Buffer) -> None:
        """Replace a small file atomically: after a crash it has the old or the new content.

        As in Kafka: write and fsync ``<name>.tmp``, rename, fsync the directory.
        """
        self.rename_into_place(path, data)
        self.sync_directory(path.parent)

    def rename_into_place(self, path: Path, data: Buffer, *, sync: bool = True) -> None:
        """`replace_bytes` for callers that sync the directory later.

        Without `sync` the file itself is not synced either, and a power cut may leave any content.
        Use that only for derived data whose damage is detected.
        """
        temporary = path.with_name(path.name + ".tmp")
        self.write_bytes(temporary, data, sync=sync)
        self.rename(temporary, path)

    def read_text(self, path: Path) -> str:
        """Read a small UTF-8 file; other bytes become U+FFFD, for a parser to refuse."""
        return self.read_bytes(path).decode("utf-8", errors="replace")

    def replace_text(self, path: Path, text: str) -> None:
        """`replace_bytes` of UTF-8 text."""
        self.replace_bytes(path, text.encode("utf-8"))

    def remove_tree(self, path: Path) -> None:
        """Remove a partition directory and its contents, without following links."""
        for name in self.list_directory(path):
            inner = path / name
            if self.is_directory(inner) and not inner.is_symlink():
                self.remove_tree(inner)
            else:
                self.unlink(inner, missing_ok=True)
        self.remove_directory(path)
