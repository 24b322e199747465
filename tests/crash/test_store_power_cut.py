"""Power cuts under the coordination store: what it acknowledged is in every copy, and whole."""

from __future__ import annotations

import logging
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.cluster import embedded_store, store_copy
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import CreateOp, SessionLost, SetOp, WriteRefused
from plog.cluster.store_copy import FILE_NAME
from plog.runtime.clock import Clock, ManualClock, SystemClock
from tests.agreement.harness import run_seed
from tests.crash.sqlite_disk import FileId, Noted, SqliteDisk, Synced, SyncFailed, Wrote

CUTS = 150
PAGE_BYTES = 4096
WAL = f"{FILE_NAME}-wal"

Opened = Callable[..., EmbeddedStore]


def count(store: EmbeddedStore, disk: SqliteDisk, numbers: range, chance: random.Random) -> None:
    """Write two nodes that are always equal, and note each number that is acknowledged."""
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
    # Folded in more often than by default, so that cuts fall into that, too.
    monkeypatch.setattr(store_copy, "MAX_WAL_BYTES", 12 * PAGE_BYTES)
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

    def open_store(*directories: Path, clock: Clock | None = None) -> EmbeddedStore:
        stores.append(EmbeddedStore(directories, clock=clock or SystemClock()))
        return stores[-1]

    yield open_store
    disk.fails_sync = disk.fails_truncation = lambda path: False
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
    assert disk.writes_over(WAL) == []
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
        if restarted.exists() or path.name != WAL:
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


COLLIDING = (4000, 8000, 8000, 0, 12000, 8000)
"""Sizes of a node. With them, SQLite's checksum of the WAL takes an old page for a new one.

It is linear: it stays the same if three words in a row change by a, -a and -a. A WAL that begins
again at its front lies over earlier frames. There the header of the database changes so: its size
from 7 to 9, its first free page from 6 to 4, and the number of free pages from 4 to 2.
"""


def test_commit_that_lacks_one_page_of_the_wal_is_undone(
    disk: SqliteDisk, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Checksums of rows take as many bytes as their values need: the id and the clock are in them.
    monkeypatch.setattr(embedded_store.uuid, "uuid4", lambda: uuid.UUID(int=1))
    root = tmp_path / "a"
    root.mkdir()
    disk.add(root, 0)
    store = opened(root, clock=ManualClock(10**12))
    store.multi([CreateOp("/left", b"0 "), CreateOp("/right", b"0 ")])
    disk.note(0)
    first = len(disk.events)
    for number, size in enumerate(COLLIDING, start=1):
        data = b"%d " % number + b"x" * size
        store.multi([SetOp("/left", data), SetOp("/right", data)])
        disk.note(number)
    store.close()
    acknowledged, cuts = 0, 0
    for lost, event in enumerate(disk.events[first:], start=first):
        match event:
            case Noted(acknowledged):
                pass
            case Wrote(file, _, data) if file.name == WAL and len(data) == PAGE_BYTES:
                synced = disk.events.index(Synced(file), lost)
                copy = tmp_path / f"without-{lost}"
                disk.cut_without(lost, synced, [copy])
                again = opened(copy)
                assert not again.created, f"without event {lost}"
                # A page of zeros is not missed before the end of the file.
                allowed = (acknowledged,) if any(data) else (acknowledged, acknowledged + 1)
                assert number_in(again) in allowed, f"without event {lost}"
                again.close()
                cuts += 1
    assert cuts > 40


@pytest.mark.parametrize(("failing", "times"), [("sync", 2), ("truncation", 1)])
def test_fold_that_failed_is_done_again(
    disk: SqliteDisk,
    opened: Opened,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    failing: str,
    times: int,
) -> None:
    root = tmp_path / "a"
    root.mkdir()
    disk.add(root, 0)
    store = opened(root)
    store.multi([CreateOp("/left", b"0 "), CreateOp("/right", b"0 ")])
    failures = []

    def fail_first(path: Path) -> bool:
        if path.name == (FILE_NAME if failing == "sync" else WAL) and len(failures) < times:
            failures.append(len(disk.events))
            return True
        return False

    if failing == "sync":
        disk.fails_sync = fail_first
    else:
        disk.fails_truncation = fail_first
    synced_before = disk.events.count(Synced(FileId(0, FILE_NAME)))
    for number in range(1, 20):
        data = b"%d " % number + b"x" * 5000
        store.multi([SetOp("/left", data), SetOp("/right", data)])
        disk.note(number)
    assert len(failures) == times
    assert disk.events.count(Synced(FileId(0, FILE_NAME))) > synced_before + 1
    assert disk.writes_over(WAL) == []
    acknowledged = 0
    for moment, event in enumerate(disk.events):
        if not isinstance(event, Noted):
            continue
        acknowledged = event.what
        cut = tmp_path / f"cut-{moment}"
        disk.cut(moment, [cut], random.Random(moment))
        again = opened(cut)
        assert number_in(again) == acknowledged
        again.close()
    assert acknowledged == 19
    warned = [r for r in caplog.records if "cannot fold the write-ahead log" in r.getMessage()]
    assert len(warned) == 1


def test_refused_write_leaves_nothing_beneath_the_next_one(
    disk: SqliteDisk, opened: Opened, tmp_path: Path
) -> None:
    root = tmp_path / "a"
    root.mkdir()
    disk.add(root, 0)
    store = opened(root)
    store.multi([CreateOp("/left", b"0 "), CreateOp("/right", b"0 ")])
    refused_at = len(disk.events)
    disk.is_full = lambda path, offset: path.name == WAL and offset > 3 * PAGE_BYTES
    with pytest.raises(WriteRefused):
        store.multi([SetOp("/left", b"1 " + b"x" * 9000), SetOp("/right", b"1 " + b"x" * 9000)])
    disk.is_full = lambda path, offset: False
    frames = [event for event in disk.events[refused_at:] if isinstance(event, Wrote)]
    assert len([event for event in frames if event.file.name == WAL]) > 3
    store.multi([SetOp("/left", b"2 "), SetOp("/right", b"2 ")])
    assert disk.writes_over(WAL) == []
    assert number_in(store) == 2


def test_transaction_larger_than_the_cache_writes_each_page_once(
    disk: SqliteDisk, opened: Opened, tmp_path: Path
) -> None:
    root = tmp_path / "a"
    root.mkdir()
    disk.add(root, 0)
    store = opened(root)
    for data in (b"x" * 3000, b"y" * 3000):
        paths = [f"/{number * 7 % 400}" for number in range(400)]
        store.multi([SetOp(p, data) if store.exists(p) else CreateOp(p, data) for p in paths])
    assert disk.writes_over(WAL) == []
