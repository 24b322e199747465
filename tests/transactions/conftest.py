"""A broker with few partitions of its own topics, so that they are soon there; on both planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from plog.types import TopicPartition
from tests.coordinator.conftest import GROUP, TRANSACTION, await_coordinator
from tests.handlers.wire import Speaker, create_topic, fresh_name, speak
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.transactions.transactor import Transactor

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}

Enter = Callable[..., Transactor]


@pytest.fixture(scope="package")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("transactions"), overrides=SETTINGS) as running:
        with closing(speak(running.port)) as wire:
            for kind in (GROUP, TRANSACTION):
                await_coordinator(wire, "any", kind)
        yield running
    assert "failed with an internal error" not in running.log, running.log


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Speaker]:
    with closing(speak(broker.port)) as connection:
        yield connection


@pytest.fixture
def at(wire: Speaker) -> TopicPartition:
    """A partition of a new topic of three."""
    name, _ = create_topic(wire, fresh_name(), partitions=3)
    return TopicPartition(name, 0)


def _entering(broker: BrokerProcess, *, own_epochs: bool) -> Iterator[Enter]:
    with ExitStack() as open_ones:

        def make(transactional_id: str | None = None, **options: int) -> Transactor:
            wire = open_ones.enter_context(closing(speak(broker.port)))
            name = transactional_id or fresh_name()
            return Transactor(wire, name, own_epochs=own_epochs, **options).start()

        yield make


@pytest.fixture
def enter(broker: BrokerProcess) -> Iterator[Enter]:
    """Make producers of a transactional id each, a new one unless it is named."""
    yield from _entering(broker, own_epochs=False)


@pytest.fixture
def enter_2(broker: BrokerProcess) -> Iterator[Enter]:
    """Make such as have an epoch for each transaction."""
    yield from _entering(broker, own_epochs=True)


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def enter_any(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Enter]:
    """Make such as the one, and then the other."""
    yield from _entering(broker, own_epochs=request.param)
