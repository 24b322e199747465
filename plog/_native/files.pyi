from typing import Final

from plog.types import Buffer

NO_DESCRIPTORS: Final[frozenset[int]]
"""EMFILE and ENFILE: the process or the host has no file descriptor left."""
NO_RESOURCES: Final[frozenset[int]]
"""The process or the host lacks a descriptor or memory. ENOMEM also means too many mapped files.

Of a sync that fails none of this is known: `Filesystem` and the kernels report EIO then.
"""

# The same table for Python's storage code (storage/filesystem.py is its only caller). All release
# the interpreter lock and raise OSError.

def pwrite(fd: int, data: Buffer, offset: int) -> None:
    """Write all of `data`."""

def pread(fd: int, size: int, offset: int) -> bytes:
    """Read up to `size` bytes; fewer only at the end of the file."""

def fdatasync(fd: int) -> None: ...
def fsync(fd: int) -> None: ...
def ftruncate(fd: int, size: int) -> None: ...
def now_ms() -> int: ...
