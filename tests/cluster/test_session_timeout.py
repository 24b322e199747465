"""The servers decide for how long they keep a silent session, whatever a broker asks for."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster.store import SessionEvent, Unreachable
from plog.cluster.zookeeper_store import ZooKeeperStore
from tests.cluster.cutting_proxy import CuttingProxy
from tests.cluster.node import Node
from tests.compat.live_kafka import ZooKeeper
from tests.waiting import until

TICK_MS = 100
MIN_MS, MAX_MS = 2 * TICK_MS, 20 * TICK_MS
"""What a server gives, as its settings do not say."""
ASKED_MS = 3_600_000


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """A server that keeps silent sessions for a short time only."""
    running = ZooKeeper(tmp_path_factory.mktemp("strict"), tick_ms=TICK_MS)
    yield running
    running.kill()


def open_store(port: int, asked_ms: int) -> ZooKeeperStore:
    return ZooKeeperStore(f"127.0.0.1:{port}/{uuid.uuid4()}", session_timeout_ms=asked_ms)


@pytest.mark.parametrize(
    ("asked_ms", "given_ms"), [(MAX_MS + 1, MAX_MS), (MIN_MS - 1, MIN_MS), (1_000, 1_000)]
)
def test_session_has_the_time_that_the_servers_give(
    strict: ZooKeeper, asked_ms: int, given_ms: int
) -> None:
    store = open_store(strict.port, asked_ms)
    assert store.session_timeout_ms == given_ms
    store.close()


def test_controller_without_servers_resigns_once_its_session_may_be_over(
    strict: ZooKeeper, tmp_path: Path
) -> None:
    proxy = CuttingProxy(strict.port)
    store = open_store(proxy.port, ASKED_MS)
    node = Node([tmp_path], store=store, session_ms=lambda: store.session_timeout_ms)
    until(lambda: node.controller.is_active)
    proxy.refuse()
    until(lambda: not node.controller.is_active, "it resigned")
    proxy.refuse(is_refusing=False)
    until(lambda: node.controller.is_active)
    node.stop()
    store.close()
    proxy.close()


def test_call_without_servers_ends_in_the_time_of_the_session(strict: ZooKeeper) -> None:
    proxy = CuttingProxy(strict.port)
    store = open_store(proxy.port, ASKED_MS)
    events: list[SessionEvent] = []
    store.watch_session(events.append)
    proxy.refuse()
    until(lambda: SessionEvent.SUSPENDED in events)
    outcomes = []

    def call() -> None:
        try:
            store.create("/n")
        except Unreachable as reason:
            outcomes.append(reason)

    threading.Thread(target=call, daemon=True).start()
    until(lambda: outcomes)
    store.close()
    proxy.close()
