"""A broker whose groups form at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.groups import FindCoordinatorRequest
from tests.handlers.wire import Speaker, create_topic, fresh_name, speak
from tests.servers import BrokerProcess

GROUPS_AT_ONCE = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 5,
}
PATIENCE_S = 60


def await_coordinator(wire: Speaker, group: str) -> None:
    """Wait until the group's partition is led and read."""
    until = time.monotonic() + PATIENCE_S
    while True:
        (found,) = wire.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4).coordinators
        if found.error_code == ErrorCode.NONE:
            return
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, found
        assert time.monotonic() < until, found
        time.sleep(0.02)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups"), overrides=GROUPS_AT_ONCE) as running:
        with closing(speak(running.port)) as wire:
            await_coordinator(wire, "any")
        yield running
    assert "met a bug" not in running.log, running.log


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Speaker]:
    with closing(speak(broker.port)) as connection:
        yield connection


@pytest.fixture
def topic(wire: Speaker) -> str:
    name = fresh_name()
    create_topic(wire, name)
    return name
