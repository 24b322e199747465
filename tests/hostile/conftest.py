"""A broker for the attacks that leave nothing behind, brokers of one's own, and what is told."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile.watch import MIB, Siege, siege
from tests.planes import Plane
from tests.servers import BrokerProcess

BACKLOG = 1000
"""Hundreds connect at once here; with Kafka's 50 some would wait a second for their next try."""

Besiege = Callable[..., contextlib.AbstractContextManager[Siege]]


@pytest.fixture(scope="package")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    backlog = {"socket.listen.backlog.size": BACKLOG}
    with BrokerProcess(tmp_path_factory.mktemp("hostile"), overrides=backlog) as running:
        yield running
    assert "failed with an internal error" not in running.log, running.log


@pytest.fixture
def own_broker(plane: Plane, tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start brokers with settings of their own; what is still running afterwards must end well."""
    started: list[BrokerProcess] = []

    def start(*, launcher: list[str] | None = None, **overrides: object) -> BrokerProcess:
        given = {key.replace("_", "."): value for key, value in overrides.items()}
        settings = {"socket.listen.backlog.size": BACKLOG, **given}
        one = BrokerProcess(
            tmp_path / f"broker{len(started)}", overrides=settings, launcher=launcher
        )
        one.directory.mkdir()
        started.append(one.start())
        return one

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def besiege(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]):
    """`tests.hostile.watch.siege`, with what it finds told at the end of the run."""
    name = re.sub(r"^test_", "", request.node.name)

    def begin(broker: BrokerProcess, *, growth: int = 32 * MIB, pause_s: float = 0.01):
        return siege(
            broker,
            lambda line: record_property("figures", line),
            name,
            growth=growth,
            pause_s=pause_s,
        )

    return begin
