"""The store on three ZooKeeper servers: some of them go, and the majority with them."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from plog.cluster import zookeeper_client
from plog.cluster.store import Change, SessionEvent, Unreachable, WatchEvent
from plog.cluster.zookeeper_store import ZooKeeperStore
from tests.cluster.zookeepers import Ensemble

WAIT_S = 60


@pytest.fixture
def store(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZooKeeperStore]:
    monkeypatch.setattr(zookeeper_client, "RECONNECT_S", 0.01)
    opened = ZooKeeperStore(f"{ensemble.bootstrap}/{uuid.uuid4()}", session_timeout_ms=10_000)
    yield opened
    opened.close()


def certainly_set(store: ZooKeeperStore, path: str, data: bytes) -> None:
    """Write, and again while the outcome is unknown."""
    for _ in range(20):
        try:
            store.set(path, data)
        except Unreachable:
            continue
        return
    raise AssertionError("no server answers")


def test_session_outlives_any_server(ensemble: Ensemble, store: ZooKeeperStore) -> None:
    seen: queue.Queue[WatchEvent] = queue.Queue()
    store.create("/mine", ephemeral=True)
    store.watch_data("/mine", seen.put)
    session = store.session
    for number in (ensemble.leader, 1, 2, 3):
        ensemble.kill(number)
        certainly_set(store, "/mine", b"%d" % number)
        assert seen.get(timeout=WAIT_S) == WatchEvent(Change.CHANGED, "/mine")
        assert store.get("/mine")[0] == b"%d" % number
        ensemble.start(number)
        while not seen.empty():
            seen.get()
    assert store.session == session


def test_lost_majority_is_waited_for(ensemble: Ensemble, store: ZooKeeperStore) -> None:
    states: queue.Queue[SessionEvent] = queue.Queue()
    store.create("/n", b"before")
    store.watch_session(states.put)
    ensemble.kill(1)
    ensemble.kill(2)
    while states.get(timeout=WAIT_S) is not SessionEvent.SUSPENDED:
        continue
    with pytest.raises(Unreachable):
        store.set("/n", b"lost or not")
    ensemble.start(1, 2)
    assert store.get("/n")[0] in (b"before", b"lost or not")
    certainly_set(store, "/n", b"after")
    assert store.get("/n")[0] == b"after"


def test_sync_brings_what_others_wrote(ensemble: Ensemble) -> None:
    # Without it, a server that goes on answers most reads before it applies what it has missed.
    leader = ensemble.leader
    follower = next(number for number in ensemble.ports if number != leader)
    root = uuid.uuid4()

    def synced() -> bytes:
        reader.sync()
        return reader.get("/n")[0]

    with (
        closing(ZooKeeperStore(f"{ensemble.address(leader)}/{root}")) as writer,
        closing(ZooKeeperStore(f"{ensemble.address(follower)}/{root}")) as reader,
        ThreadPoolExecutor(1) as beside,
    ):
        writer.create("/n", b"0")
        for value in range(1, 20):
            ensemble.pause(follower)
            writer.set("/n", b"%d" % value)
            found = beside.submit(synced)
            ensemble.pause(follower, goes_on=True)
            assert int(found.result(WAIT_S)) == value
