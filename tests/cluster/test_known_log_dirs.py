"""What a start concludes from the ids of log directories, and what it leaves alone meanwhile."""

from __future__ import annotations

import errno
import shutil
import uuid
from pathlib import Path

import pytest

from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.known_log_dirs import (
    LOG_DIRS,
    FoundLogDirs,
    find_known_log_dirs,
    find_log_dirs,
    forget_log_dirs,
    has_forgotten,
    judge,
    missing_log_dirs,
    register_log_dirs,
    registered_log_dirs,
)
from plog.cluster.znodes import MalformedNode
from plog.errors import InconsistentLogDirs, KafkaStorageError
from plog.runtime.clock import ManualClock
from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import LOCK_FILE, META_PROPERTIES
from plog.types import new_directory_id

CLOCK = ManualClock(10**12)
BROKER = 7


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three directories that a broker has claimed and registered."""
    made = [tmp_path / name for name in ("a", "b", "c")]
    found = find(made)
    store = EmbeddedStore(made, clock=CLOCK)
    for log_dir in found.locked:
        log_dir.claim(BROKER, "cluster")
    register_log_dirs(store, BROKER, ids_of(found))
    store.close()
    found.unlock()
    return made


def find(paths: list[Path], fs: Filesystem | None = None) -> FoundLogDirs:
    return find_log_dirs(fs or Filesystem(), paths, broker_id=BROKER, clock=CLOCK, is_shared=False)


def ids_of(found: FoundLogDirs) -> dict[uuid.UUID, Path]:
    return {one.directory_id or one.told_id(): one.path for one in found.locked}


def registered(paths: list[Path]) -> dict[uuid.UUID, Path]:
    store = EmbeddedStore(paths, clock=CLOCK)
    try:
        return registered_log_dirs(store, BROKER)
    finally:
        store.close()


class Unreadable(Filesystem):
    """Cannot read one directory's meta.properties."""

    def __init__(self, path: Path) -> None:
        self._path = path / META_PROPERTIES

    def read_bytes(self, path: Path) -> bytes:
        if path == self._path:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return super().read_bytes(path)


def test_registry_follows_and_forgets(paths: list[Path]) -> None:
    known = registered(paths)
    assert sorted(known.values()) == paths
    store = EmbeddedStore(paths, clock=CLOCK)
    first, second, third = known
    register_log_dirs(store, BROKER, {first: Path("/else\udcff")})
    assert registered_log_dirs(store, BROKER) == {**known, first: Path("/else\udcff")}
    forget_log_dirs(store, BROKER, [first], had_records=False)
    assert not has_forgotten(store, BROKER)
    forget_log_dirs(store, BROKER, [second])
    assert registered_log_dirs(store, BROKER) == {third: known[third]}
    assert has_forgotten(store, BROKER)
    register_log_dirs(store, BROKER, {first: paths[0]})
    assert has_forgotten(store, BROKER)
    assert not has_forgotten(store, BROKER + 1)
    forget_log_dirs(store, BROKER, [first])
    assert registered_log_dirs(store, BROKER + 1) == {}
    store.create(f"{LOG_DIRS}/{BROKER}/unnamed")
    with pytest.raises(MalformedNode, match="unnamed is not named by an id"):
        registered_log_dirs(store, BROKER)
    store.close()


def test_nothing_is_missed_where_everything_is_there_or_new(paths: list[Path]) -> None:
    more = paths[0].parent / "d"
    found = find([more, *paths])
    assert [one.path for one in found.locked] == [more, *paths]
    assert found.identity.broker_id == BROKER
    assert found.unmounted == {}
    assert judge(registered(paths), found) == ({}, {})
    found.unlock()


def test_empty_place_of_a_missing_directory_is_not_touched(paths: list[Path]) -> None:
    known = {path: one for one, path in registered(paths).items()}
    shutil.rmtree(paths[0])
    shutil.rmtree(paths[1])
    paths[1].mkdir()
    more = paths[0].parent / "d"
    # By a link it is the same place.
    link = paths[0].parent / "link"
    link.symlink_to(paths[1])
    found = find([paths[0], link, paths[2], more])
    assert found.unmounted == {paths[0]: known[paths[0]], link: known[paths[1]]}
    assert [one.path for one in found.locked] == [paths[2], more]
    missing, lost = judge(registered([paths[2]]), found)
    assert missing == {known[paths[0]]: paths[0], known[paths[1]]: paths[1]}
    assert lost == {}
    found.unlock()
    assert not paths[0].exists()
    assert list(paths[1].iterdir()) == []


def test_directory_that_cannot_be_read_is_failed_and_not_missing(paths: list[Path]) -> None:
    found = find(paths, Unreadable(paths[0]))
    assert judge(registered(paths), found) == ({}, {})
    found.unlock()
    # What was at its place may be it; what was elsewhere cannot.
    known = {path: one for one, path in registered(paths).items()}
    found = find(paths[:2], Unreadable(paths[0]))
    assert judge(registered(paths), found) == ({known[paths[2]]: paths[2]}, {})
    found.unlock()


def test_only_other_directory_that_fails_is_not_taken_for_a_new_broker(paths: list[Path]) -> None:
    (paths[0] / LOCK_FILE).unlink()
    (paths[0] / LOCK_FILE).mkdir()
    new = paths[0].parent / "d"
    with pytest.raises(KafkaStorageError, match=r"no log directory can be used: .*/a: "):
        find([paths[0], new])
    assert not new.exists()


def test_directory_without_an_id_is_the_one_that_was_there(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    known = {path: one for one, path in registered(paths).items()}
    identity = paths[0] / META_PROPERTIES
    identity.write_text("version=0\nbroker.id=7\ncluster.id=cluster\n")  # as an older Kafka does
    found = find(paths)
    store = EmbeddedStore(paths, clock=CLOCK)
    assert missing_log_dirs(store, BROKER, found) == {}
    found.locked[0].claim(BROKER, "cluster")
    assert found.locked[0].directory_id == known[paths[0]]
    # Of two that are missing there it could be either.
    identity.write_text("version=0\nbroker.id=7\ncluster.id=cluster\n")
    other = new_directory_id()
    register_log_dirs(store, BROKER, {other: paths[0]})
    missing = missing_log_dirs(store, BROKER, found)
    assert missing == dict.fromkeys((known[paths[0]], other), paths[0])
    assert caplog.text.count(f"log directory {paths[0]} (directory.id ") == 2
    assert found.locked[0].lost_id is None
    store.close()
    found.unlock()


def test_locks_are_given_back_when_a_start_is_refused(paths: list[Path]) -> None:
    copy = paths[0].parent / "d"
    shutil.copytree(paths[0], copy)
    for refused in ([*paths, copy], [paths[0], paths[0]]):
        with pytest.raises(InconsistentLogDirs):
            find(refused)
    assert find_known_log_dirs(Filesystem(), [copy.parent / "e"], broker_id=BROKER) is None
    found = find_known_log_dirs(Filesystem(), [*paths, copy.parent / "e"], broker_id=BROKER)
    assert found is not None
    assert [one.path for one in found.locked] == paths
    assert list(found.nobodys) == [copy.parent / "e"]
    found.unlock()
