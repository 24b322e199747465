"""An embedded store goes to ZooKeeper, whole, and can go on wherever it was interrupted."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from plog.cluster import store_move
from plog.cluster.broker_registration import (
    create_persistent_paths,
    ensure_cluster_id,
)
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import Op, OpResult, Store, StoreError, Unreachable
from plog.cluster.store_copy import FILE_NAME
from plog.cluster.store_move import (
    MARK,
    check_not_moved,
    check_not_moving,
    check_target,
    copy_store,
    end_move,
    keep_files,
    nodes_to_move,
)
from plog.cluster.znodes import (
    BROKER_SEQUENCE,
    CLUSTER_ID,
    CONTROLLER,
    TOPICS,
    broker_path,
    topic_path,
)
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import InconsistentLogDirs
from plog.runtime.clock import SystemClock
from plog.storage.filesystem import Filesystem
from tests.cluster.zookeepers import Ensemble
from tests.compat.live_kafka import ZooKeeper

TOPIC_COUNT = 30


@pytest.fixture
def source(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore([tmp_path], clock=SystemClock())
    create_persistent_paths(store)
    ensure_cluster_id(store)
    for number in range(TOPIC_COUNT):
        path = topic_path(f"t{number}")
        store.create(path, b"x" * 1000 * number)
        store.create(f"{path}/partitions")
    for _ in range(3):
        store.set(BROKER_SEQUENCE, b"")
    store.create(CONTROLLER, b"me", ephemeral=True)
    store.create(broker_path(0), b"me", ephemeral=True)
    store.create("/config/changes/config_change_", b"old", sequential=True)
    yield store
    store.close()


@pytest.fixture
def target(zookeeper: ZooKeeper) -> Iterator[ZooKeeperStore]:
    with closing(ZooKeeperStore(f"{zookeeper.bootstrap}/{uuid.uuid4()}")) as store:
        yield store


def tree(store: Store) -> dict[str, bytes]:
    paths = [path for path in store.descendants("/") if path != "/"]
    return {path: store.get(path)[0] for path in paths}


def move(source: Store, target: Store) -> list[int]:
    counted: list[int] = []
    copy_store(source, target, nodes_to_move(source), counted.append)
    return counted


class Interrupted:
    """Writes to a target, until after a number of writes the connection goes."""

    def __init__(
        self, write: Callable[[Sequence[Op]], list[OpResult]], left: int, *, is_done: bool
    ) -> None:
        self._write = write
        self._left = left
        self._is_done = is_done
        """Whether the write without an answer is done."""

    def __call__(self, ops: Sequence[Op]) -> list[OpResult]:
        self._left -= 1
        if self._left == -1 and self._is_done:
            self._write(ops)
        if self._left < 0:
            raise Unreachable("gone")
        return self._write(ops)


def test_everything_goes_but_what_belongs_to_a_run(
    source: EmbeddedStore, target: ZooKeeperStore
) -> None:
    assert not check_target(source, target)
    counted = move(source, target)
    assert sum(counted) == len(nodes_to_move(source))
    with pytest.raises(InconsistentLogDirs, match="interrupted"):
        check_not_moving(target)
    end_move(target)
    check_not_moving(target)
    with pytest.raises(InconsistentLogDirs, match="is there already"):
        check_target(source, target)
    left = {CONTROLLER, broker_path(0), "/config/changes/config_change_0000000000"}
    wanted = {path: data for path, data in tree(source).items() if path not in left}
    moved = tree(target)
    moved.pop("/plog", None)
    wanted.pop("/plog", None)
    assert moved == wanted
    assert target.get(BROKER_SEQUENCE)[1].version == source.get(BROKER_SEQUENCE)[1].version


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
def test_move_that_is_interrupted_at_any_write_begins_again(
    source: EmbeddedStore, target: ZooKeeperStore, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_move, "NODES_AT_ONCE", 10)
    attempts = 0
    while True:
        with monkeypatch.context() as patch:
            patch.setattr(target, "multi", Interrupted(target.multi, attempts, is_done=is_done))
            try:
                move(source, target)
                break
            except Unreachable:
                attempts += 1
        begun = target.exists(MARK) is not None
        assert check_target(source, target) is begun
        if begun:
            with pytest.raises(InconsistentLogDirs):
                check_not_moving(target)
    assert attempts > 5
    end_move(target)
    assert len(target.children(TOPICS)) == TOPIC_COUNT


def remove_topic(source: Store, name: str) -> None:
    """Delete a topic's nodes, as a broker does that runs alone between two attempts."""
    for path in source.descendants(topic_path(name)):
        source.delete(path)


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
def test_topic_that_goes_between_two_attempts_goes_from_the_target(
    source: EmbeddedStore, target: ZooKeeperStore, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt comes one write further, and is interrupted in what the one before has left."""
    monkeypatch.setattr(store_move, "NODES_AT_ONCE", 10)
    for attempt in range(TOPIC_COUNT):
        with monkeypatch.context() as patch:
            patch.setattr(target, "multi", Interrupted(target.multi, attempt, is_done=is_done))
            with suppress(Unreachable):
                move(source, target)
        remove_topic(source, f"t{attempt}")
        source.create(topic_path(f"new{attempt}"))
        assert check_target(source, target) is (target.exists(MARK) is not None)
    move(source, target)
    end_move(target)
    wanted = sorted(f"new{number}" for number in range(TOPIC_COUNT))
    assert target.children(TOPICS) == wanted
    assert target.exists(MARK) is None


def test_node_that_another_program_wrote_first_is_foreign(
    source: EmbeddedStore, target: ZooKeeperStore
) -> None:
    """The move would have written the same path, but has not come to it."""
    theirs = topic_path("theirs")
    with pytest.raises(ZeroDivisionError):
        copy_store(source, target, nodes_to_move(source), lambda _: 1 // 0)
    target.create(theirs, b"theirs")
    source.create(theirs, b"own")
    with pytest.raises(InconsistentLogDirs, match=f"other nodes: {theirs};"):
        check_target(source, target)
    with pytest.raises(StoreError):
        move(source, target)
    assert target.get(theirs)[0] == b"theirs"


def test_end_that_is_interrupted_can_be_repeated(
    source: EmbeddedStore, target: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_move, "NODES_AT_ONCE", 2)
    move(source, target)
    attempts = 0
    while target.exists(MARK) is not None:
        with pytest.raises(InconsistentLogDirs, match="interrupted"):
            check_not_moving(target)
        with monkeypatch.context() as patch, suppress(Unreachable):
            patch.setattr(target, "multi", Interrupted(target.multi, 1, is_done=False))
            end_move(target)
        attempts += 1
    assert attempts > 5
    check_not_moving(target)
    assert len(target.children(TOPICS)) == TOPIC_COUNT


def test_place_of_another_cluster_is_refused(source: EmbeddedStore, target: ZooKeeperStore) -> None:
    create_persistent_paths(target)
    with pytest.raises(InconsistentLogDirs, match="other nodes"):
        check_target(source, target)
    ensure_cluster_id(target)
    with pytest.raises(InconsistentLogDirs, match="is there already"):
        check_target(source, target)


def test_cluster_that_kafka_keeps_is_no_place_to_return_to(
    source: EmbeddedStore, target: ZooKeeperStore
) -> None:
    create_persistent_paths(target)
    target.create(CLUSTER_ID, source.get(CLUSTER_ID)[0], make_parents=True)
    with pytest.raises(InconsistentLogDirs, match="is there already; name an unused path"):
        check_target(source, target)
    target.ensure("/plog/log_dirs")
    with pytest.raises(InconsistentLogDirs, match="is there already, and this broker belongs to"):
        check_target(source, target)


@pytest.mark.parametrize(
    "theirs",
    ["/other-app", "/other-app/data", "/brokers/topics/theirs", "/brokers/topics/t0/theirs"],
)
def test_nodes_of_others_outlive_an_interrupted_move(
    source: EmbeddedStore, own_zookeeper: Ensemble, theirs: str
) -> None:
    with closing(ZooKeeperStore(own_zookeeper.bootstrap)) as root:
        assert not check_target(source, root), "it has nodes of ZooKeeper only"
        with pytest.raises(ZeroDivisionError):
            copy_store(source, root, nodes_to_move(source), lambda _: 1 // 0)
        assert check_target(source, root)
        root.create(theirs, b"theirs", make_parents=True)
        first = "/other-app" if theirs.startswith("/other-app") else theirs
        with pytest.raises(InconsistentLogDirs, match=f"other nodes: {first};"):
            check_target(source, root)
        with suppress(StoreError):
            move(source, root)
        assert root.get(theirs)[0] == b"theirs"
        root.delete(theirs)
        if first != theirs:
            root.delete(first)
        assert check_target(source, root)
        move(source, root)
        end_move(root)
        assert len(root.children(TOPICS)) == TOPIC_COUNT


def test_bare_servers_with_another_cluster_are_refused(
    source: EmbeddedStore, own_zookeeper: Ensemble
) -> None:
    with closing(ZooKeeperStore(f"{own_zookeeper.bootstrap}/kafka")) as other:
        create_persistent_paths(other)
    refused = pytest.raises(InconsistentLogDirs, match="other nodes: /kafka; name an unused path")
    with closing(ZooKeeperStore(own_zookeeper.bootstrap)) as root, refused:
        check_target(source, root)


def test_place_where_another_move_was_interrupted_is_refused(
    source: EmbeddedStore, target: ZooKeeperStore
) -> None:
    target.ensure(MARK)
    target.set(MARK, b"another")
    with pytest.raises(InconsistentLogDirs, match="another store"):
        check_target(source, target)


def test_other_writer_is_noticed(source: EmbeddedStore, target: ZooKeeperStore) -> None:
    def meddle(_: int) -> None:
        target.set(topic_path("t0"), b"meddled")

    with pytest.raises((InconsistentLogDirs, StoreError)):
        copy_store(source, target, nodes_to_move(source), meddle)


def test_files_are_kept_under_a_name_with_which_no_broker_starts(
    source: EmbeddedStore, tmp_path: Path
) -> None:
    check_not_moved([tmp_path])
    source.close()
    kept = keep_files(Filesystem(), [tmp_path])
    assert {path.name for path in kept} >= {FILE_NAME + store_move.MOVED_SUFFIX}
    assert not (tmp_path / FILE_NAME).exists()
    with pytest.raises(InconsistentLogDirs, match="moved to ZooKeeper"):
        check_not_moved([tmp_path])
