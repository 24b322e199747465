"""Power cuts under the coordination store: what it acknowledged is in every copy, and whole."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.cluster import store_copy
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import CreateOp, SessionLost, SetOp
from plog.cluster.store_copy import FILE_NAME
from plog.runtime.clock import SystemClock
from tests.agreement.harness import run_seed
from tests.crash.sqlite_disk import Noted, SqliteDisk, Synced, SyncFailed, Wrote

CUTS = 150

Opened = Callable[..., EmbeddedStore]


def count(store: EmbeddedStore, disk: SqliteDisk, numbers: range, chance: random.Random) -> None:
    """Write two nodes that are always equal, and note each number that is acknowledged."""
    for copy in store._copies:
        # Folded in more often than by default, so that cuts fall into that, too.
        copy._db.execute("PRAGMA wal_autocheckpoint=12")
    # Nobody hears of it when what is folded in cannot be synced.
    disk.fails_sync = lambda path: path.name == FILE_NAME and chance.random() < 0.2
    for number in numbers:
        data = b"%d " % number + b"x" * chance.randrange(12_000)
        store.multi([SetOp("/left", data), SetOp("/right", data)])
        disk.note(number)
    disk.fails_sync = lambda path: False


def number_in(store: EmbeddedStore) -> int:
    left, right = store.get("/left")[0], store.get("/right")[0]
    assert left == right
    return int(left.split()[0])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteDisk]:
    made = SqliteDisk()
    sync = store_copy.sync_directory

    def sync_directory(directory: Path) -> None:
        sync(directory)
        made.sync_directory(directory)

    monkeypatch.setattr(store_copy, "sync_directory", sync_directory)
    with made.watching():
        yield made


@pytest.fixture
def opened(disk: SqliteDisk) -> Iterator[Opened]:
    stores: list[EmbeddedStore] = []

    def open_store(*directories: Path) -> EmbeddedStore:
        stores.append(EmbeddedStore(directories, clock=SystemClock()))
        return stores[-1]

    yield open_store
    disk.fails_sync = lambda path: False
    for store in stores:
        store.close()


def test_power_cut_at_any_moment_leaves_every_copy_whole(
    disk: SqliteDisk, opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(run_seed())
    roots = [tmp_path / "a", tmp_path / "b"]
    for number, root in enumerate(roots):
        root.mkdir()
        disk.add(root, number)
    store = opened(*roots)
    store.multi([CreateOp("/left", b"0 "), CreateOp("/right", b"0 ")])
    disk.note(0)
    first = len(disk.events)
    for start in (1, 31):  # with a clean end between, which folds everything in
        count(store, disk, range(start, start + 30), chance)
        store.close()
        store = opened(*roots)
    store.close()
    assert sum(isinstance(event, Synced) for event in disk.events) > 150
    assert sum(isinstance(event, Wrote) for event in disk.events) > 500
    assert sum(isinstance(event, SyncFailed) for event in disk.events) > 2
    lost = 0
    for cut in range(CUTS):
        moment = chance.randrange(first, len(disk.events) + 1)
        acknowledged = max(e.what for e in disk.events[:moment] if isinstance(e, Noted))
        copies = [tmp_path / f"cut-{cut}" / name for name in "ab"]
        disk.cut(moment, copies, chance)
        alone = [shutil.copytree(copy, copy.with_name(copy.name + "-alone")) for copy in copies]
        for directories in ([alone[0]], [alone[1]], copies):
            again = opened(*directories)
            assert not again.created
            found = number_in(again)
            again.close()
            assert acknowledged <= found <= acknowledged + 1, f"cut {cut} at event {moment}"
            lost += found == acknowledged
        shutil.rmtree(copies[0].parent)
    assert lost > 0
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR], caplog.text


def test_write_acknowledged_after_a_failed_sync_outlives_a_power_cut(
    disk: SqliteDisk, opened: Opened, tmp_path: Path
) -> None:
    """Linux takes pages that it could not write for clean: the restart must write them again."""
    root, restarted = tmp_path / "a", tmp_path / "restarted"
    root.mkdir()
    disk.add(root, 0)
    disk.add(restarted, 0)
    store = opened(root)
    store.multi([CreateOp("/left", b"0 "), CreateOp("/right", b"0 ")])

    def fail_once_and_die(path: Path) -> bool:
        if restarted.exists() or not path.name.endswith("-wal"):
            return False
        # What the next process finds when this one is killed here: the page cache's files.
        shutil.copytree(root, restarted)
        moments.append(len(disk.events) + 1)
        return True

    moments: list[int] = []
    disk.fails_sync = fail_once_and_die
    with pytest.raises(SessionLost):
        store.multi([SetOp("/left", b"1 "), SetOp("/right", b"1 ")])
    (moment,) = moments
    del disk.events[moment:]  # the process is gone: nothing came after
    store = opened(restarted)
    assert number_in(store) in (0, 1)
    store.multi([SetOp("/left", b"2 "), SetOp("/right", b"2 ")])
    end = len(disk.events)
    cut = tmp_path / "cut"
    disk.cut(end, [cut], random.Random(0))
    store.close()
    again = opened(cut)
    assert not again.created
    assert number_in(again) == 2
