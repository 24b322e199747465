"""A broker whose groups form at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.group_admin import DescribeGroupsRequest
from plog.protocol.messages.groups import FindCoordinatorRequest
from plog.protocol.messages.transactions import DescribeTransactionsRequest
from tests.handlers.wire import Speaker, create_topic, fresh_name, speak
from tests.servers import BrokerProcess
from tests.waiting import until

GROUPS_AT_ONCE = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 5,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
}
GROUP, TRANSACTION = 0, 1
"""What a coordinator is asked for."""


def await_coordinator(wire: Speaker, key: str, kind: int = GROUP) -> None:
    """Wait until the partition of a group, or of a transactional id, is led and read."""

    def is_found() -> bool:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        (found,) = wire.ask(request, 4).coordinators
        assert found.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE), found
        return bool(found.error_code == ErrorCode.NONE)

    def is_read() -> bool:
        # It is found as soon as its log is somebody's to read.
        if kind == GROUP:
            (told,) = wire.ask(DescribeGroupsRequest(groups=[key]), 5).groups
        else:
            request = DescribeTransactionsRequest(transactional_ids=[key])
            (told,) = wire.ask(request, 0).transaction_states
        return told.error_code not in (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
        )

    until(is_found, "found")
    until(is_read, "read")


def await_groups(broker: BrokerProcess, *groups: str) -> None:
    """Wait for the coordinators of these."""
    with closing(speak(broker.port)) as wire:
        for group in groups:
            await_coordinator(wire, group)


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups"), overrides=GROUPS_AT_ONCE) as running:
        with closing(speak(running.port)) as wire:
            await_coordinator(wire, "any")
        yield running
    assert "failed with an internal error" not in running.log, running.log


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Speaker]:
    with closing(speak(broker.port)) as connection:
        yield connection


@pytest.fixture
def topic(wire: Speaker) -> str:
    name = fresh_name()
    create_topic(wire, name)
    return name
