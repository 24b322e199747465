"""A second process with the id of a live broker: it is refused, and has changed nothing."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path

import pytest

from plog.cluster.broker_registration import BrokerRegistration
from plog.cluster.known_log_dirs import find_log_dirs
from plog.cluster.store import Store
from plog.cluster.znodes import BrokerNode, Endpoint
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import DuplicateBrokerRegistration
from plog.runtime.clock import SystemClock
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from plog.storage.log_manager import LogManager
from plog.wiring.base import open_base
from tests.cluster.processes import Brokers
from tests.compat.live_kafka import ZooKeeper
from tests.servers import BrokerProcess

KEYS = ("broker.id", "zookeeper.connect", "zookeeper.session.timeout.ms")


@pytest.fixture
def brokers(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    with Brokers(tmp_path, zookeeper.bootstrap, count=2) as running:
        yield running


def second_of(first: BrokerProcess, place: Path) -> BrokerProcess:
    """Return a broker with the id of another and log directories of its own, not started."""
    place.mkdir()
    return BrokerProcess(place, overrides={key: first.overrides[key] for key in KEYS})


def nodes(store: Store) -> dict[str, object]:
    """Return all nodes, with their data and versions."""
    paths = store.descendants("/")
    return dict(zip(paths, store.get_many(paths), strict=True))


def check_refused(brokers: Brokers, second: BrokerProcess) -> None:
    """Check that a start fails, and changes nothing in ZooKeeper."""
    with closing(brokers.store()) as store:
        before = nodes(store)
        with suppress(AssertionError):  # it has ended already, or listens for a moment
            second.start()
        assert second.wait() == 1
        assert nodes(store) == before


@pytest.mark.parametrize("is_copy", [False, True], ids=["empty directory", "copied directory"])
def test_start_with_the_id_of_a_live_broker_changes_nothing(
    brokers: Brokers, tmp_path: Path, is_copy: bool
) -> None:
    first = brokers[1]
    second = second_of(first, tmp_path / "second")
    if is_copy:
        shutil.copytree(first.log_dirs[0], second.log_dirs[0])
    check_refused(brokers, second)
    said = f"broker id 1 is registered by another process at {first.bootstrap}"
    assert f"\nplog: {said}" in second.log
    assert "ended session" not in second.log
    assert "is over" not in first.log


def test_start_with_the_address_of_another_broker_changes_nothing(brokers: Brokers) -> None:
    first, second = brokers.brokers
    second.stop()
    second.overrides["advertised.listeners"] = f"PLAINTEXT://{first.bootstrap}"
    check_refused(brokers, second)
    assert f"\nplog: broker 0 is registered at {first.bootstrap}, which broker 1" in second.log
    del second.overrides["advertised.listeners"]
    second.start()
    brokers.until_known()
    second.kill()
    second.start()  # beside the registration that it has left


def test_process_that_loads_its_logs_later_changes_nothing(
    tmp_path: Path, zookeeper: ZooKeeper
) -> None:
    """Two begin at once, and both find the id free."""
    connect = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
    static = BrokerSettings(
        {"broker.id": "1", "zookeeper.connect": connect, "log.dirs": str(tmp_path)}
    )
    clock, fs = SystemClock(), Filesystem()
    found = find_log_dirs(fs, [tmp_path], broker_id=1, clock=clock, is_shared=True)
    sooner = ZooKeeperStore(connect)
    before: dict[str, object] = {}

    def register_sooner(_: LogManager) -> None:
        BrokerRegistration(sooner, 1).register(BrokerNode((Endpoint("PLAINTEXT", "h", 1),), 1))
        before.update(nodes(sooner))

    async def start_later() -> None:
        async with AsyncExitStack() as undo:
            await open_base(static, fs, found, (), clock=clock, loading=register_sooner, undo=undo)

    with closing(sooner):
        with pytest.raises(DuplicateBrokerRegistration):
            asyncio.run(start_later())
        assert nodes(sooner) == before
    found.unlock()


def test_start_with_another_listener_between_brokers_changes_nothing(
    brokers: Brokers, tmp_path: Path
) -> None:
    """It would be reached, and reach no other broker: its partitions would serve no client."""
    third = second_of(brokers[1], tmp_path / "third")
    third.overrides |= {"broker.id": 2, "listeners": f"INSIDE://127.0.0.1:{third.port}"}
    third.overrides["listener.security.protocol.map"] = "INSIDE:PLAINTEXT"
    third.overrides["inter.broker.listener.name"] = "INSIDE"
    check_refused(brokers, third)
    said = "broker 2 would reach the others at their listener INSIDE, but broker 0 has only"
    assert f"\nplog: {said} PLAINTEXT: set inter.broker.listener.name" in third.log
