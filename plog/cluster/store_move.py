"""An embedded store goes to ZooKeeper: the nodes that are copied, their order, and its progress.

One node of the target says that a move is under way, so that no broker starts there. The nodes
below it record what the move has written: each of its writes creates nodes together with their
record. Once all is copied, the files of the embedded store get another name, so that no broker
starts on them. The records go then, and the mark last. A move that was interrupted deletes the
recorded nodes and begins again, or ends: meanwhile a broker may have changed the embedded store.
Owns the marks and the records. Never deletes the embedded store, and in the target only nodes that
a move wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from plog.cluster import znodes
from plog.cluster.broker_registration import read_cluster_id
from plog.cluster.store import CreateOp, DeleteOp, SetOp, Store, join, parent_of
from plog.cluster.store_copy import FILE_NAME
from plog.errors import InconsistentLogDirs
from plog.storage.filesystem import Filesystem

MOVED_SUFFIX: Final = ".moved"
MARK: Final = "/plog/move"
"""While a move is under way: the id of the cluster that moves, and below it the records."""
ZOOKEEPERS_OWN: Final = "/zookeeper"
OF_SESSIONS: Final = frozenset({znodes.CONTROLLER})
NOTICES: Final = frozenset(
    {znodes.BROKER_IDS, znodes.CONFIG_CHANGES, znodes.LOG_DIR_EVENTS, znodes.ISR_CHANGES}
)
"""Nodes whose children are of the broker's last run: they stay behind."""
MAX_NAMED: Final = 5
PATHS_SEPARATOR: Final = "\0"
"""Between the paths of a record: no path contains it."""
NODES_AT_ONCE: Final = 100
BYTES_AT_ONCE: Final = 500_000

Progress = Callable[[int], None]
"""Called with the number of nodes that have been copied since the last call."""


def check_target(source: Store, target: Store) -> bool:
    """Check the place that a store is to move to; return whether an earlier move was interrupted.

    Raises:
        InconsistentLogDirs: another cluster, or nodes that the move did not write.
    """
    if target.exists("/") is None:
        return False
    was_interrupted = is_moving(read_cluster_id(source), target)
    if not was_interrupted:
        _check_no_cluster(source, target)
    own = {path for record in _records(target) for path in _recorded(target, record)}
    if foreign := sorted(_foreign_nodes(target, own)):
        more = f" and {len(foreign) - MAX_NAMED} more" if len(foreign) > MAX_NAMED else ""
        either = ", or delete them if nothing uses them" if was_interrupted else ""
        raise InconsistentLogDirs(
            f"there are other nodes: {', '.join(foreign[:MAX_NAMED])}{more}; name an unused path"
            f"{either}"
        )
    return was_interrupted


def _check_no_cluster(source: Store, target: Store) -> None:
    if target.exists(MARK) is not None:
        raise InconsistentLogDirs("a move of another store to this place was interrupted")
    if target.exists(znodes.CLUSTER_ID) is None:
        return
    found = read_cluster_id(target)
    # A Kafka cluster has its id in common with the broker that adopted its topics.
    if found == read_cluster_id(source) and target.exists(parent_of(MARK)) is not None:
        raise InconsistentLogDirs(
            f"cluster {found} is there already, and this broker belongs to it: it has run without"
            f" zookeeper.connect, and {FILE_NAME} is of that time. To return to the cluster without"
            f" the topics and settings of that time, move {FILE_NAME}* out of each log directory,"
            " set zookeeper.connect and start the broker"
        )
    raise InconsistentLogDirs(f"cluster {found} is there already; name an unused path")


def _foreign_nodes(target: Store, own: Collection[str], above: str = "/") -> Iterator[str]:
    """Yield the nodes that are neither the move's own nor stay, without those below them."""
    for name in target.children(above):
        path = join(above, name)
        if path in own or (_stays(path) and path not in (ZOOKEEPERS_OWN, MARK)):
            yield from _foreign_nodes(target, own, path)
        elif not _stays(path):
            yield path


def is_moving(cluster_id: str | None, target: Store) -> bool:
    """Return whether a move of this cluster has begun and not ended."""
    return target.exists(MARK) is not None and target.get(MARK)[0].decode() == cluster_id


def check_not_moving(store: Store) -> None:
    """Check that a broker may start on a ZooKeeper. Raises InconsistentLogDirs."""
    if store.exists(MARK) is not None:
        raise InconsistentLogDirs("plog move-store was interrupted: run it again first")


def moved_fault(log_dirs: Sequence[Path]) -> tuple[str, str] | None:
    """Return why a broker cannot start on its own store, and what to do; None if it can."""
    for log_dir in log_dirs:
        moved = log_dir / (FILE_NAME + MOVED_SUFFIX)
        with suppress(OSError):  # the directory has failed; the others show it
            if moved.exists():
                return (
                    f"the coordination store was moved to ZooKeeper ({moved} is what it was)",
                    "set zookeeper.connect",
                )
    return None


def check_not_moved(log_dirs: Sequence[Path]) -> None:
    """Check that a broker may start on its own store.

    Raises:
        InconsistentLogDirs: the store was moved to ZooKeeper, where it may have changed.
    """
    if (fault := moved_fault(log_dirs)) is not None:
        raise InconsistentLogDirs(": ".join(fault))


def nodes_to_move(source: Store) -> list[str]:
    """Return the paths that go over, parents first."""
    return [
        path
        for path in reversed(source.descendants("/"))
        if path != "/"
        and path not in OF_SESSIONS
        and not any(path.startswith(f"{above}/") for above in NOTICES)
        and source.get(path)[1].ephemeral_owner == 0
    ]


def copy_store(source: Store, target: Store, paths: Sequence[str], progress: Progress) -> None:
    """Copy nodes, in place of those that an earlier attempt has left.

    Raises:
        StoreError: the target cannot be written; call it again.
    """
    target.sync()  # a server that is behind the others may not have an earlier attempt's writes yet
    if target.exists(MARK) is None:
        target.create(MARK, read_cluster_id(source).encode(), make_parents=True)
    _delete_written(target)
    for number, batch in enumerate(_batches(source, paths)):
        if created := [one for one in batch if not _stays(one.path)]:
            target.multi([_record(number, created), *created])
        progress(len(batch))
    # Its version counts the broker ids that were generated, and is not copied with the data.
    used = source.get(znodes.BROKER_SEQUENCE)[1].version
    while target.get(znodes.BROKER_SEQUENCE)[1].version < used:
        target.multi([SetOp(znodes.BROKER_SEQUENCE, b"")])
    different = [path for path in paths if source.get(path)[0] != target.get(path)[0]]
    if different:
        raise InconsistentLogDirs(
            f"{different[0]} has changed since it was written: is another program writing there?"
        )


def end_move(target: Store) -> None:
    """Say that everything is there. Raises StoreError: call it again."""
    records = _records(target)
    for first in range(0, len(records), NODES_AT_ONCE):
        target.multi([DeleteOp(record) for record in records[first : first + NODES_AT_ONCE]])
    target.multi([DeleteOp(MARK)])


def _record(number: int, created: Sequence[CreateOp]) -> CreateOp:
    paths = PATHS_SEPARATOR.join(one.path for one in created)
    return CreateOp(join(MARK, f"{number:010}"), paths.encode())


def _records(target: Store) -> list[str]:
    """Return the paths of the records, in the order of the writes."""
    if target.exists(MARK) is None:
        return []
    return [join(MARK, name) for name in target.children(MARK)]


def _recorded(target: Store, record: str) -> list[str]:
    """Return the paths of the nodes that a write created, parents first."""
    return target.get(record)[0].decode().split(PATHS_SEPARATOR)


def _delete_written(target: Store) -> None:
    """Delete what earlier attempts have written, each write's nodes together with their record."""
    for record in reversed(_records(target)):
        paths = _recorded(target, record)[::-1]
        found = zip(paths, target.get_many(paths), strict=True)
        left = [DeleteOp(path) for path, node in found if node is not None]
        target.multi([*left, DeleteOp(record)])


def keep_files(fs: Filesystem, log_dirs: Sequence[Path]) -> list[Path]:
    """Rename the closed embedded store's files; return their new paths. Raises OSError."""
    kept = []
    for log_dir in log_dirs:
        for suffix in ("-wal", "-shm", ""):
            path = log_dir / (FILE_NAME + suffix)
            if fs.exists(path):
                aside = path.with_name(FILE_NAME + MOVED_SUFFIX + suffix)
                fs.rename(path, aside)
                kept.append(aside)
        fs.sync_directory(log_dir)
    return kept


def _stays(path: str) -> bool:
    own = path == ZOOKEEPERS_OWN or path.startswith(f"{ZOOKEEPERS_OWN}/")
    return own or path == "/" or path == MARK or MARK.startswith(f"{path}/")


def _batches(source: Store, paths: Sequence[str]) -> Iterator[list[CreateOp]]:
    batch: list[CreateOp] = []
    size = 0
    for path in paths:
        data = source.get(path)[0]
        if batch and (len(batch) == NODES_AT_ONCE or size + len(data) > BYTES_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(CreateOp(path, data))
        size += len(data) + 2 * len(path)  # the record has the path, too
    if batch:
        yield batch
