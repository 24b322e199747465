"""More connections than are allowed, and fewer descriptors than there are clients."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator

from plog.protocol.messages.api_versions import ApiVersionsRequest
from tests.handlers.wire import WAIT_MS, eventually, speak
from tests.hostile.conftest import Besiege
from tests.hostile.frames import framed
from tests.hostile.watch import Siege, descriptors
from tests.servers import BrokerProcess

VERSIONS = framed(ApiVersionsRequest(client_software_name="h", client_software_version="1"), 3)


def is_served(port: int, source: str = "127.0.0.1") -> socket.socket | None:
    """Connect and ask for versions: the connection, or None if it was turned away."""
    sock = socket.create_connection(("127.0.0.1", port), WAIT_MS / 1000, source_address=(source, 0))
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
