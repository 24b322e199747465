"""Binding: the ports and hosts that are filled in, and addresses that cannot be had."""

import socket
from contextlib import closing

import pytest

from plog.errors import ConfigError
from plog.network.listeners import bind, bind_listeners, cap_by_address, listen, listen_on
from plog.settings import BrokerSettings
from plog.settings.listeners import HostCap, Listener


def parse(listeners: str, advertised: str = "") -> list[Listener]:
    protocols = "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,CLIENTS:PLAINTEXT"
    texts = {
        "listeners": listeners,
        "advertised.listeners": advertised,
        "listener.security.protocol.map": protocols,
    }
    return BrokerSettings(texts).parsed_listeners()


def test_port_zero_is_bound_to_a_free_one_and_advertised():
    first, second = bind_listeners(parse("INSIDE://127.0.0.1:0,CLIENTS://127.0.0.1:0"))
    try:
        assert first.listener.port == first.socket.getsockname()[1] != 0
        assert first.listener.advertised_port == first.listener.port != second.listener.port
        listen_on(first)
        socket.create_connection(("127.0.0.1", first.listener.port), timeout=5).close()
    finally:
        first.socket.close()
        second.socket.close()


def test_advertised_port_stands_though_another_is_bound():
    (bound,) = bind_listeners(parse("PLAINTEXT://127.0.0.1:0", "PLAINTEXT://far:7777"))
    bound.socket.close()
    assert bound.listener.advertised_port == 7777


def test_no_host_listens_on_every_interface_and_is_advertised_by_the_machines_name():
    (bound,) = bind_listeners(parse("PLAINTEXT://:0"))
    try:
        assert bound.listener.advertised_host == socket.getfqdn()
        listen_on(bound)
        socket.create_connection(("127.0.0.1", bound.listener.port), timeout=5).close()
        if socket.has_dualstack_ipv6():
            socket.create_connection(("::1", bound.listener.port), timeout=5).close()
    finally:
        bound.socket.close()


def test_port_in_use_is_told_by_listener_and_address_and_nothing_stays_bound():
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        busy = taken.getsockname()[1]
        listeners = parse(f"INSIDE://127.0.0.1:{free},CLIENTS://127.0.0.1:{busy}")
        with pytest.raises(ConfigError) as raised:
            bind_listeners(listeners)
        assert str(raised.value) == (
            f"listener CLIENTS: cannot listen on 127.0.0.1:{busy}: Address already in use"
        )
        socket.create_server(("127.0.0.1", free)).close()


def test_nobody_comes_in_before_it_listens():
    with closing(bind("x", "127.0.0.1", 0)) as held:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(held.getsockname(), timeout=5)
        listen("x", held, 5)
        socket.create_connection(held.getsockname(), timeout=5).close()


def test_port_that_another_has_bound_is_taken_though_nobody_listens_yet():
    with closing(bind("x", "127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0", ""):
            with pytest.raises(ConfigError, match="Address already in use"):
                bind("y", host, port)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", ""])
def test_port_is_had_again_while_the_last_ones_connections_are_ending(host):
    address = host or "127.0.0.1"
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    port = 0
    for _ in range(3):
        with closing(bind("x", host, port)) as held:
            listen("x", held, 5)
            port = held.getsockname()[1]
            client = socket.create_connection((address, port), timeout=5)
            served, _ = held.accept()
            served.close()  # first, so that this side has to wait
            assert client.recv(1) == b""
            client.close()


def test_who_has_come_to_listen_there_meanwhile_is_told():
    # Only where connections of the last broker are ending can two take one port.
    with closing(bind("x", "127.0.0.1", 0)) as held:
        listen("x", held, 5)
        port = held.getsockname()[1]
        client = socket.create_connection(held.getsockname(), timeout=5)
        served, _ = held.accept()
        served.close()
        assert client.recv(1) == b""
        client.close()
    with (
        closing(bind("first", "127.0.0.1", port)) as late,
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigError, match=f"^first: cannot listen on 127.0.0.1:{port}: Address"),
    ):
        listen("first", late, 5)


def test_host_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"^listener PLAINTEXT: cannot listen on 192\.0\.2\.1:0"):
        bind_listeners(parse("PLAINTEXT://192.0.2.1:0"))


def test_host_that_does_not_resolve_is_refused():
    with pytest.raises(ConfigError, match=r"^listener PLAINTEXT: 'nowhere\.invalid' does not"):
        bind_listeners(parse("PLAINTEXT://nowhere.invalid:0"))


def test_caps_of_hosts_go_by_their_addresses_and_the_first_holds():
    caps = [HostCap("127.0.0.1", 3), HostCap("::5", 0), HostCap("127.0.0.1", 9)]
    mapped = bytes(10) + b"\xff\xff\x7f\0\0\1"
    assert cap_by_address(caps) == [(mapped, 3), (bytes(15) + b"\5", 0)]
    assert (mapped, 7) in cap_by_address([HostCap("localhost", 7)])


def test_cap_of_a_host_that_does_not_resolve_is_refused():
    with pytest.raises(ConfigError, match=r"'nowhere[.]invalid' does not resolve"):
        cap_by_address([HostCap("nowhere.invalid", 1)])
