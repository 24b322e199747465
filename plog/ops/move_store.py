"""`plog move-store`: a stopped broker's own coordination store goes to ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from plog.cluster import znodes
from plog.cluster.adoption_state import check_may_start
from plog.cluster.broker_registration import read_cluster_id
from plog.cluster.known_log_dirs import FoundLogDirs, find_known_log_dirs
from plog.cluster.store_copy import FILE_NAME
from plog.cluster.store_move import (
    MOVED_SUFFIX,
    check_target,
    copy_store,
    end_move,
    is_moving,
    keep_files,
    nodes_to_move,
)
from plog.cluster.zookeeper_client import Access
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import PlogError
from plog.ops.stopped_broker import held, opened_store
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem


class MoveError(PlogError):
    """There is no store to move."""


class MovePlan(NamedTuple):
    """What a move would do.

    Attributes:
        was_interrupted: an earlier one was, and this one begins again.
    """

    nodes: int
    topics: int
    was_interrupted: bool


def plan_move(settings: BrokerSettings, connect: str) -> MovePlan:
    """Return what `move` would do, without writing anything.

    Raises:
        MoveError: the log directories have no store of their own, or it was moved already.
        InconsistentLogDirs: a broker runs on them, or the target has something else.
        Unreachable: no ZooKeeper answers.
        StoreError: a store cannot be read.
    """
    with (
        _locked(settings) as found,
        closing(_target(settings, connect, makes_root=False)) as target,
    ):
        copies = _copies(found)
        if not copies:
            _check_has_left(found, target, connect)
            return MovePlan(0, 0, was_interrupted=True)
        with opened_store(copies) as source:
            check_may_start(source)
            was_interrupted = check_target(source, target)
            topics = len(source.children(znodes.TOPICS))
            return MovePlan(len(nodes_to_move(source)), topics, was_interrupted)


def move(settings: BrokerSettings, connect: str, progress: Callable[[int], None]) -> list[Path]:
    """Move the store; return where its files are kept. An interrupted move can be run again.

    Raises:
        OSError: a file cannot be renamed.

    The others are those of `plan_move`.
    """
    with _locked(settings) as found, closing(_target(settings, connect)) as target:
        copies = _copies(found)
        if copies:
            with opened_store(copies) as source:
                check_may_start(source)
                check_target(source, target)
                copy_store(source, target, nodes_to_move(source), progress)
            keep_files(Filesystem(), copies)
        else:
            _check_has_left(found, target, connect)
        end_move(target)
        return _kept(found)


def _target(settings: BrokerSettings, connect: str, *, makes_root: bool = True) -> ZooKeeperStore:
    return ZooKeeperStore(connect, access=Access.of(settings), makes_root=makes_root)


def _copies(found: FoundLogDirs) -> list[Path]:
    return [one.path for one in found.locked if (one.path / FILE_NAME).exists()]


def _kept(found: FoundLogDirs) -> list[Path]:
    moved = [one.path / (FILE_NAME + MOVED_SUFFIX) for one in found.locked]
    return [path for path in moved if path.exists()]


def _check_has_left(found: FoundLogDirs, target: ZooKeeperStore, connect: str) -> None:
    """Check that only the end of a move is missing. Raises MoveError."""
    kept = _kept(found)
    if not kept:
        raise MoveError(
            "these log directories have no embedded store: no broker has used them yet, or it was"
            " in a cluster already"
        )
    moved = found.identity.cluster_id
    if is_moving(moved, target):
        return
    is_there = target.exists(znodes.CLUSTER_ID) is not None and read_cluster_id(target) == moved
    raise MoveError(
        f"the store was moved already ({kept[0]} is what it was): set zookeeper.connect"
        + (f"={connect} and start the broker" if is_there else " to the path that it was moved to")
    )


@contextmanager
def _locked(settings: BrokerSettings) -> Iterator[FoundLogDirs]:
    paths = [Path(text).absolute() for text in settings.log_dirs]
    found = find_known_log_dirs(Filesystem(), paths, broker_id=settings.broker_id)
    if found is None:
        raise MoveError("no broker has run on these log directories, or none is mounted")
    with held(found):
        yield found
