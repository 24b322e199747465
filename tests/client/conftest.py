"""One broker that creates no topics by itself; every test has topics of its own."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from plog.client.admin import Admin
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.several_brokers import until_topic_is_known
from tests.waiting import until

OVERRIDES = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "message.max.bytes": 8 * 1024 * 1024,
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 3,
}


HEARTBEAT = "plog heartbeat"
"""The name of these threads."""


@pytest.fixture(scope="package")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("client"), overrides=OVERRIDES) as running:
        yield running


@pytest.fixture(scope="package")
def bootstrap(broker: BrokerProcess) -> str:
    return broker.bootstrap


@pytest.fixture(scope="package")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as admin:
        yield admin


_numbers = itertools.count()


@pytest.fixture
def new_topic(admin: Admin, bootstrap: str) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: object) -> str:
        name = f"topic{next(_numbers)}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin.create_topic(name, partitions=partitions, configs=settings)
        until_topic_is_known(bootstrap, name)
        return name

    return create


@pytest.fixture(autouse=True)
def heartbeats_end() -> Iterator[None]:
    """Fail a test that leaves a heartbeat thread: its warnings would appear in later tests."""
    before = set(threading.enumerate())
    yield
    left = {one for one in threading.enumerate() if one.name == HEARTBEAT} - before
    until(lambda: not any(one.is_alive() for one in left))
