import socket

import pytest

from plog.errors import ConfigError
from plog.network.listeners import (
    Endpoint,
    SecurityProtocol,
    bind_listeners,
    parse_endpoints,
    parse_listeners,
    parse_protocol_map,
)

MAP = "INSIDE:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,TLS:SSL"


@pytest.mark.parametrize(
    ("value", "endpoints"),
    [
        ("PLAINTEXT://127.0.0.1:9092", [("PLAINTEXT", "127.0.0.1", 9092)]),
        ("PLAINTEXT://:9092", [("PLAINTEXT", "", 9092)]),
        ("plaintext://localhost:0", [("PLAINTEXT", "localhost", 0)]),
        ("A://[::1]:1, B_2://x-y.example:65535", [("A", "::1", 1), ("B_2", "x-y.example", 65535)]),
        ("PLAINTEXT://[::]:9092", [("PLAINTEXT", "::", 9092)]),
    ],
)
def test_endpoints_are_read_as_kafka_reads_them(value, endpoints):
    assert parse_endpoints("listeners", value) == [Endpoint(*e) for e in endpoints]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("", "'' is not of the form"),
        ("127.0.0.1:9092", "is not of the form"),
        ("PLAINTEXT://127.0.0.1", "is not of the form"),
        ("PLAINTEXT://127.0.0.1:", "is not of the form"),
        ("PLAINTEXT://::1:9092", "is not of the form"),
        ("PLAINTEXT://a/b:9092", "is not of the form"),
        ("PLAINTEXT://a:9092,", "'' is not of the form"),
        ("PLAINTEXT://a:65536", "names port 65536"),
        ("A://a:1,a://b:2", "A comes twice"),
    ],
)
def test_wrong_endpoint_is_named(value, complaint):
    with pytest.raises(ConfigError) as raised:
        parse_endpoints("advertised.listeners", value)
    assert str(raised.value).startswith("advertised.listeners: ")
    assert complaint in str(raised.value)


def test_protocol_map_is_read():
    assert parse_protocol_map("a:PLAINTEXT, B : sasl_plaintext") == {
        "A": SecurityProtocol.PLAINTEXT,
        "B": SecurityProtocol.SASL_PLAINTEXT,
    }


@pytest.mark.parametrize("value", ["A", "A:TELNET", "", "A:PLAINTEXT,"])
def test_wrong_protocol_map_is_named(value):
    with pytest.raises(ConfigError, match=r"^listener.security.protocol.map: "):
        parse_protocol_map(value)


def test_four_settings_come_together():
    inside, clients = parse_listeners(
        "INSIDE://127.0.0.1:9091,CLIENTS://0.0.0.0:9092",
        "INSIDE://10.0.0.1:9091,CLIENTS://broker.example:19092",
        MAP,
        "inside",
    )
    assert (inside.name, inside.host, inside.port) == ("INSIDE", "127.0.0.1", 9091)
    assert (inside.advertised_host, inside.advertised_port) == ("10.0.0.1", 9091)
    assert (inside.is_inter_broker, clients.is_inter_broker) == (True, False)
    assert clients.security_protocol is SecurityProtocol.SASL_PLAINTEXT
    assert (clients.advertised_host, clients.advertised_port) == ("broker.example", 19092)


def test_listeners_are_advertised_as_they_are_bound_unless_told_otherwise():
    (listener,) = parse_listeners("PLAINTEXT://127.0.0.1:9092")
    assert (listener.advertised_host, listener.advertised_port) == ("127.0.0.1", 9092)
    assert listener.is_inter_broker
    (everywhere,) = parse_listeners("PLAINTEXT://:9092")
    assert everywhere.advertised_host == socket.getfqdn()


def test_listener_left_out_of_the_advertised_is_bound_but_not_told_of():
    inside, hidden = parse_listeners(
        "INSIDE://127.0.0.1:1,CLIENTS://127.0.0.1:2", "INSIDE://a:1", MAP, "INSIDE"
    )
    assert (inside.is_advertised, hidden.is_advertised) == (True, False)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (("A://a:1",), "listener.security.protocol.map: A of listeners is not there"),
        (("TLS://a:1", None, MAP), "listeners: TLS asks for SSL, which is not served"),
        (
            ("INSIDE://0.0.0.0:1", None, MAP),
            "advertised.listeners: INSIDE would tell clients to connect to 0.0.0.0",
        ),
        (
            ("INSIDE://a:1", "INSIDE://0.0.0.0:1", MAP),
            "advertised.listeners: INSIDE would tell clients to connect to 0.0.0.0",
        ),
        (
            ("INSIDE://a:1", "CLIENTS://a:1", MAP),
            "advertised.listeners: CLIENTS is not one of listeners",
        ),
        (
            ("INSIDE://a:1", None, MAP, "CLIENTS"),
            "inter.broker.listener.name: CLIENTS is not one of listeners",
        ),
        (
            ("INSIDE://a:1,CLIENTS://a:2", "CLIENTS://a:2", MAP, "INSIDE"),
            "advertised.listeners: INSIDE, by which brokers reach each other, is not there",
        ),
        (("INSIDE://a:1,CLIENTS://a:1", None, MAP), "INSIDE and CLIENTS share port 1"),
        (("INSIDE://a:1,CLIENTS://:1", None, MAP), "INSIDE and CLIENTS share port 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, complaint):
    with pytest.raises(ConfigError) as raised:
        parse_listeners(*settings)
    assert complaint in str(raised.value)


def test_port_zero_is_bound_to_a_free_one_and_advertised():
    first, second = bind_listeners(
        parse_listeners("INSIDE://127.0.0.1:0,CLIENTS://127.0.0.1:0", None, MAP)
    )
    try:
        assert first.listener.port == first.socket.getsockname()[1] != 0
        assert first.listener.advertised_port == first.listener.port != second.listener.port
        socket.create_connection(("127.0.0.1", first.listener.port), timeout=5).close()
    finally:
        first.socket.close()
        second.socket.close()


def test_advertised_port_stands_though_another_is_bound():
    (bound,) = bind_listeners(parse_listeners("PLAINTEXT://127.0.0.1:0", "PLAINTEXT://far:7777"))
    bound.socket.close()
    assert bound.listener.advertised_port == 7777


def test_no_host_listens_on_every_interface():
    (bound,) = bind_listeners(parse_listeners("PLAINTEXT://:0"))
    try:
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
        listeners = parse_listeners(
            f"INSIDE://127.0.0.1:{free},CLIENTS://127.0.0.1:{busy}", None, MAP
        )
        with pytest.raises(ConfigError) as raised:
            bind_listeners(listeners)
        assert str(raised.value) == (
            f"listener CLIENTS: cannot listen on 127.0.0.1:{busy}: Address already in use"
        )
        socket.create_server(("127.0.0.1", free)).close()


def test_host_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"^listener PLAINTEXT: cannot listen on 192\.0\.2\.1:0"):
        bind_listeners(parse_listeners("PLAINTEXT://192.0.2.1:0"))


def test_host_that_does_not_resolve_is_refused():
    with pytest.raises(ConfigError, match=r"^listener PLAINTEXT: 'nowhere\.invalid' does not"):
        bind_listeners(parse_listeners("PLAINTEXT://nowhere.invalid:0"))
