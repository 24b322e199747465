"""Brokers whose ids are free at once, although they did not end their sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster.session_file import SESSION_FILE
from tests.cluster.processes import Brokers
from tests.cluster.zookeepers import Ensemble
from tests.servers import BrokerProcess

SESSION_MS = 60_000
"""Longer than a test waits: none of them passes because a session has expired."""


@pytest.fixture
def brokers(tmp_path: Path, own_zookeeper: Ensemble) -> Iterator[Brokers]:
    running = Brokers(
        tmp_path,
        own_zookeeper.bootstrap,
        2,
        zookeeper_session_timeout_ms=SESSION_MS,
        controlled_shutdown_enable="false",
    )
    with running:
        yield running


@pytest.fixture
def broker(brokers: Brokers) -> BrokerProcess:
    """The one that is not the controller: that waits for ZooKeeper when it stops."""
    return brokers[1 - brokers.controller]


def test_broker_that_stopped_without_zookeeper_starts_at_once(
    broker: BrokerProcess, own_zookeeper: Ensemble
) -> None:
    own_zookeeper.kill(1)
    broker.stop()
    assert (broker.log_dirs[0] / SESSION_FILE).exists()
    own_zookeeper.start(1)
    broker.start()
    assert broker.log.count("of the process before") == 1
    broker.stop()
    assert not (broker.log_dirs[0] / SESSION_FILE).exists()


def test_killed_broker_starts_at_once_with_other_names_of_the_servers(
    broker: BrokerProcess, own_zookeeper: Ensemble
) -> None:
    broker.kill()
    path = str(broker.overrides["zookeeper.connect"]).partition("/")[2]
    address = own_zookeeper.address(1)
    broker.overrides["zookeeper.connect"] = f"{address},{address}/{path}"
    broker.start()
    assert broker.log.count("of the process before") == 1
