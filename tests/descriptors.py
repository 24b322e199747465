"""What this process has open, and how it gets by with less."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def links() -> list[str]:
    """Return what each descriptor is of, as the kernel tells it."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that lists them
            found.append(str(link.readlink()))
    return found


def open_at(path: Path) -> list[str]:
    """Return the names of the files that are open at or below a path, removed ones too."""
    files = [Path(link.removesuffix(" (deleted)")) for link in links()]
    return sorted(file.name for file in files if file.is_relative_to(path))


@contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """Let the process open so many files more, and no others.

    Garbage of earlier tests may hold sockets. It is collected before, and none is meanwhile.
    """
    gc.collect()
    gc.disable()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = []  # for the lower numbers, which would be free besides
    while (fd := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)) <= highest:
        fillers.append(fd)
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        gc.enable()
        for fd in fillers:
            os.close(fd)
