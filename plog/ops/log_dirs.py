"""Lists the log directories of a stopped broker, and removes missing ones from its store.

Owns the states of a directory, the rule that only a missing directory of a stopped broker may be
forgotten, and the look without changes (`copied_log_dirs`). Reads the store and the identities of
the directories. Changes only the store, and never touches records.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from plog.cluster.broker_registration import read_cluster_id
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
from plog.cluster.shared_store_mark import check_no_embedded_store, check_not_shared
from plog.cluster.store import Store, StoreError
from plog.cluster.store_choice import shared_store
from plog.cluster.store_copy import FILE_NAME, StoreCopy
from plog.cluster.znodes import CLUSTER_ID, broker_path
from plog.errors import PlogError
from plog.ops.stopped_broker import held, opened_store
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from plog.types import TopicPartition, uuid_to_text

LOOK_MS = 3_000
"""How long a look without changes waits for a ZooKeeper server."""


class LogDirsError(PlogError):
    """No broker has run here, or the directory to forget is not missing."""


class LogDirState(Enum):
    """How the next start will treat a log directory."""

    THERE = "there"
    NEW = "new"  # not in the store yet
    UNREADABLE = "cannot be read"
    NOT_MOUNTED = "not mounted"  # its path is empty
    MISSING = "missing"  # its path is not in log.dirs, or has another directory


class KnownLogDir(NamedTuple):
    """A directory of `log.dirs` or of the store."""

    path: Path
    directory_id: uuid.UUID | None  # None if it has none yet, or cannot be read
    state: LogDirState


class StoppedLogDirs:
    """The log directories of a stopped broker.

    They are locked, so the broker cannot start meanwhile, except with `copied_log_dirs`.
    """

    def __init__(self, store: Store, broker_id: int, found: FoundLogDirs) -> None:
        self._store = store
        self._broker_id = broker_id
        self._found = found

    def known(self) -> list[KnownLogDir]:
        """Return the directories of `log.dirs`, in their order, then the missing ones."""
        registered = registered_log_dirs(self._store, self._broker_id)
        missing, lost = judge(registered, self._found)
        ids = self._found.told_ids()
        at_place = {place.resolve(): one for one, place in missing.items()}
        rows: list[KnownLogDir] = []
        for path in self._found.paths:
            if path in self._found.nobodys:
                directory_id = at_place.get(path.resolve())
                state = LogDirState.NEW if directory_id is None else LogDirState.NOT_MOUNTED
            elif path in ids:
                directory_id = ids[path] or lost.get(path)
                state = LogDirState.THERE if directory_id in registered else LogDirState.NEW
            else:
                directory_id, state = None, LogDirState.UNREADABLE
            rows.append(KnownLogDir(path, directory_id, state))
        shown = {row.directory_id for row in rows}
        elsewhere = [one for one in missing if one not in shown]
        return rows + [KnownLogDir(missing[one], one, LogDirState.MISSING) for one in elsewhere]

    def absent_partitions(self) -> list[TopicPartition]:
        """Return the partitions that are in none of the present directories."""
        return sorted(absent_partitions(self._store, self._broker_id, self._found))

    def find_missing(self, named: str) -> list[KnownLogDir]:
        """Return the missing directories with a path or an id.

        Raises:
            LogDirsError: there is no such directory, or it is not missing.
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
            raise LogDirsError(f"unknown log directory {named}")
        if rows[0].state is LogDirState.UNREADABLE:
            raise LogDirsError(
                f"log directory {named} cannot be read, so its id is unknown:"
                " remove it from log.dirs first"
            )
        raise LogDirsError(f"log directory {named} is not missing, so it cannot be forgotten")

    def forget(self, missing: Sequence[KnownLogDir]) -> None:
        """Remove the directories of `find_missing` from the store. Raises StoreError."""
        gone = [row.directory_id for row in missing if row.directory_id is not None]
        forget_log_dirs(self._store, self._broker_id, gone)


@contextmanager
def copied_log_dirs(settings: BrokerSettings, paths: Sequence[Path]) -> Iterator[StoppedLogDirs]:
    """Yield the log directories of a stopped broker without changing them.

    Copies the newest of the store's replicas and reads that. A store on ZooKeeper is read there.

    Args:
        paths: the paths of `log.dirs` on this host.

    Raises:
        LogDirsError: no plog broker has run on them.
        InconsistentLogDirs: a directory belongs to another broker, is a copy of another one, or
            belongs to a cluster on ZooKeeper and zookeeper.connect is not set.
        ConfigError: zookeeper.connect is set, but the directories have a store of their own.
        OSError: a file cannot be read.
        StoreError: the store cannot be read, or is damaged.
    """
    found = look_at_log_dirs(Filesystem(), paths, broker_id=settings.broker_id)
    if (shared := shared_store(settings, wait_ms=LOOK_MS)) is not None:
        with _shared(settings, shared, found) as stopped:
            yield stopped
        return
    check_not_shared(Filesystem(), found.paths)
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
    """Lock the log directories of a stopped broker for the length of a block.

    Raises:
        LogDirsError: no broker has run on them.
        InconsistentLogDirs: a directory is in use, belongs to another broker, or belongs to a
            cluster on ZooKeeper and zookeeper.connect is not set.
        ConfigError: zookeeper.connect is set, but the directories have a store of their own.
        KafkaStorageError: no directory can be used.
        StoreError: the store cannot be read, or no ZooKeeper answers.
    """
    paths = [Path(text).absolute() for text in settings.log_dirs]
    found = find_known_log_dirs(Filesystem(), paths, broker_id=settings.broker_id)
    if found is None and settings.zookeeper_connect is not None:
        found = look_at_log_dirs(Filesystem(), paths, broker_id=settings.broker_id)
    if found is None:
        raise LogDirsError("no broker has run on these log directories, or none is mounted")
    with held(found):
        if (shared := shared_store(settings)) is not None:
            with _shared(settings, shared, found) as stopped:
                yield stopped
            return
        check_not_shared(Filesystem(), found.paths)
        copies = [one.path for one in found.locked if (one.path / FILE_NAME).exists()]
        if not copies:
            raise LogDirsError("no plog broker has run on these log directories")
        with opened_store(copies) as store:
            yield StoppedLogDirs(store, _known_id(store, settings, found), found)


@contextmanager
def _shared(
    settings: BrokerSettings, opened: Callable[[], Store], found: FoundLogDirs
) -> Iterator[StoppedLogDirs]:
    """Yield the log directories of a broker whose store is on ZooKeeper."""
    check_no_embedded_store([one.path for one in found.locked])
    known = found.identity
    broker_id = settings.broker_id if settings.broker_id >= 0 else known.broker_id
    if broker_id is None:
        raise LogDirsError("set broker.id: the log directories do not have it")
    with closing(opened()) as store:
        cluster_id = None if store.exists(CLUSTER_ID) is None else read_cluster_id(store)
        if known.cluster_id is None and not registered_log_dirs(store, broker_id):
            raise LogDirsError("no plog broker has run on these log directories")
        if cluster_id is None or known.cluster_id not in (None, cluster_id):
            raise LogDirsError(
                f"the log directories belong to cluster {known.cluster_id}, but ZooKeeper"
                f" at {settings.zookeeper_connect} has {cluster_id or 'none'}"
            )
        if store.exists(broker_path(broker_id)) is not None and not found.locked:
            raise LogDirsError(f"broker {broker_id} is running, with other log directories")
        yield StoppedLogDirs(store, broker_id, found)


def _copied(log_dir: Path, place: Path) -> tuple[int, Path]:
    """Copy a directory's replica of the store to a new directory; return its last zxid and path.

    Raises:
        StoreError: the replica is damaged.
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
        raise LogDirsError("set broker.id: the log directories do not have it")
    return broker_id
