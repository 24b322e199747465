"""The log directories of a stopped broker, for the commands that write to them.

Owns the locks while a command runs, and gives the files that it creates to the owner of the
directory. Never decides what to write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from plog.cluster import store_copy
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.known_log_dirs import FoundLogDirs
from plog.cluster.store import Store
from plog.runtime.clock import SystemClock
from plog.storage.log_dir import LOCK_FILE


@contextmanager
def held(found: FoundLogDirs) -> Iterator[FoundLogDirs]:
    """Yield locked log directories; unlock them after the block."""
    with ExitStack() as undo:
        undo.callback(found.unlock)
        undo.callback(_give_to_owners, [log_dir.path for log_dir in found.locked])
        yield found


@contextmanager
def opened_store(directories: Sequence[Path]) -> Iterator[Store]:
    """Open the store of locked log directories for the length of a block.

    Raises:
        StoreError: no directory can store it, or no copy is whole.
    """
    store = EmbeddedStore(directories, clock=SystemClock(), refill=False)
    try:
        yield store
    finally:
        store.close()


def _give_to_owners(paths: Sequence[Path]) -> None:
    """Give the files that root has created here to the owner of the directory.

    Skip everything else than plain files of root with one link: this command did not create them,
    and a link may point anywhere.
    """
    if os.geteuid() != 0:
        return
    for path in paths:
        owner = path.stat()
        for file in [*path.glob(LOCK_FILE), *path.glob(store_copy.FILES)]:
            with suppress(OSError), _opened(file) as fd:
                found = os.fstat(fd)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid == 0:
                    os.fchown(fd, owner.st_uid, owner.st_gid)


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
