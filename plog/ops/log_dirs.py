"""Which log directories a stopped broker has, which of them it misses, and the way to do without.

Owns what a directory's state is called, and when it may be forgotten: once it is missing,
and no broker runs; and how somebody looks who must change nothing. Reads the store and the
identities of directories; changes the store only, by what it forgets. Records are touched nowhere.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from plog.cluster.known_log_dirs import (
    FoundLogDirs,
    absent_partitions,
    find_known_log_dirs,
    forget_log_dirs,
    judge,
    known_broker_id,
    look_at_log_dirs,
    registered_log_dirs,
)
from plog.cluster.store import Store, StoreError
from plog.cluster.store_copy import FILE_NAME, StoreCopy
from plog.errors import PlogError
from plog.ops.stopped_broker import held, opened_store
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from plog.types import TopicPartition, uuid_to_text


class LogDirsError(PlogError):
    """No broker was here, or what is to be forgotten is not missing."""


class LogDirState(Enum):
    """What the next start will make of a log directory."""

    THERE = "there"
    NEW = "new"  # nothing is known of it
    UNREADABLE = "cannot be read"
    NOT_MOUNTED = "not mounted"  # its place is empty
    MISSING = "missing"  # its place is not in log.dirs, or another directory's


class KnownLogDir(NamedTuple):
    """One directory, of `log.dirs` or of the store."""

    path: Path
    directory_id: uuid.UUID | None  # None: it has none yet, or cannot be read
    state: LogDirState


class StoppedLogDirs:
    """The log directories of a broker that is stopped.

    It cannot be started meanwhile, unless they are those of `copied_log_dirs`.
    """

    def __init__(self, store: Store, broker_id: int, found: FoundLogDirs) -> None:
        self._store = store
        self._broker_id = broker_id
        self._found = found

    def known(self) -> list[KnownLogDir]:
        """Return the directories of `log.dirs`, in their order, and then those that are missing."""
        registered = registered_log_dirs(self._store, self._broker_id)
        missing, lost = judge(registered, self._found)
        told = self._found.told_ids()
        at_place = {place.resolve(): one for one, place in missing.items()}
        rows: list[KnownLogDir] = []
        for path in self._found.paths:
            if path in self._found.nobodys:
                directory_id = at_place.get(path.resolve())
                state = LogDirState.NEW if directory_id is None else LogDirState.NOT_MOUNTED
            elif path in told:
                directory_id = told[path] or lost.get(path)
                state = LogDirState.THERE if directory_id in registered else LogDirState.NEW
            else:
                directory_id, state = None, LogDirState.UNREADABLE
            rows.append(KnownLogDir(path, directory_id, state))
        shown = {row.directory_id for row in rows}
        elsewhere = [one for one in missing if one not in shown]
        return rows + [KnownLogDir(missing[one], one, LogDirState.MISSING) for one in elsewhere]

    def absent_partitions(self) -> list[TopicPartition]:
        """Return the partitions that are in none of the directories that are there."""
        return sorted(absent_partitions(self._store, self._broker_id, self._found))

    def find_missing(self, named: str) -> list[KnownLogDir]:
        """Return the missing directories of a path or an id.

        Raises:
            LogDirsError: there is none of that name, or it is there.
        """
        rows = [
            row
            for row in self.known()
            if (row.directory_id is not None and named == uuid_to_text(row.directory_id))
            or Path(named).absolute() == row.path
        ]
        missing = [
            row for row in rows if row.state in (LogDirState.NOT_MOUNTED, LogDirState.MISSING)
        ]
        if missing:
            return missing
        if not rows:
            raise LogDirsError(f"no log directory {named} is known here")
        if rows[0].state is LogDirState.UNREADABLE:
            raise LogDirsError(
                f"log directory {named} cannot be read, so that nobody knows which it is:"
                " take it out of log.dirs first"
            )
        raise LogDirsError(f"log directory {named} is there: only one that is missing is forgotten")

    def forget(self, missing: Sequence[KnownLogDir]) -> None:
        """Have the broker do without what `find_missing` returned. Raises StoreError."""
        gone = [row.directory_id for row in missing if row.directory_id is not None]
        forget_log_dirs(self._store, self._broker_id, gone)


@contextmanager
def copied_log_dirs(settings: BrokerSettings, paths: Sequence[Path]) -> Iterator[StoppedLogDirs]:
    """Have a look at the log directories of a broker that does not run, and change nothing there.

    The store is read from a copy of the newest of its copies.

    Args:
        paths: where `log.dirs` are on this host.

    Raises:
        LogDirsError: no plog broker has run on them.
        InconsistentLogDirs: one is another broker's, or a copy of another.
        OSError: what is there cannot be read.
        StoreError: the same, or it is damaged.
    """
    found = look_at_log_dirs(Filesystem(), paths, broker_id=settings.broker_id)
    with TemporaryDirectory(prefix="plog-store-") as place:
        copies = [
            _copied(path, Path(place, str(number)))
            for number, path in enumerate(found.paths)
            if (path / FILE_NAME).exists()
        ]
        if not copies:
            raise LogDirsError("no plog broker has run on these log directories")
        _, newest = max(copies)
        with opened_store([newest]) as store:
            yield StoppedLogDirs(store, _known_id(store, settings, found), found)


@contextmanager
def stopped_log_dirs(settings: BrokerSettings) -> Iterator[StoppedLogDirs]:
    """Have the log directories of a stopped broker for the length of a block.

    Raises:
        LogDirsError: no broker has run on them.
        InconsistentLogDirs: one is in use, or another broker's.
        KafkaStorageError: none can be used.
        StoreError: the store cannot be read.
    """
    paths = [Path(text).absolute() for text in settings.log_dirs]
    found = find_known_log_dirs(Filesystem(), paths, broker_id=settings.broker_id)
    if found is None:
        raise LogDirsError("no broker has run on these log directories, or none of them is mounted")
    with held(found):
        copies = [one.path for one in found.locked if (one.path / FILE_NAME).exists()]
        if not copies:
            raise LogDirsError("no plog broker has run on these log directories")
        with opened_store(copies) as store:
            yield StoppedLogDirs(store, _known_id(store, settings, found), found)


def _copied(log_dir: Path, place: Path) -> tuple[int, Path]:
    """Copy a directory's copy of the store into a place that is made; its last transaction first.

    Raises:
        StoreError: it does not hold together.
        OSError: it cannot be read.
    """
    place.mkdir()
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        with suppress(FileNotFoundError):
            shutil.copy(log_dir / name, place)
    try:
        copy = StoreCopy(place)
    except StoreError as error:
        raise StoreError(str(error).replace(str(place), str(log_dir))) from error
    copy.close()
    return copy.zxid, place


def _known_id(store: Store, settings: BrokerSettings, found: FoundLogDirs) -> int:
    broker_id = known_broker_id(store, settings.broker_id, found.identity)
    if broker_id is None:
        raise LogDirsError("neither broker.id nor a log directory tells which broker it is")
    return broker_id
