"""The handlers' brokers: one with three listeners and two log directories, others in-process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.cluster import disks
from tests.handlers.running import Running
from tests.handlers.twins import Twins
from tests.handlers.wire import Speaker, create_topic, speak
from tests.planes import Plane
from tests.servers import BrokerProcess, free_port

ADVERTISED = ("elsewhere.example", 19092)
"""What the third listener says of itself."""


class ManyListeners(BrokerProcess):
    """A broker whose second listener is bound and advertised alike, the third otherwise."""

    def __init__(self, directory: Path) -> None:
        port, self.second_port, self.third_port = free_port(), free_port(), free_port()
        host, advertised_port = ADVERTISED
        super().__init__(
            directory,
            overrides={
                "listeners": f"PLAINTEXT://127.0.0.1:{port},SECOND://127.0.0.1:{self.second_port},"
                f"THIRD://127.0.0.1:{self.third_port}",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},"
                f"SECOND://127.0.0.1:{self.second_port},THIRD://{host}:{advertised_port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT,"
                "THIRD:PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "group.initial.rebalance.delay.ms": 0,
                "num.partitions": 2,
                "broker.rack": "r1",
            },
            log_dirs=2,
        )
        self.port = port


@pytest.fixture(scope="package")
def broker(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyListeners]:
    with ManyListeners(tmp_path_factory.mktemp("handlers")) as running:
        yield running
    assert "failed with an internal error" not in running.log, running.log


@pytest.fixture
def wire(broker: ManyListeners) -> Iterator[Speaker]:
    connection = speak(broker.port)
    yield connection
    connection.close()


@pytest.fixture
def other_wire(broker: ManyListeners) -> Iterator[Speaker]:
    connection = speak(broker.port)
    yield connection
    connection.close()


@pytest.fixture
def topic(wire: Speaker) -> str:
    return create_topic(wire)[0]


@pytest.fixture
def own_broker(plane: Plane, tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Start brokers that one test may stop, kill and break."""
    started: list[BrokerProcess] = []

    def start(log_dirs: int = 1, port: int | None = None, **overrides: object) -> BrokerProcess:
        """`port` is one of the listeners', where those are among the overrides."""
        settings = {key.replace("_", "."): value for key, value in overrides.items()}
        one = BrokerProcess(
            tmp_path / f"broker{len(started)}", overrides=settings, log_dirs=log_dirs
        )
        one.port = port or one.port
        one.directory.mkdir()
        started.append(one.start())
        return one

    yield start
    for one in started:
        one.kill()


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    made = Twins(tmp_path_factory.mktemp("twins"))
    yield made
    assert made.plain.fast_requests == 0
    for one in made.both:
        one.stop()


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Running]:
    one = Running(tmp_path / "data")
    yield one
    one.stop()


@pytest.fixture
def two_disks(tmp_path: Path) -> Iterator[Running]:
    """A broker with two log directories, of which topic "t" has a partition each."""
    one = Running(tmp_path, log_dirs=f"{tmp_path / 'disk0'},{tmp_path / 'disk1'}")
    create_topic(one.wire, "t", 2)
    yield one
    one.stop()


@pytest.fixture
def soon_fast_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the broker starts: its disks are fast again after some writes, not some seconds."""
    monkeypatch.setattr(disks, "STEADY_US", 1)
