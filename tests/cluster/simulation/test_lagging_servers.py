"""What a session sees of servers that lag, and what a broker makes of it."""

from __future__ import annotations

import pytest

from plog.cluster.broker_registration import (
    BrokerRegistration,
    check_is_free,
    create_persistent_paths,
)
from plog.cluster.store import BadVersion, WatchEvent
from plog.cluster.znodes import (
    CONTROLLER_EPOCH,
    BrokerNode,
    Endpoint,
    encode_controller_epoch,
)
from plog.errors import DuplicateBrokerRegistration
from tests.cluster.simulation.scheduler import Scheduler
from tests.cluster.simulation.zookeeper import SESSION_MS, SimStore, SimZooKeeper

LAG_MS = 10_000
NODE = BrokerNode((Endpoint("PLAINTEXT", "h", 9092),), 1)
SEEDS = range(20)


class Servers:
    """Two sessions: one that writes /a, and one whose servers lag."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.zookeeper = SimZooKeeper(self.scheduler)
        self.writer = SimStore(self.zookeeper, "writer")
        self.reader = SimStore(self.zookeeper, "reader")
        self.writer.create("/a", b"0")
        self.reader.lag(LAG_MS)

    def write(self, value: int) -> None:
        self.writer.set("/a", b"%d" % value)

    def read(self) -> int:
        return int(self.reader.get("/a")[0])


def test_reads_are_old_for_a_while_and_never_go_back() -> None:
    stale = 0
    for seed in SEEDS:
        servers = Servers(seed)
        seen = []
        for value in range(1, 20):
            servers.write(value)
            seen.append(servers.read())
            stale += seen[-1] < value
        assert seen == sorted(seen)
        servers.reader.lag(0)
        assert servers.read() == 19
    assert stale > 100


def test_lag_ends_by_itself() -> None:
    servers = Servers(1)
    servers.write(1)
    servers.scheduler.run(LAG_MS)
    servers.reader.lag_ms = 0
    assert servers.read() == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_sync_and_own_writes_bring_the_newest(seed: int) -> None:
    servers = Servers(seed)
    servers.write(1)
    servers.reader.sync()
    servers.reader.lag_ms = 0
    assert servers.read() == 1
    servers.reader.lag(LAG_MS)
    servers.write(2)
    with pytest.raises(BadVersion):
        servers.reader.set("/a", b"lost", 1)
    servers.reader.lag_ms = 0
    assert servers.read() == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_another_server_shows_nothing_older(seed: int) -> None:
    servers = Servers(seed)
    servers.write(1)
    seen = servers.read()
    servers.reader.disconnect(50)
    servers.write(2)
    servers.scheduler.run(1_000)
    assert servers.read() >= seen


@pytest.mark.parametrize("seed", SEEDS)
def test_new_session_begins_with_the_newest(seed: int) -> None:
    servers = Servers(seed)
    servers.write(1)
    servers.reader.lag_ms = LAG_MS * 10
    servers.reader.disconnect(2 * SESSION_MS)
    servers.write(2)
    servers.scheduler.run(3 * SESSION_MS)
    servers.reader.lag_ms = 0
    assert servers.read() == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_watch_reports_a_change_once_the_server_has_it(seed: int) -> None:
    servers = Servers(seed)
    events: list[WatchEvent] = []
    servers.reader.watch_data("/a", events.append)
    servers.reader.lag(LAG_MS)
    servers.write(1)
    seen = servers.read()
    servers.scheduler.run(1_000)
    assert len(events) == seen
    servers.scheduler.run(LAG_MS)
    assert len(events) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_id_is_free_once_its_registration_has_gone(seed: int) -> None:
    servers = Servers(seed)
    create_persistent_paths(servers.writer)
    BrokerRegistration(servers.writer, 0).register(NODE)
    servers.reader.lag(0)
    servers.reader.lag(LAG_MS)
    servers.writer.close()
    check_is_free(servers.reader, 0, NODE.endpoints)
    check_is_free(servers.reader, 1, NODE.endpoints)


@pytest.mark.parametrize("broker_id", [0, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_registration_is_in_the_way_once_it_is_written(seed: int, broker_id: int) -> None:
    servers = Servers(seed)
    create_persistent_paths(servers.writer)
    servers.reader.lag(0)
    servers.reader.lag(LAG_MS)
    BrokerRegistration(servers.writer, 0).register(NODE)
    with pytest.raises(DuplicateBrokerRegistration):
        check_is_free(servers.reader, broker_id, NODE.endpoints)


@pytest.mark.parametrize("seed", SEEDS)
def test_epochs_are_known_once_they_are_committed(seed: int) -> None:
    servers = Servers(seed)
    create_persistent_paths(servers.writer)
    registration = BrokerRegistration(servers.reader, 0)
    broker_epoch = registration.register(NODE)
    servers.reader.lag(LAG_MS)
    servers.writer.create(CONTROLLER_EPOCH, encode_controller_epoch(7))
    assert registration.has_epochs(7, broker_epoch)
    assert not registration.has_epochs(8, broker_epoch)
    assert not registration.has_epochs(7, broker_epoch + 1)
