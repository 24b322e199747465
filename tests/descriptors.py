"""What this process has open."""

from __future__ import annotations

from contextlib import suppress
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
