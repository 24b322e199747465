"""Listeners: what the settings say of them, and the listening sockets.

Owns parsing of `listeners`, `advertised.listeners`,
`listener.security.protocol.map` and `inter.broker.listener.name`, and binding.
Never accepts: the reactor does.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from plog.errors import ConfigError


class SecurityProtocol(Enum):
    """Kafka's names for how bytes pass and whether clients authenticate."""

    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"


SERVED: Final = frozenset({SecurityProtocol.PLAINTEXT, SecurityProtocol.SASL_PLAINTEXT})

DEFAULT_PROTOCOL_MAP: Final = ",".join(f"{p.name}:{p.name}" for p in SecurityProtocol)

_ENDPOINT = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[^\[\]]*\]|[^:\[\]/]*):(?P<port>\d+)"
)
_ANY_HOSTS = frozenset({"", "0.0.0.0", "::"})


class Endpoint(NamedTuple):
    """One entry of `listeners` or `advertised.listeners`: NAME://host:port."""

    name: str
    host: str
    port: int


@dataclass(frozen=True)
class Listener:
    """A place where clients connect.

    `host` is what is bound, empty for every interface; `port` may be 0 until it
    is bound. The advertised pair is what Metadata answers and the broker's
    registration say; `advertised_port` 0 stands for the bound one.
    """

    name: str
    host: str
    port: int
    security_protocol: SecurityProtocol
    advertised_host: str
    advertised_port: int
    is_advertised: bool = True
    is_inter_broker: bool = False


class BoundListener(NamedTuple):
    """A listener, its ports filled in, and its listening socket."""

    listener: Listener
    socket: socket.socket


def parse_endpoints(key: str, value: str) -> list[Endpoint]:
    """Read a list like ``PLAINTEXT://127.0.0.1:9092,CLIENTS://[::1]:9093``.

    Names are made upper case, as Kafka does.

    Raises:
        ConfigError: an entry is not of that form, its port is above 65535, or a name comes twice.
    """
    endpoints: list[Endpoint] = []
    for entry in (part.strip() for part in value.split(",")):
        match = _ENDPOINT.fullmatch(entry)
        if match is None:
            raise ConfigError(f"{key}: {entry!r} is not of the form NAME://host:port")
        port = int(match["port"])
        if port > 65535:
            raise ConfigError(f"{key}: {entry!r} names port {port}, the last one is 65535")
        name = match["name"].upper()
        if any(other.name == name for other in endpoints):
            raise ConfigError(f"{key}: {name} comes twice")
        endpoints.append(Endpoint(name, match["host"].strip("[]"), port))
    return endpoints


def parse_protocol_map(value: str) -> dict[str, SecurityProtocol]:
    """Read `listener.security.protocol.map`, a list like ``CLIENTS:SASL_PLAINTEXT``.

    Raises:
        ConfigError: an entry is not of that form, or names no security protocol.
    """
    protocols: dict[str, SecurityProtocol] = {}
    for entry in (part.strip() for part in value.split(",")):
        name, colon, protocol = entry.partition(":")
        if not colon or protocol.strip().upper() not in SecurityProtocol.__members__:
            raise ConfigError(
                f"listener.security.protocol.map: {entry!r} is not of the form NAME:PROTOCOL, "
                f"PROTOCOL one of {', '.join(SecurityProtocol.__members__)}"
            )
        protocols[name.strip().upper()] = SecurityProtocol[protocol.strip().upper()]
    return protocols


def parse_listeners(
    listeners: str,
    advertised_listeners: str | None = None,
    listener_security_protocol_map: str = DEFAULT_PROTOCOL_MAP,
    inter_broker_listener_name: str | None = None,
) -> list[Listener]:
    """Bring the four settings together, in the order of `listeners`.

    Without `advertised.listeners` every listener is advertised as it is bound,
    by the host's name where it is bound to no host. Without
    `inter.broker.listener.name` brokers use the listener named PLAINTEXT, else
    the first.

    Raises:
        ConfigError: naming the setting that is wrong and why.
    """
    endpoints = parse_endpoints("listeners", listeners)
    protocols = parse_protocol_map(listener_security_protocol_map)
    _refuse_shared_ports(endpoints)
    names = [endpoint.name for endpoint in endpoints]
    if advertised_listeners:
        advertised = {
            e.name: e for e in parse_endpoints("advertised.listeners", advertised_listeners)
        }
        for name in advertised:
            if name not in names:
                raise ConfigError(f"advertised.listeners: {name} is not one of listeners")
    else:
        advertised = {endpoint.name: endpoint for endpoint in endpoints}
    inter_broker = _inter_broker_name(inter_broker_listener_name, names)
    if inter_broker not in advertised:
        raise ConfigError(
            f"advertised.listeners: {inter_broker}, by which brokers reach each other, is not there"
        )
    return [
        Listener(
            name=endpoint.name,
            host=endpoint.host,
            port=endpoint.port,
            security_protocol=_protocol_of(endpoint.name, protocols),
            advertised_host=_advertised_host(advertised.get(endpoint.name, endpoint)),
            advertised_port=advertised.get(endpoint.name, endpoint).port,
            is_advertised=endpoint.name in advertised,
            is_inter_broker=endpoint.name == inter_broker,
        )
        for endpoint in endpoints
    ]


def bind_listeners(listeners: Sequence[Listener], backlog: int = 50) -> list[BoundListener]:
    """Bind and listen; ports that were 0 are filled in. All or none.

    Raises:
        ConfigError: an address is in use, not this host's, or not resolvable.
    """
    bound: list[BoundListener] = []
    try:
        for listener in listeners:
            listening = _bind(listener, backlog)
            port = listening.getsockname()[1]
            bound.append(
                BoundListener(
                    replace(listener, port=port, advertised_port=listener.advertised_port or port),
                    listening,
                )
            )
    except ConfigError:
        for one in bound:
            one.socket.close()
        raise
    return bound


def _bind(listener: Listener, backlog: int) -> socket.socket:
    place = f"{listener.host or '*'}:{listener.port}"
    try:
        # No host is every interface, by both families where the machine has both.
        if not listener.host and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", listener.port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
        family, _, _, _, address = socket.getaddrinfo(
            listener.host or None, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=backlog)
    except socket.gaierror as error:
        raise ConfigError(
            f"listener {listener.name}: {listener.host!r} does not resolve: {error.strerror}"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"listener {listener.name}: cannot listen on {place}: {os.strerror(error.errno or 0)}"
        ) from error


def _refuse_shared_ports(endpoints: Sequence[Endpoint]) -> None:
    for i, endpoint in enumerate(endpoints):
        for other in endpoints[:i]:
            # One port may serve an IPv4 and an IPv6 address (KIP-797), or two addresses.
            clash = other.host == endpoint.host or {other.host, endpoint.host} & _ANY_HOSTS
            if clash and other.port == endpoint.port != 0:
                raise ConfigError(
                    f"listeners: {other.name} and {endpoint.name} share port {endpoint.port}"
                )


def _protocol_of(name: str, protocols: dict[str, SecurityProtocol]) -> SecurityProtocol:
    if name not in protocols:
        raise ConfigError(f"listener.security.protocol.map: {name} of listeners is not there")
    if protocols[name] not in SERVED:
        raise ConfigError(f"listeners: {name} asks for {protocols[name].name}, which is not served")
    return protocols[name]


def _inter_broker_name(wanted: str | None, names: Sequence[str]) -> str:
    if wanted:
        if wanted.upper() not in names:
            raise ConfigError(f"inter.broker.listener.name: {wanted} is not one of listeners")
        return wanted.upper()
    return "PLAINTEXT" if "PLAINTEXT" in names else names[0]


def _advertised_host(endpoint: Endpoint) -> str:
    if endpoint.host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"advertised.listeners: {endpoint.name} would tell clients to connect to "
            f"{endpoint.host}; name a host that they can reach"
        )
    return endpoint.host or socket.getfqdn()
