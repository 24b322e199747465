"""The embedded store with few file descriptors: it never goes on with less than it had."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from plog._native.files import NO_RESOURCES
from plog.cluster import store_copy
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import CreateOp, SetOp, WriteRefused
from plog.cluster.store_copy import StoreCopy
from plog.runtime.clock import ManualClock
from tests.descriptors import few_descriptors

MOST = 24


def store_of(dirs: list[Path]) -> EmbeddedStore:
    return EmbeddedStore(dirs, clock=ManualClock(1_700_000_000_000))


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "one", tmp_path / "two"]
    for path in made:
        path.mkdir()
    return made


def test_opening_without_descriptors_is_refused_and_drops_no_copy(dirs: list[Path]) -> None:
    store = store_of(dirs)
    store.multi([CreateOp("/a", b"1")])
    store.close()
    opened = 0
    for more in range(MOST):
        with few_descriptors(more):
            try:
                store = store_of(dirs)
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017 - which it is, is the point
                continue
            opened += 1
            assert store.directories == dirs
            _, stat = store.get("/a")
            store.multi([SetOp("/a", b"%d" % more, stat.version)])
            store.close()
    assert 0 < opened < MOST
    store = store_of(dirs)
    assert store.get("/a")[0] == b"%d" % (MOST - 1)
    assert not list(dirs[0].parent.glob("*/*damaged*"))
    store.close()


@pytest.mark.parametrize("number", sorted(NO_RESOURCES))
def test_copy_that_cannot_be_opened_for_now_is_not_dropped(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = store_of(dirs)
    store.multi([CreateOp("/a", b"1")])
    store.close()

    def lacks(directory: Path) -> None:
        if directory == dirs[1]:
            raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(store_copy, "sync_directory", lacks)
        with pytest.raises(OSError, match=os.strerror(number)):
            store_of(dirs)
    store = store_of(dirs)
    assert store.directories == dirs
    store.close()


def test_writes_need_no_descriptor(dirs: list[Path]) -> None:
    store = store_of(dirs)
    with few_descriptors(0):
        for number in range(300):  # more than a WAL holds
            store.multi([CreateOp(f"/n{number}-{part}", bytes(2000)) for part in range(20)])
        assert store.directories == dirs
    store.close()
    store = store_of(dirs)
    assert len(store.children("/")) == 6000
    store.close()


@pytest.mark.parametrize("number", sorted(NO_RESOURCES))
def test_write_that_no_descriptor_is_left_for_is_refused(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = store_of(dirs)
    apply = StoreCopy.apply

    def cannot_open(*_: object, **__: object) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    def lacks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(StoreCopy, "apply", cannot_open)
        patch.setattr(store_copy.os, "open", lacks)
        with pytest.raises(WriteRefused):
            store.multi([CreateOp("/a", b"1")])
    assert StoreCopy.apply is apply
    store.multi([CreateOp("/a", b"2")])
    assert store.directories == dirs
    store.close()
