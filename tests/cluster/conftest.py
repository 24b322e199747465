"""Stores for the tests: every implementation goes through the same conformance suite."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import Store
from plog.cluster.zookeeper_store import ZooKeeperStore
from plog.runtime.clock import ManualClock
from tests.cluster.zookeepers import Ensemble
from tests.compat.live_kafka import ZooKeeper

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def log_dirs(tmp_path: Path) -> list[Path]:
    directories = [tmp_path / "d0", tmp_path / "d1"]
    for directory in directories:
        directory.mkdir()
    return directories


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One server, for all tests of a process. Each store has a path of its own."""
    running = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield running
    running.kill()


@pytest.fixture(scope="package")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three servers. A test that kills one starts it again."""
    running = Ensemble(tmp_path_factory.mktemp("ensemble"))
    yield running
    running.close()


@pytest.fixture(params=["embedded", "zookeeper", "ensemble"])
def store(
    request: pytest.FixtureRequest, log_dirs: list[Path], clock: ManualClock
) -> Iterator[Store]:
    if request.param == "embedded":
        opened: Store = EmbeddedStore(log_dirs, clock=clock)
    else:
        running = request.getfixturevalue(request.param)
        opened = ZooKeeperStore(f"{running.bootstrap}/{uuid.uuid4()}")
    yield opened
    opened.close()


@pytest.fixture
def embedded(log_dirs: list[Path], clock: ManualClock) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(log_dirs, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[Ensemble]:
    """A server that the test may stop, suspend, or give other data."""
    running = Ensemble(tmp_path / "zookeeper", 1)
    yield running
    running.close()
