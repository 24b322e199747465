"""Kafka 3.9 and plog, with the same settings, and the fixture that holds a case to both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.producers import InitProducerIdRequest
from tests.compat.against_kafka.differences import FROM_3_9
from tests.compat.against_kafka.held import Excuses, held
from tests.compat.against_kafka.pair import Case, Pair, Side
from tests.compat.live_kafka import Kafka, ZooKeeper
from tests.coordinator.conftest import await_coordinator
from tests.handlers.wire import eventually
from tests.planes import Plane
from tests.servers import BrokerProcess

SETTINGS: dict[str, object] = {
    "num.partitions": 3,
    "log.retention.ms": 360_000_000,
    "log.roll.hours": 200,
    "log.cleaner.threads": 2,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.max.size": 3,
}
Hold = Callable[[str, Case], None]
READY_S = 60


@pytest.fixture(scope="package")
def live_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    where = tmp_path_factory.mktemp("kafka")
    log_dirs = [where / "data0", where / "data1"]
    settings = {**SETTINGS, "log.dirs": ",".join(map(str, log_dirs))}
    extra = "".join(f"{key}={value}\n" for key, value in settings.items())
    zookeeper = ZooKeeper(where / "zookeeper", stops=False)
    try:
        broker = Kafka(where / "kafka", log_dirs[0], zookeeper, extra, stops=False)
        try:
            side = Side(broker.port, log_dirs)
            eventually(lambda: _hands_out_ids(side), "handing out producer ids", READY_S)
            yield side
        finally:
            broker.kill()  # nothing of it is looked at any more
    finally:
        zookeeper.kill()


def _hands_out_ids(side: Side) -> bool:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    return side.wire.ask(request, 4).error_code == ErrorCode.NONE


@contextmanager
def beside(live_kafka: Side, where: Path) -> Iterator[Pair]:
    """Run a plog broker of the same settings."""
    with BrokerProcess(where, overrides=SETTINGS, log_dirs=2) as broker:
        yield Pair(live_kafka, Side(broker.port, broker.log_dirs), FROM_3_9)
    assert "failed with an internal error" not in broker.log, broker.log


@pytest.fixture(scope="package")
def pair(live_kafka: Side, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Kafka, and plog as it is by default: for what both planes answer alike."""
    with beside(live_kafka, tmp_path_factory.mktemp("plog")) as both:
        yield both


@pytest.fixture(scope="package")
def pair_of_plane(
    plane: Plane, live_kafka: Side, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Kafka, and plog on each plane: for Produce and Fetch."""
    with beside(live_kafka, tmp_path_factory.mktemp("plog")) as both:
        yield both


@pytest.fixture
def groups_are_kept(pair: Pair) -> None:
    """Have both coordinate groups: what they keep them in is made when it is first asked for."""
    for side in pair.sides:
        await_coordinator(side.wire, "any")


@pytest.fixture
def hold(pair: Pair, excuses: Excuses) -> Hold:
    """Return what asks both, and fails where their answers are not as docs/SKIPPED.md says."""
    return partial(held, pair, excuses)


@pytest.fixture
def hold_on_plane(pair_of_plane: Pair, excuses: Excuses) -> Hold:
    """Return the same, for both planes."""
    return partial(held, pair_of_plane, excuses)
