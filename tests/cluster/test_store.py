"""What every coordination store must do, whatever keeps its nodes."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from plog.cluster.store import (
    BadVersion,
    Change,
    CheckOp,
    CreateOp,
    DeleteOp,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SetOp,
    Stat,
    Store,
    WatchEvent,
    join,
    parent_of,
)
from plog.runtime.clock import ManualClock

WAIT_S = 40


def test_created_node_has_its_data_and_a_fresh_stat(store: Store, clock: ManualClock) -> None:
    assert store.create("/a", b"x") == "/a"
    clock.advance(5)
    time.sleep(0.006)  # for a store with a clock of its own
    stat = store.set("/a", b"y")
    data, read = store.get("/a")
    assert (data, read) == (b"y", stat)
    assert (stat.version, stat.ephemeral_owner, stat.num_children) == (1, 0, 0)
    assert stat.mzxid > stat.czxid > 0
    assert stat.mtime_ms - stat.ctime_ms >= 5


def test_ephemeral_node_is_owned_by_the_session(store: Store) -> None:
    store.create("/a", ephemeral=True)
    assert store.session_id != 0
    assert store.get("/a")[1].ephemeral_owner == store.session_id
    with pytest.raises(NoChildrenForEphemerals):
        store.create("/a/b")


def test_sequential_names_count_up_and_are_not_given_twice(store: Store) -> None:
    store.create("/q")
    assert store.create("/q/n_", sequential=True) == "/q/n_0000000000"
    assert store.create("/q/n_", sequential=True) == "/q/n_0000000001"
    store.delete("/q/n_0000000001")
    assert store.create("/q/n_", b"z", sequential=True) == "/q/n_0000000002"
    assert store.children("/q") == ["n_0000000000", "n_0000000002"]


def test_version_of_a_node_set_empty_counts_up(store: Store) -> None:
    # What generated broker ids rely on (/brokers/seqid).
    store.create("/seqid")
    assert [store.set("/seqid", b"").version for _ in range(3)] == [1, 2, 3]


REFUSED = [
    (CreateOp("/a"), NodeExists),
    (CreateOp("/missing/b"), NoNode),
    (SetOp("/missing", b""), NoNode),
    (SetOp("/a", b"", 7), BadVersion),
    (DeleteOp("/missing"), NoNode),
    (DeleteOp("/a", 7), BadVersion),
    (DeleteOp("/full"), NotEmpty),
    (CheckOp("/a", 7), BadVersion),
    (CheckOp("/missing", 0), NoNode),
]


@pytest.mark.parametrize(("op", "error"), REFUSED, ids=lambda value: str(value))
def test_multi_with_a_refused_operation_changes_nothing(store: Store, op, error) -> None:
    store.create("/a", b"before")
    store.create("/full")
    store.create("/full/child")
    before = {path: store.get(path) for path in ("/a", "/full", "/full/child")}
    with pytest.raises(error) as caught:
        store.multi([SetOp("/full/child", b"lost"), CreateOp("/c"), op])
    assert caught.value.op_index == 2
    assert {path: store.get(path) for path in before} == before
    assert store.exists("/c") is None


def test_multi_sees_its_own_operations_and_answers_each(store: Store) -> None:
    store.create("/a", b"1")
    results = store.multi(
        [
            CheckOp("/a", 0),
            SetOp("/a", b"2", 0),
            CreateOp("/a/b"),
            CreateOp("/a/b/n_", sequential=True),
            SetOp("/a/b", b"3", 0),
            DeleteOp("/a/b/n_0000000000"),
            DeleteOp("/a/b", 1),
            CreateOp("/a/b", b"again"),
        ]
    )
    assert results[0] is None
    assert isinstance(results[1], Stat)
    assert results[1].version == 1
    assert results[2:4] == ["/a/b", "/a/b/n_0000000000"]
    assert isinstance(results[4], Stat)
    assert results[5:] == [None, None, "/a/b"]
    data, stat = store.get("/a/b")
    assert (data, stat.version) == (b"again", 0)
    assert store.get("/a")[1].num_children == 1


def test_broker_epoch_is_read_from_the_set_of_create_and_set(store: Store) -> None:
    store.create("/ids")
    _, stat = store.multi([CreateOp("/ids/0", ephemeral=True), SetOp("/ids/0", b"{}", 0)])
    assert isinstance(stat, Stat)
    assert stat.czxid == store.get("/ids/0")[1].czxid
    store.delete("/ids/0")
    store.create("/ids/0", ephemeral=True)
    assert store.get("/ids/0")[1].czxid > stat.czxid


def test_make_parents_creates_what_is_missing(store: Store) -> None:
    store.create("/a")
    store.create("/a/b/c/d", b"x", make_parents=True)
    assert store.descendants("/a") == ["/a/b/c/d", "/a/b/c", "/a/b", "/a"]
    store.ensure("/a/b/c")
    assert store.get("/a/b")[0] == b""


def test_reading_what_is_not_there(store: Store) -> None:
    assert store.exists("/a") is None
    assert store.descendants("/a") == []
    with pytest.raises(NoNode):
        store.get("/a")
    with pytest.raises(NoNode):
        store.children("/a")
    with pytest.raises(NoNode):
        store.watch_children("/a", lambda event: None)


@pytest.mark.parametrize("path", ["a", "/a/", "//a", "/a/../b", "/.", "/a\0b"])
def test_a_path_zookeeper_would_refuse_is_refused(store: Store, path: str) -> None:
    store.create("/a")
    with pytest.raises((ValueError, NoNode)):
        store.create(path)


def events_until(seen: queue.Queue[WatchEvent], last: WatchEvent) -> list[WatchEvent]:
    found = []
    while not found or found[-1] != last:
        found.append(seen.get(timeout=WAIT_S))
    return found


def test_watches_stay_armed_and_come_in_order(store: Store) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    store.create("/p")
    store.watch_data("/p/x", seen.put)
    store.watch_children("/p", seen.put)
    found: list[WatchEvent] = []
    steps = [
        (Change.CREATED, lambda: store.create("/p/x")),
        (Change.CHANGED, lambda: store.set("/p/x", b"1")),
        (Change.CHANGED, lambda: store.set("/p/x", b"2")),
        (Change.DELETED, lambda: store.delete("/p/x")),
        (Change.CREATED, lambda: store.create("/p/x")),
    ]
    for change, act in steps:
        act()
        store.ensure("/p/y")
        # The store may report two changes that come close together as one.
        found += events_until(seen, WatchEvent(change, "/p/x"))
    assert WatchEvent(Change.CHILDREN, "/p") in found
    assert WatchEvent(Change.CREATED, "/p/y") not in found


def test_cancelled_watch_is_silent(store: Store) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    silent = store.watch_data("/x", lambda event: pytest.fail("cancelled"))
    store.watch_data("/x", seen.put)
    silent.cancel()
    store.create("/x")
    assert seen.get(timeout=WAIT_S) == WatchEvent(Change.CREATED, "/x")


MANY = 450  # more than a store asks at a time


def test_many_nodes_are_watched_together_each_on_its_own(store: Store) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    store.create("/p")
    paths = [f"/p/{number}" for number in range(MANY)]
    store.multi([CreateOp(path) for path in paths[::2]])  # the others do not exist yet
    watches = store.watch_data_many([*paths, paths[1]], seen.put)
    assert len(watches) == MANY + 1
    watches[0].cancel()
    store.multi([SetOp(path, b"x") for path in paths[::2]])
    store.multi([CreateOp(path) for path in paths[1::2]])
    found = [seen.get(timeout=WAIT_S) for _ in range(MANY)]
    created = [WatchEvent(Change.CREATED, path) for path in [paths[1], *paths[1::2]]]
    changed = [WatchEvent(Change.CHANGED, path) for path in paths[2::2]]
    assert sorted(found, key=str) == sorted([*created, *changed], key=str)
    for path in paths[1:3]:  # both stay armed
        store.set(path, b"again")
    assert events_until(seen, WatchEvent(Change.CHANGED, paths[2]))
    assert seen.empty()
    assert store.watch_data_many([], seen.put) == []


def test_node_that_is_read_after_it_is_watched_is_not_missed(store: Store) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    store.create("/p")
    paths = [f"/p/{number}" for number in range(20)]
    store.watch_data_many(paths, seen.put)
    assert store.get_many(paths) == [None] * 20
    store.multi([CreateOp(path) for path in paths])
    assert {seen.get(timeout=WAIT_S).path for _ in paths} == {*paths}


def test_refused_multi_wakes_no_watch(store: Store) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    store.create("/x")
    store.watch_data("/x", seen.put)
    with pytest.raises(NoNode):
        store.multi([SetOp("/x", b"1"), DeleteOp("/missing")])
    store.delete("/x")
    assert seen.get(timeout=WAIT_S).change is Change.DELETED


def test_of_racing_writers_each_version_has_one_winner(store: Store) -> None:
    store.create("/n", b"")
    won: list[int] = []

    def race() -> None:
        for _ in range(25):
            version = store.get("/n")[1].version
            try:
                store.set("/n", b"", version)
            except BadVersion:
                continue
            won.append(version)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(len(won)))
    assert store.get("/n")[1].version == len(won)


@pytest.mark.parametrize(
    ("path", "parent"), [("/", "/"), ("/a", "/"), ("/a/b", "/a"), ("/a/b/c", "/a/b")]
)
def test_parent_of_is_undone_by_join(path: str, parent: str) -> None:
    assert parent_of(path) == parent
    if path != "/":
        assert join(parent, path.rpartition("/")[2]) == path
