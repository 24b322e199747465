"""The four keys about listeners: what they say together, and everything that is wrong at once."""

from __future__ import annotations

import pytest

from plog.settings import BrokerSettings
from plog.settings.listeners import (
    HOST_CAPS,
    Endpoint,
    SecurityProtocol,
    parse_endpoints,
    parse_protocol_map,
)

LISTENERS = "listeners"
ADVERTISED = "advertised.listeners"
PROTOCOLS = "listener.security.protocol.map"
INTER_BROKER = "inter.broker.listener.name"

MAP = "INSIDE:PLAINTEXT,CLIENTS:PLAINTEXT,TLS:SSL"

FORM = "is not of the form NAME://host:port"
MAP_FORM = (
    "is not of the form NAME:PROTOCOL, PROTOCOL one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"
)
REACHABLE = "would make clients connect to 0.0.0.0; name a host that they can reach"


def texts(
    listeners: str | None = None,
    advertised: str | None = None,
    protocols: str | None = MAP,
    inter_broker: str | None = None,
) -> dict[str, str]:
    given = {
        LISTENERS: listeners,
        ADVERTISED: advertised,
        PROTOCOLS: protocols,
        INTER_BROKER: inter_broker,
    }
    return {key: text for key, text in given.items() if text is not None}


@pytest.mark.parametrize(
    ("value", "endpoints"),
    [
        ("PLAINTEXT://127.0.0.1:9092", [("PLAINTEXT", "127.0.0.1", 9092)]),
        ("PLAINTEXT://:9092", [("PLAINTEXT", "", 9092)]),
        ("plaintext://localhost:0", [("PLAINTEXT", "localhost", 0)]),
        ("A://[::1]:1, B_2://x-y.example:65535", [("A", "::1", 1), ("B_2", "x-y.example", 65535)]),
        ("PLAINTEXT://[::]:0009092", [("PLAINTEXT", "::", 9092)]),
    ],
)
def test_endpoints_are_read_as_kafka_reads_them(value, endpoints):
    read, faults = parse_endpoints(LISTENERS, value)
    assert read.endpoints == [Endpoint(*e) for e in endpoints]
    assert faults == []


@pytest.mark.parametrize(
    ("value", "reasons"),
    [
        ("", [f"'' {FORM}"]),
        ("127.0.0.1:9092", [f"'127.0.0.1:9092' {FORM}"]),
        ("PLAINTEXT://127.0.0.1", [f"'PLAINTEXT://127.0.0.1' {FORM}"]),
        ("PLAINTEXT://127.0.0.1:", [f"'PLAINTEXT://127.0.0.1:' {FORM}"]),
        ("PLAINTEXT://a:٣", [f"'PLAINTEXT://a:٣' {FORM}"]),
        ("PLAINTEXT://::1:9092", [f"'PLAINTEXT://::1:9092' {FORM}"]),
        ("PLAINTEXT://a/b:9092", [f"'PLAINTEXT://a/b:9092' {FORM}"]),
        ("A B://a:9092", [f"'A B://a:9092' {FORM}"]),
        ("PLAINTEXT://a:9092,", [f"'' {FORM}"]),
        ("A://a:65536", ["'A://a:65536' has invalid port 65536; the maximum is 65535"]),
        ("A://a:1,a://b:2", ["A appears twice"]),
        (
            "A://a:x,B://b:70000,A://c:1",
            [
                f"'A://a:x' {FORM}",
                "'B://b:70000' has invalid port 70000; the maximum is 65535",
                "A appears twice",
            ],
        ),
    ],
)
def test_every_wrong_endpoint_is_named(value, reasons):
    _, faults = parse_endpoints(ADVERTISED, value)
    assert faults == [(ADVERTISED, reason) for reason in reasons]


def test_port_of_endless_digits_is_a_wrong_port():
    _, (fault,) = parse_endpoints(LISTENERS, "A://a:" + "9" * 5000)
    assert fault.reason.endswith("9999; the maximum is 65535")


def test_protocol_map_is_read():
    assert parse_protocol_map("a:PLAINTEXT, B : sasl_plaintext") == (
        {"A": SecurityProtocol.PLAINTEXT, "B": SecurityProtocol.SASL_PLAINTEXT},
        [],
    )


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("A", ["A"]),
        ("A:TELNET", ["A:TELNET"]),
        ("", [""]),
        ("A:PLAINTEXT,", [""]),
        (":PLAINTEXT", [":PLAINTEXT"]),
        ("A:TELNET,B:PLAINTEXT,C", ["A:TELNET", "C"]),
    ],
)
def test_every_wrong_entry_of_the_protocol_map_is_named(value, wrong):
    _, faults = parse_protocol_map(value)
    assert faults == [(PROTOCOLS, f"{entry!r} {MAP_FORM}") for entry in wrong]


def test_four_settings_come_together():
    inside, clients = BrokerSettings(
        texts(
            "INSIDE://127.0.0.1:9091,CLIENTS://0.0.0.0:9092",
            "INSIDE://10.0.0.1:9091,CLIENTS://broker.example:19092",
            inter_broker="inside",
        )
    ).parsed_listeners()
    assert (inside.name, inside.host, inside.port) == ("INSIDE", "127.0.0.1", 9091)
    assert (inside.advertised_host, inside.advertised_port) == ("10.0.0.1", 9091)
    assert (inside.is_inter_broker, clients.is_inter_broker) == (True, False)
    assert clients.security_protocol is SecurityProtocol.PLAINTEXT
    assert (clients.advertised_host, clients.advertised_port) == ("broker.example", 19092)


def test_listeners_are_advertised_as_they_are_bound_unless_told_otherwise():
    (listener,) = BrokerSettings().parsed_listeners()
    assert (listener.advertised_host, listener.advertised_port) == ("127.0.0.1", 9092)
    assert listener.is_inter_broker


def test_listener_left_out_of_the_advertised_is_bound_but_not_told_of():
    # Nobody is told of its address, so it may be every interface's.
    inside, hidden = BrokerSettings(
        texts("INSIDE://127.0.0.1:1,CLIENTS://0.0.0.0:2", "INSIDE://a:1", inter_broker="INSIDE")
    ).parsed_listeners()
    assert (inside.is_advertised, hidden.is_advertised) == (True, False)


@pytest.mark.parametrize(
    ("listeners", "advertised", "name"),
    [
        ("A://a:1,PLAINTEXT://a:2", None, "PLAINTEXT"),
        ("A://a:1,B://a:2", None, "A"),
        ("A://a:1,B://a:2", "", "A"),
    ],
)
def test_brokers_use_the_listener_named_plaintext_else_the_first(listeners, advertised, name):
    protocols = "A:PLAINTEXT,B:PLAINTEXT,PLAINTEXT:PLAINTEXT"
    made = BrokerSettings(texts(listeners, advertised, protocols)).parsed_listeners()
    assert [each.name for each in made if each.is_inter_broker] == [name]


CONTRADICTIONS = [
    # A name without a protocol is laid to the map where there is one, else to the listeners.
    (texts("A://a:1"), [(PROTOCOLS, "A of listeners is not there")]),
    (texts("A://a:1", protocols=None), [(LISTENERS, f"A is not in {PROTOCOLS}")]),
    (texts(), [(PROTOCOLS, "PLAINTEXT of listeners is not there")]),
    (
        texts("TLS://a:1"),
        [(LISTENERS, "listener TLS: plog does not support SSL yet; use PLAINTEXT")],
    ),
    (
        texts(protocols="PLAINTEXT:SSL"),
        [(PROTOCOLS, "listener PLAINTEXT: plog does not support SSL yet; use PLAINTEXT")],
    ),
    (texts("INSIDE://0.0.0.0:1"), [(LISTENERS, f"INSIDE {REACHABLE} in {ADVERTISED}")]),
    (texts("INSIDE://a:1", "INSIDE://0.0.0.0:1"), [(ADVERTISED, f"INSIDE {REACHABLE}")]),
    (
        texts("INSIDE://a:1,CLIENTS://a:2", "INSIDE://a:1,OTHER://a:1"),
        [(ADVERTISED, "OTHER is not one of listeners")],
    ),
    (
        texts("INSIDE://a:1", inter_broker="clients"),
        [(INTER_BROKER, "clients is not one of listeners")],
    ),
    (
        texts("INSIDE://a:1,CLIENTS://a:2", "CLIENTS://a:2", inter_broker="INSIDE"),
        [(ADVERTISED, "INSIDE, the listener between brokers, is missing")],
    ),
    (texts("INSIDE://a:1,CLIENTS://a:1"), [(LISTENERS, "INSIDE and CLIENTS share port 1")]),
    (texts("INSIDE://a:1,CLIENTS://:1"), [(LISTENERS, "INSIDE and CLIENTS share port 1")]),
]


@pytest.mark.parametrize(("given", "faults"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused(given, faults):
    assert BrokerSettings.faults(given) == faults


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_listener_that_would_ask_who_clients_are_or_encrypt_is_refused_by_any_name(protocol):
    reason = f"plog does not support {protocol} yet; use PLAINTEXT"
    by_itself = texts(f"{protocol}://a:1", protocols=None)
    assert BrokerSettings.faults(by_itself) == [(LISTENERS, f"listener {protocol}: {reason}")]
    beside = texts("INSIDE://a:1,CLIENTS://a:2", None, f"INSIDE:PLAINTEXT,CLIENTS:{protocol}")
    assert BrokerSettings.faults(beside) == [(LISTENERS, f"listener CLIENTS: {reason}")]


SEVERAL = [
    (
        texts("INSIDE://a:1,CLIENTS://a:1,CLIENTS://a:1,CLIENTS://a:1"),
        [(LISTENERS, "CLIENTS appears twice"), (LISTENERS, "INSIDE and CLIENTS share port 1")],
    ),
    (
        texts("SSL://a:1,X://a:2", protocols=None),
        [
            (LISTENERS, f"X is not in {PROTOCOLS}"),
            (LISTENERS, "listener SSL: plog does not support SSL yet; use PLAINTEXT"),
        ],
    ),
    (
        texts("INSIDE://a:1,CLIENTS://a:2", "CLIENTS://a:2,OLD://a:3", inter_broker="INSIDE"),
        [
            (ADVERTISED, "OLD is not one of listeners"),
            (ADVERTISED, "INSIDE, the listener between brokers, is missing"),
        ],
    ),
    (
        texts("A://a:1,A://a:2", inter_broker="A"),
        [(LISTENERS, "A appears twice"), (PROTOCOLS, "A of listeners is not there")],
    ),
    (
        texts("PLAINTEXT://a:1,PLAINTEXT://a:2", protocols=None, inter_broker="FOO"),
        [(LISTENERS, "PLAINTEXT appears twice"), (INTER_BROKER, "FOO is not one of listeners")],
    ),
    (
        texts("INSIDE://a:x", "OTHER://0.0.0.0:1,INSIDE://a:70000", "INSIDE:TELNET", "FOO"),
        [
            (LISTENERS, f"'INSIDE://a:x' {FORM}"),
            (ADVERTISED, "'INSIDE://a:70000' has invalid port 70000; the maximum is 65535"),
            (ADVERTISED, "OTHER is not one of listeners"),
            (ADVERTISED, f"OTHER {REACHABLE}"),
            (PROTOCOLS, f"'INSIDE:TELNET' {MAP_FORM}"),
            (INTER_BROKER, "FOO is not one of listeners"),
        ],
    ),
    (
        texts("INSIDE://a:1,TLS://a:1,A://a:1,", inter_broker="FOO"),
        [
            (LISTENERS, f"'' {FORM}"),
            (LISTENERS, "INSIDE and TLS share port 1"),
            (LISTENERS, "INSIDE and A share port 1"),
            (PROTOCOLS, "A of listeners is not there"),
            (LISTENERS, "listener TLS: plog does not support SSL yet; use PLAINTEXT"),
            (INTER_BROKER, "FOO is not one of listeners"),
        ],
    ),
]


@pytest.mark.parametrize(("given", "faults"), SEVERAL)
def test_fault_of_one_key_does_not_hide_those_of_another(given, faults):
    assert BrokerSettings.faults(given) == faults


ALONE = [
    # An entry with a wrong address still says its name.
    (texts("INSIDE://a:x", "INSIDE://a:1", inter_broker="INSIDE"), LISTENERS),
    (texts("INSIDE://a:1", "INSIDE://a:x", inter_broker="INSIDE"), ADVERTISED),
    # Where a name cannot be told, it may be any that is looked for.
    (texts("INSIDE:a:1", "INSIDE://a:1", inter_broker="INSIDE"), LISTENERS),
    (texts("", "INSIDE://a:1", inter_broker="INSIDE"), LISTENERS),
    (texts("a:1,CLIENTS://a:2", "INSIDE://a:1"), LISTENERS),
    (texts("INSIDE://a:1", "a:1", inter_broker="INSIDE"), ADVERTISED),
    # An entry of the map that says no protocol still says whose.
    (texts("INSIDE://a:1", protocols="INSIDE:,A:SSL"), PROTOCOLS),
    (texts("INSIDE://a:1", protocols=""), PROTOCOLS),
    (texts("INSIDE://a:1", protocols="INSIDE=PLAINTEXT,A:SSL"), PROTOCOLS),
    # What comes twice is not looked at twice.
    (texts("INSIDE://a:1,INSIDE://a:1"), LISTENERS),
    # Unknown to the listeners, it is not missed among the advertised too.
    (texts("INSIDE://a:1", "INSIDE://a:1", inter_broker="FOO"), INTER_BROKER),
]


@pytest.mark.parametrize(("given", "key"), ALONE)
def test_what_only_follows_from_a_fault_is_not_reported(given, key):
    assert [fault.key for fault in BrokerSettings.faults(given)] == [key]


def test_caps_of_hosts_are_read_and_written_back():
    text = "a.example:5, 127.0.0.1 : 0,[::1]:200,"
    caps = HOST_CAPS.parse(text)
    assert caps == (("a.example", 5), ("127.0.0.1", 0), ("::1", 200))
    assert HOST_CAPS.parse(HOST_CAPS.format(caps)) == caps
    assert HOST_CAPS.parse("") == ()


@pytest.mark.parametrize("text", ["a", "a:", ":5", "a:-1", "a:x", "::1:5", "a:1;b:2", "a b:1"])
def test_cap_of_no_such_form_is_refused(text):
    with pytest.raises(ValueError, match="is not of the form host:count"):
        HOST_CAPS.parse(text)
