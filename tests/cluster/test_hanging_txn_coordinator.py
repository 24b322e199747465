"""Writes of a transaction whose coordinator hangs: refused before their clients give up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from plog.client.admin import Admin
from plog.coordinator.group_coordinator import OFFSETS_TOPIC
from plog.coordinator.txn_verifier import MIN_TIMEOUT_MS, TIMEOUT_MS, patience_s
from plog.errors import ErrorCode
from plog.types import TopicPartition
from tests.cluster.processes import Brokers
from tests.cluster.spanning import at_last
from tests.compat.live_kafka import ZooKeeper
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.handlers.wire import fresh_name
from tests.routed import Routed
from tests.transactions.transactor import Transactor
from tests.waiting import until

COORDINATOR, LEADER = 0, 1
CLIENT_MS = 2 * TIMEOUT_MS
"""How long the client waits. A producer of Kafka waits for 30 s."""
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    # The coordinator stays what it is while it hangs.
    "zookeeper_session_timeout_ms": 60_000,
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper) -> Iterator[Brokers]:
    directory: Path = tmp_path_factory.mktemp("brokers")
    with Brokers(directory, zookeeper.bootstrap, **SETTINGS) as running:
        yield running


@pytest.fixture
def wire(brokers: Brokers) -> Iterator[Routed]:
    with closing(Routed(brokers.ports, home=LEADER, timeout_ms=CLIENT_MS)) as routed:
        yield routed


def place_on(brokers: Brokers, wire: Routed, broker_id: int) -> TopicPartition:
    """Return a new partition that a broker leads."""
    topic = fresh_name()
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(topic, partitions=3)
    brokers.all_until(lambda admin: topic in admin.topics())
    places = [TopicPartition(topic, number) for number in range(3)]
    until(lambda: all(wire.leader(at) >= 0 for at in places), "led")
    return next(at for at in places if wire.leader(at) == broker_id)


def transactor(wire: Routed, *, own_epochs: bool) -> Transactor:
    name = wire.name_on(TRANSACTION, COORDINATOR, fresh_name())
    return Transactor(wire, name, own_epochs=own_epochs).start()  # type: ignore[arg-type]


@pytest.mark.parametrize("own_epochs", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("timeout_ms", [2_000, 60_000])
def test_write_is_refused_in_time_and_accepted_once_the_coordinator_is_back(
    brokers: Brokers, wire: Routed, own_epochs: bool, timeout_ms: int
) -> None:
    at, one = place_on(brokers, wire, LEADER), transactor(wire, own_epochs=own_epochs)
    one.join(at)
    with brokers[COORDINATOR].suspended():
        refused = one.produce(at, b"v", timeout_ms=timeout_ms)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert at_last(lambda: one.produce(at, b"v").error_code) is ErrorCode.NONE
    one.finish(commit=True)


def test_offsets_are_refused_in_time(brokers: Brokers, wire: Routed) -> None:
    one, at = transactor(wire, own_epochs=True), place_on(brokers, wire, LEADER)
    group = wire.name_on(GROUP, LEADER, fresh_name())
    await_coordinator(wire, group)  # type: ignore[arg-type]
    assert at.topic != OFFSETS_TOPIC
    with brokers[COORDINATOR].suspended():
        assert one.commit_offset(group, at, 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert at_last(lambda: one.commit_offset(group, at, 1)) is ErrorCode.NONE


def test_coordinator_has_half_of_a_requests_time_between_bounds() -> None:
    assert patience_s(None) == patience_s(2**31 - 1) == TIMEOUT_MS / 1000
    assert patience_s(0) == patience_s(-1) == MIN_TIMEOUT_MS / 1000
    assert patience_s(5_000) == 2.5
