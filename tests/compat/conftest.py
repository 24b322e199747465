"""One broker for all of today's clients; every test has topics of its own."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from plog.client.admin import Admin
from tests.compat.against_kafka.held import Excuses
from tests.planes import Plane
from tests.servers import BrokerProcess
from tests.several_brokers import until_topic_is_known

OVERRIDES: dict[str, object] = {
    "message.max.bytes": 12 * 1024 * 1024,
    "num.partitions": 4,
    # Groups form at once.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 3,
}


@pytest.fixture(scope="package")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("compat")
    with BrokerProcess(directory, overrides=OVERRIDES) as running:
        yield running


@pytest.fixture(scope="session")
def excused() -> Counter[str]:
    """How many cases of each file passed though a live Kafka had answered otherwise."""
    return Counter()


@pytest.fixture
def excuses(
    excused: Counter[str],
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> Excuses:
    """Return what tells of such cases in the run's figures, and bounds them."""
    file = request.path.relative_to(request.config.rootpath).as_posix()
    return Excuses(file, excused, record_property)


_numbers = itertools.count()


@pytest.fixture
def new_topic(broker: BrokerProcess) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: object) -> str:
        name = f"t{next(_numbers)}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        with Admin(broker.bootstrap) as admin:
            admin.create_topic(name, partitions=partitions, configs=settings)
        until_topic_is_known(broker.bootstrap, name)
        return name

    return create
