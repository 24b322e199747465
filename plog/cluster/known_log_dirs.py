"""Which log directories a broker has, so that one that is away at a start is missed.

Each directory has an id in its meta.properties (`directory.id`, KIP-858). The store
remembers under which path each was last, and a start sees which of them are in none of
its `log.dirs`: their disks are not mounted, or they were left out. What is empty in such
a place is no new directory, and nothing is written there.

Owns those nodes, and the order in which a start looks: directories that were a broker's
first, with the store in them, and only then those that nobody had. A directory is
registered once it holds its id durably and before any partition is made in it, so that a
start that is killed anywhere has at worst given an id to a directory without records.
Never reads what else is in a directory, and decides nothing about partitions.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from plog._native.files import NO_RESOURCES
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import CreateOp, DeleteOp, Op, SetOp, Store, join
from plog.cluster.store_copy import FILE_NAME
from plog.cluster.store_rebuild import broker_id_of_topics
from plog.cluster.znodes import TOPICS, MalformedNode, TopicNode, topic_path
from plog.errors import KafkaStorageError
from plog.runtime.clock import Clock
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import (
    DIRECTORY_ID,
    LogDir,
    LogDirIdentity,
    check_named_once,
    common_identity,
    lock_log_dirs,
)
from plog.storage.segment_files import DELETE_DIRECTORY, parse_directory_name
from plog.types import TopicPartition, new_directory_id, uuid_from_text, uuid_to_text

log = logging.getLogger(__name__)

LOG_DIRS = "/plog/log_dirs"
"""Has a child for each broker, by its id, and that one for each directory: the path it was at.

A broker's node holds `FORGOTTEN` once a directory that may have had records was forgotten.
"""
FORGOTTEN = b"forgotten"

Registered = Mapping[uuid.UUID, Path]
"""Log directories by their ids, and where each was last."""


# -- the nodes -------------------------------------------------------------------------------------


def registered_log_dirs(store: Store, broker_id: int) -> dict[uuid.UUID, Path]:
    """Return the directories that a broker is known to have. Raises MalformedNode."""
    above = join(LOG_DIRS, str(broker_id))
    if store.exists(above) is None:
        return {}
    found = {}
    for name in store.children(above):
        try:
            directory_id = uuid_from_text(name)
        except ValueError as error:
            raise MalformedNode(f"{join(above, name)} is not named by an id") from error
        found[directory_id] = Path(os.fsdecode(store.get(join(above, name))[0]))
    return found


def register_log_dirs(store: Store, broker_id: int, present: Registered) -> None:
    """Remember directories that have their ids durably, and where they are now."""
    known = registered_log_dirs(store, broker_id)
    above = join(LOG_DIRS, str(broker_id))
    ops: list[Op] = []
    for directory_id, path in present.items():
        node = join(above, uuid_to_text(directory_id))
        if directory_id not in known:
            ops.append(CreateOp(node, os.fsencode(path)))
        elif known[directory_id] != path:
            ops.append(SetOp(node, os.fsencode(path)))
    if not ops:
        return
    if store.exists(above) is None:
        # Together with its children: without any, all were forgotten.
        store.ensure(LOG_DIRS)
        ops.insert(0, CreateOp(above))
    store.multi(ops)


def forget_log_dirs(
    store: Store, broker_id: int, gone: Iterable[uuid.UUID], *, had_records: bool = True
) -> None:
    """Miss these directories no more. Raises NoNode."""
    above = join(LOG_DIRS, str(broker_id))
    ops: list[Op] = [DeleteOp(join(above, uuid_to_text(one))) for one in gone]
    store.multi([*ops, SetOp(above, FORGOTTEN)] if had_records else ops)


def has_forgotten(store: Store, broker_id: int) -> bool:
    """Whether a directory with records was ever forgotten: a log that is not here may be lost."""
    above = join(LOG_DIRS, str(broker_id))
    return store.exists(above) is not None and store.get(above)[0] == FORGOTTEN


# -- what a start finds ----------------------------------------------------------------------------


class FoundLogDirs(NamedTuple):
    """The directories of `log.dirs`, before anything was written to one.

    Attributes:
        paths: every one of them.
        nobodys: those in which no broker ever was, as far as that can be told.
        locked: those that can be used, in the order of `paths`.
        identity: whose they are, as far as they tell.
        unmounted: of `nobodys`, those in whose places others are missing: the ids.
    """

    paths: Sequence[Path]
    nobodys: Sequence[Path]
    locked: Sequence[LogDir]
    identity: LogDirIdentity
    unmounted: Mapping[Path, uuid.UUID]

    def told_ids(self) -> dict[Path, uuid.UUID | None]:
        """Return the ids of those that can be read; None for one that does not tell its own.

        Raises OSError when no descriptor is left to read one.
        """
        told: dict[Path, uuid.UUID | None] = {}
        for log_dir in self.locked:
            try:
                told[log_dir.path] = log_dir.told_id()
            except OSError as error:
                if error.errno in NO_RESOURCES:
                    raise  # it can be read, and is not to be taken for one that cannot
        return told

    def unusable(self) -> list[Path]:
        """Return the directories that are not locked: their content is not known."""
        usable = {log_dir.path for log_dir in self.locked}
        return [path for path in self.paths if path not in usable]

    def unlock(self) -> None:
        """Give every lock back."""
        for log_dir in self.locked:
            log_dir.unlock()


def find_log_dirs(
    fs: Filesystem, paths: Sequence[Path], *, broker_id: int, clock: Clock, is_shared: bool
) -> FoundLogDirs:
    """Lock the directories of a broker, but for those whose disk is not mounted.

    Args:
        broker_id: whose they must be; -1 for anyone's.
        is_shared: the store is elsewhere; new directories wait for `add_new_log_dirs`.

    Raises:
        InconsistentLogDirs: one is named twice, in use, another broker's or a copy of another.
        KafkaStorageError: none can be used, or none of those that were a broker's: what there
            should be in the others cannot be told.
        StoreError: the store in those that were a broker's cannot be read.
    """
    known, found = _look(fs, paths)
    first = known or paths  # where every directory is new there is nothing to miss
    found = _locked(found, fs, first, broker_id)
    if len(first) < len(paths) and not is_shared:
        try:
            unmounted = _unmounted(found, broker_id, clock)
        except BaseException:
            found.unlock()
            raise
        found = _with_new_ones(fs, found, unmounted, broker_id)
    return found


def add_new_log_dirs(
    fs: Filesystem, found: FoundLogDirs, store: Store, *, broker_id: int
) -> FoundLogDirs:
    """Lock the new directories too, once a shared store says which are places of missing ones.

    These are unlocked, if they were locked as those of a new broker. Where all are missing and the
    broker has no partition, a new host has taken the place of one, and the missing are forgotten.

    Raises:
        InconsistentLogDirs: as `find_log_dirs`; no lock is held then.
        KafkaStorageError: the same; or every directory is missing, with the broker's partitions.
        StoreError: the store cannot be read or written.
    """
    unmounted = _unmounted_by(store, broker_id, found)
    if len(unmounted) == len(found.paths):
        if absent_partitions(store, broker_id, found):
            raise KafkaStorageError(
                f"the log directories are empty, but broker {broker_id} has partitions in this"
                f" cluster: mount {', '.join(map(str, unmounted))}. If their data is lost, run"
                " `plog log-dirs --forget` for each, or give the broker another broker.id"
            )
        forget_log_dirs(store, broker_id, unmounted.values(), had_records=False)
        return found
    for log_dir in found.locked:
        if log_dir.path in unmounted:
            log_dir.unlock()
    locked = [log_dir for log_dir in found.locked if log_dir.path not in unmounted]
    return _with_new_ones(fs, found._replace(locked=locked), unmounted, broker_id)


def _with_new_ones(
    fs: Filesystem, found: FoundLogDirs, unmounted: Mapping[Path, uuid.UUID], broker_id: int
) -> FoundLogDirs:
    held = {log_dir.path for log_dir in found.locked}
    rest = [path for path in found.paths if path not in held and path not in unmounted]
    return _locked(found._replace(unmounted=unmounted), fs, rest, broker_id)


def find_known_log_dirs(
    fs: Filesystem, paths: Sequence[Path], *, broker_id: int
) -> FoundLogDirs | None:
    """Lock those that were a broker's and no others; None when there are none.

    Raises:
        InconsistentLogDirs, KafkaStorageError: as `find_log_dirs`.
    """
    known, found = _look(fs, paths)
    return _locked(found, fs, known, broker_id) if known else None


def look_at_log_dirs(fs: Filesystem, paths: Sequence[Path], *, broker_id: int) -> FoundLogDirs:
    """Look at the directories of a broker that does not run, without a lock on any.

    What could be locked, as far as can be told without trying, is among the `locked`.

    Raises:
        InconsistentLogDirs: as `find_log_dirs`.
    """
    known, found = _look(fs, paths)
    found = found._replace(locked=[LogDir(fs, path) for path in known])
    told = found.told_ids()
    readable = [log_dir for log_dir in found.locked if log_dir.path in told]
    return found._replace(identity=common_identity(readable, broker_id))


def _look(fs: Filesystem, paths: Sequence[Path]) -> tuple[list[Path], FoundLogDirs]:
    """Return where a broker was, and what else can be told without a lock."""
    check_named_once(paths)
    known: list[Path] = []
    nobodys: list[Path] = []
    for path in paths:
        try:
            (nobodys if LogDir(fs, path).is_nobodys() else known).append(path)
        except OSError:
            continue  # it is neither, until it can be looked at
    anyones = LogDirIdentity(broker_id=None, cluster_id=None)
    return known, FoundLogDirs(paths, nobodys, (), anyones, {})


def _locked(
    found: FoundLogDirs, fs: Filesystem, paths: Sequence[Path], broker_id: int
) -> FoundLogDirs:
    """Lock further directories, and see whose they all are; if that fails, none is locked."""
    locked = lock_log_dirs(fs, paths, already=found.locked)
    locked.sort(key=lambda log_dir: found.paths.index(log_dir.path))
    found = found._replace(locked=locked)
    try:
        told = found.told_ids()
        readable = [log_dir for log_dir in locked if log_dir.path in told]
        return found._replace(identity=common_identity(readable, broker_id))
    except BaseException:
        found.unlock()
        raise


def _unmounted(found: FoundLogDirs, broker_id: int, clock: Clock) -> dict[Path, uuid.UUID]:
    copies = [one.path for one in found.locked if (one.path / FILE_NAME).exists()]
    if not copies:
        return {}
    store = EmbeddedStore(copies, clock=clock, elsewhere=found.unusable())
    with closing(store):
        known = known_broker_id(store, broker_id, found.identity)
        return {} if known is None else _unmounted_by(store, known, found)


def _unmounted_by(store: Store, broker_id: int, found: FoundLogDirs) -> dict[Path, uuid.UUID]:
    registered = registered_log_dirs(store, broker_id)
    never_registered = store.exists(join(LOG_DIRS, str(broker_id))) is None
    if never_registered and absent_partitions(store, broker_id, found):
        # Of a release that knew no ids. Any of them may be a disk's that was there.
        return {path: new_directory_id() for path in found.nobodys}
    missing, _ = judge(registered, found)
    by_place = {place.resolve(): one for one, place in missing.items()}
    return {p: by_place[p.resolve()] for p in found.nobodys if p.resolve() in by_place}


def absent_partitions(store: Store, broker_id: int, found: FoundLogDirs) -> set[TopicPartition]:
    """Return the partitions that should be in a directory and are in none that can be used."""
    here: set[TopicPartition] = set()
    for log_dir in found.locked:
        try:
            parsed = map(parse_directory_name, os.listdir(log_dir.path))
        except OSError as error:
            if error.errno in NO_RESOURCES:
                raise
            continue  # it will be offline
        here.update(
            one.topic_partition
            for one in parsed
            if one is not None and one.suffix != DELETE_DIRECTORY
        )
    nodes = (
        {}
        if store.exists(TOPICS) is None
        else {
            topic: TopicNode.decode(store.get(topic_path(topic))[0])
            for topic in store.children(TOPICS)
        }
    )
    return {
        TopicPartition(topic, partition)
        for topic, node in nodes.items()
        for partition, replicas in node.partitions.items()
        if broker_id in replicas
    } - here


def missing_log_dirs(store: Store, broker_id: int, found: FoundLogDirs) -> dict[uuid.UUID, Path]:
    """Return the missing directories; log those that are not in `log.dirs`.

    Sets `lost_id` of the directories whose meta.properties has lost the id.
    """
    register_log_dirs(store, broker_id, {one: path for path, one in found.unmounted.items()})
    missing, lost = judge(registered_log_dirs(store, broker_id), found)
    for log_dir in found.locked:
        log_dir.lost_id = lost.get(log_dir.path)
    for one, place in missing.items():
        if one not in found.unmounted.values():
            log.error(
                "log directory %s (%s %s) is not in log.dirs: add it and restart; if it is lost,"
                " run `plog log-dirs --forget %s PROPERTIES` with the broker's properties file",
                place, DIRECTORY_ID, uuid_to_text(one), uuid_to_text(one),
            )  # fmt: skip
    return missing


def judge(
    registered: Registered, found: FoundLogDirs
) -> tuple[dict[uuid.UUID, Path], dict[Path, uuid.UUID]]:
    """Return which directories are missing, and the ids of those that do not tell theirs.

    One that was a broker's and has no id is what was there before: its meta.properties is gone or
    damaged, or an older Kafka or plog wrote it. One that cannot be read is failed and not missing:
    nobody knows which it is, so it is taken for what was there too.
    """
    told = found.told_ids()
    unreadable = {
        path.resolve() for path in found.paths if path not in told and path not in found.nobodys
    }
    away = {
        one: place
        for one, place in registered.items()
        if one not in told.values() and place.resolve() not in unreadable
    }
    lost: dict[Path, uuid.UUID] = {}
    for path, own in told.items():
        if path in found.nobodys or own is not None:
            continue
        there = [one for one, place in away.items() if place.resolve() == path.resolve()]
        # Of two that were there, it could be either.
        if len(there) == 1:
            lost[path] = there[0]
            del away[there[0]]
    return away, lost


def known_broker_id(store: Store, broker_id: int, identity: LogDirIdentity) -> int | None:
    """Return the broker's number: that of its settings, its directories or its topics, if any."""
    if broker_id >= 0:
        return broker_id
    if identity.broker_id is not None and identity.broker_id >= 0:
        return identity.broker_id
    of_topics = None if store.exists(TOPICS) is None else broker_id_of_topics(store)
    return of_topics if of_topics is not None and of_topics >= 0 else None
