"""The store that a start opens, with a real ZooKeeper, and what keeps a broker from starting."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from plog.cluster.broker_registration import read_cluster_id
from plog.cluster.cluster_store import ClusterStore
from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.known_log_dirs import find_log_dirs
from plog.cluster.session_file import SESSION_FILE
from plog.cluster.store import Unreachable
from plog.cluster.store_choice import open_store
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.errors import ConfigError, InconsistentLogDirs
from plog.runtime.clock import SystemClock
from plog.settings.definitions import BrokerSettings
from plog.storage.filesystem import Filesystem
from tests.compat.live_kafka import TICK_MS, ZooKeeper
from tests.servers import free_port

CLOCK = SystemClock()


class Starts:
    """Does what starts do up to the store, each in a log directory by name."""

    def __init__(self, place: Path, connect: str) -> None:
        self.place = place
        self.connect = connect
        self._open: dict[str, ExitStack] = {}

    def start(self, name: str, *, connect: str | None = None, **texts: str) -> ClusterStore:
        """Start; without a ZooKeeper if `connect` is empty."""
        connect = self.connect if connect is None else connect
        given = {key.replace("_", "."): value for key, value in texts.items()}
        if connect:
            given["zookeeper.connect"] = connect
        settings = BrokerSettings({"zookeeper.connection.timeout.ms": "2000", **given})
        found = find_log_dirs(
            Filesystem(),
            [self.place / name],
            broker_id=settings.broker_id,
            clock=CLOCK,
            is_shared=bool(connect),
        )
        undo = self._open[name] = ExitStack()
        undo.callback(found.unlock)
        cluster = open_store(settings, found, CLOCK)
        undo.callback(cluster.close)
        for log_dir in found.locked:
            log_dir.claim(cluster.broker_id, cluster.cluster_id)
        return cluster

    def stop(self, name: str) -> None:
        self._open.pop(name).close()

    def stop_all(self) -> None:
        for name in list(self._open):
            self.stop(name)


@pytest.fixture
def starts(tmp_path: Path, zookeeper: ZooKeeper) -> Iterator[Starts]:
    made = Starts(tmp_path, f"{zookeeper.bootstrap}/{uuid.uuid4()}")
    yield made
    made.stop_all()


def test_first_broker_makes_the_cluster_and_others_join_it(starts: Starts) -> None:
    first, second = starts.start("a", broker_id="1"), starts.start("b", broker_id="2")
    assert first.is_shared
    assert second.is_shared
    assert len(first.cluster_id) == 22
    assert first.cluster_id == second.cluster_id
    assert (first.broker_id, second.broker_id) == (1, 2)


def test_first_broker_makes_the_path_with_those_above(starts: Starts, zookeeper: ZooKeeper) -> None:
    nested = f"{zookeeper.bootstrap}/{uuid.uuid4()}/below"
    first = starts.start("a", connect=nested, broker_id="1")
    with closing(ZooKeeperStore(nested, makes_root=False)) as store:
        assert read_cluster_id(store) == first.cluster_id


def test_ids_are_generated_once_and_kept(starts: Starts) -> None:
    ids = [starts.start(name).broker_id for name in ("a", "b", "c")]
    assert ids == [1001, 1002, 1003]


def test_generated_id_is_kept_in_the_log_directory(starts: Starts) -> None:
    first = starts.start("a")
    starts.stop("a")
    (starts.place / "a").rename(starts.place / "moved")
    assert starts.start("moved").broker_id == first.broker_id == 1001


def test_embedded_store_is_opened_without_the_setting(starts: Starts) -> None:
    alone = starts.start("a", connect="", broker_id="3")
    assert not alone.is_shared
    assert isinstance(alone.store, EmbeddedStore)
    assert alone.session_timeout_ms == 0
    assert not (starts.place / "a" / SESSION_FILE).exists()


def test_store_of_its_own_is_not_left_behind(starts: Starts) -> None:
    starts.start("a", connect="", broker_id="3")
    starts.stop("a")
    with pytest.raises(ConfigError, match=r"has this broker's own coordination store.*move-store"):
        starts.start("a", broker_id="3")


def test_other_cluster_is_refused(starts: Starts, zookeeper: ZooKeeper) -> None:
    known = starts.start("a", broker_id="1").cluster_id
    starts.stop("a")
    elsewhere = f"{zookeeper.bootstrap}/{uuid.uuid4()}"
    other = starts.start("b", connect=elsewhere, broker_id="1").cluster_id
    with pytest.raises(InconsistentLogDirs, match=f"has cluster {other}, but .* cluster {known}"):
        starts.start("a", connect=elsewhere, broker_id="1")


def test_lost_cluster_is_refused(starts: Starts, zookeeper: ZooKeeper) -> None:
    known = starts.start("a", broker_id="1").cluster_id
    starts.stop("a")
    empty = f"{zookeeper.bootstrap}/{uuid.uuid4()}/below"
    with pytest.raises(InconsistentLogDirs, match=f"has no cluster, but .* cluster {known}"):
        starts.start("a", connect=empty, broker_id="1")
    with closing(ZooKeeperStore(empty, makes_root=False)) as store:
        assert store.exists("/") is None, "a start that is refused leaves no path"


def test_session_is_remembered_until_it_ends_in_order(starts: Starts) -> None:
    cluster = starts.start("a", broker_id="1", zookeeper_session_timeout_ms="7000")
    assert cluster.session_timeout_ms == 7000
    assert (starts.place / "a" / SESSION_FILE).stat().st_mode & 0o777 == 0o600
    starts.stop("a")
    assert not (starts.place / "a" / SESSION_FILE).exists()


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(60_000, 20 * TICK_MS), (7_000, 7_000)])
def test_other_session_time_than_the_broker_asks_for_is_logged(
    starts: Starts, caplog: pytest.LogCaptureFixture, asked_ms: int, given_ms: int
) -> None:
    cluster = starts.start("a", broker_id="1", zookeeper_session_timeout_ms=str(asked_ms))
    assert cluster.session_timeout_ms == given_ms
    said = [line for line in caplog.messages if "zookeeper.session.timeout.ms" in line]
    assert len(said) == (asked_ms != given_ms)
    assert all(f"{given_ms} ms" in line and f"{asked_ms} ms" in line for line in said)


def test_missing_server_is_reported_and_nothing_stays(starts: Starts) -> None:
    with pytest.raises(Unreachable, match="no ZooKeeper answers at 127"):
        starts.start(
            "a", connect=f"127.0.0.1:{free_port()}/x", zookeeper_connection_timeout_ms="300"
        )
    assert not (starts.place / "a" / SESSION_FILE).exists()


def test_broker_that_runs_alone_loads_no_client_of_zookeeper() -> None:
    """It would cost each start 80 ms, and 3 MB."""
    code = "import sys, plog.server; print([one for one in sys.modules if 'kazoo' in one])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]
