"""More connections than are allowed, and fewer descriptors than there are clients."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plog.protocol.messages.api_versions import ApiVersionsRequest
from tests.handlers.wire import WAIT_MS, eventually, speak
from tests.hostile.conftest import Besiege
from tests.hostile.frames import framed
from tests.hostile.watch import Siege, descriptors
from tests.servers import BrokerProcess

VERSIONS = framed(ApiVersionsRequest(client_software_name="h", client_software_version="1"), 3)


def is_served(port: int, source: str = "127.0.0.1") -> socket.socket | None:
    """Connect and ask for versions: the connection, or None if it was turned away.

    From ::1 it is to ::1, from an address of IPv4 to 127.0.0.1.
    """
    host = "::1" if ":" in source else "127.0.0.1"
    sock = socket.create_connection((host, port), WAIT_MS / 1000, source_address=(source, 0))
    try:
        sock.sendall(VERSIONS)
        if sock.recv(4):
            return sock
    except ConnectionError:
        pass
    sock.close()
    return None


@contextlib.contextmanager
def guests(port: int, asked: int, source: str = "127.0.0.1") -> Iterator[int]:
    """As many as get in of so many; they leave at the end."""
    found = [sock for _ in range(asked) if (sock := is_served(port, source)) is not None]
    try:
        yield len(found)
    finally:
        for sock in found:
            sock.close()


def expect_refusals(under: Siege, count: int, reason: str) -> None:
    """One line a second and no more, with the number of all so far."""
    told = [line for line in under.lines.all() if "refused connection from" in line]
    assert 1 <= len(told) <= count
    assert all(reason in line for line in told), told
    assert under.lines.grave() == told


def test_connections_over_max_connections_are_turned_away_and_others_served(
    own_broker: Callable[..., BrokerProcess], besiege: Besiege
) -> None:
    broker = own_broker(max_connections=20)
    with besiege(broker) as under:
        for _ in range(3):
            with guests(broker.port, 200) as inside:
                assert inside == 19
                under.bystander.go_on(5)
            eventually(lambda: _gets_in(broker.port), "there is room again")
    expect_refusals(under, 30, "max.connections (20) reached")


def _gets_in(port: int, source: str = "127.0.0.1") -> bool:
    sock = is_served(port, source)
    if sock is not None:
        sock.close()
    return sock is not None


def test_addresses_have_as_many_connections_as_their_caps_say(
    own_broker: Callable[..., BrokerProcess], besiege: Besiege
) -> None:
    broker = own_broker(
        max_connections_per_ip=5,
        max_connections_per_ip_overrides="localhost:40, 127.0.0.3:2,127.0.0.4:0,[::5]:1",
    )
    with besiege(broker) as under:
        with (
            guests(broker.port, 50, "127.0.0.2") as others,
            guests(broker.port, 50, "127.0.0.3") as fewer,
            guests(broker.port, 50, "127.0.0.4") as nobody,
            guests(broker.port, 60) as more,
        ):
            assert (others, fewer, nobody, more) == (5, 2, 0, 39)
            under.bystander.go_on(5)
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            eventually(lambda source=source: _gets_in(broker.port, source), "there is room again")
        assert not _gets_in(broker.port, "127.0.0.4")
    expect_refusals(under, 30, "max.connections.per.ip")


def ipv6_port() -> int:
    """Find a free port of ::1."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")


@pytest.mark.usefixtures("plane")
@pytest.mark.parametrize(
    ("overrides", "most", "most_by_ipv4"),
    [
        ("", 5, 5),
        ("[::1]:3", 3, 5),
        ("[0:0:0:0:0:0:0:1]:2,127.0.0.1:8", 2, 8),
        ("[::1]:0", 0, 5),
    ],
    ids=["all", "one", "written in full", "nobody"],
)
def test_ipv6_addresses_have_caps_of_their_own(
    tmp_path: Path, besiege: Besiege, overrides: str, most: int, most_by_ipv4: int
) -> None:
    broker = BrokerProcess(tmp_path)
    port = ipv6_port()
    broker.overrides |= {
        "listeners": f"{broker.overrides['listeners']},SIX://[::1]:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "max.connections.per.ip": 5,
        "max.connections.per.ip.overrides": overrides,
    }
    with broker, besiege(broker) as under:
        with guests(port, 20, "::1") as inside, guests(broker.port, 20) as by_ipv4:
            # One of those by IPv4 is the client that goes on.
            assert (inside, by_ipv4) == (most, most_by_ipv4 - 1)
            under.bystander.go_on(5)
        eventually(lambda: _gets_in(broker.port), "there is room again")
        if most:
            eventually(lambda: _gets_in(port, "::1"), "there is room again by IPv6")
        else:
            assert not _gets_in(port, "::1")
        told = [line for line in under.lines.all() if "refused connection from" in line]
        assert any("[::1]:" in line and "max.connections.per.ip" in line for line in told), told
    expect_refusals(under, 60, "max.connections.per.ip")


def test_broker_out_of_descriptors_turns_clients_away_and_recovers(
    own_broker: Callable[..., BrokerProcess], besiege: Besiege
) -> None:
    few = 400
    # The log of the one who goes on rolls meanwhile, for which some are kept from clients.
    broker = own_broker(
        launcher=["sh", "-c", f'ulimit -n {few}; exec "$0" -m plog server "$@"', sys.executable],
        log_segment_bytes=4000,
    )
    with besiege(broker) as under:
        for _ in range(3):
            before = descriptors(broker)
            with guests(broker.port, few) as inside:
                assert few // 2 <= inside <= few - before
                under.bystander.go_on(100)
            eventually(lambda: descriptors(broker) < few // 2, "all have gone")
            with contextlib.closing(speak(broker.port)) as wire:
                assert wire.ask(ApiVersionsRequest(), 0).error_code == 0
        segments = list(broker.log_dirs[0].glob(f"{under.bystander.topic}-0/*.log"))
        assert len(segments) >= 4
    expect_refusals(under, 60, "no file descriptor left for clients")
