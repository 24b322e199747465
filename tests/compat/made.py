"""What tests have made when it is first wanted, and keep in .venv: programs, and old releases."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def made_once(directory: Path, make: Callable[[Path], None]) -> Path:
    """Return a directory; it is filled by `make` the first time, and has its name once it is whole.

    Of several that want it at once one makes it. Those of one parent directory are made one after
    another: what makes them may share a cache that bears no more.
    """
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.is_dir():
            return directory
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        try:
            make(made)
            made.rename(directory)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return directory
