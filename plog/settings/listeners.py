"""The four keys about listeners: what they say together, and everything that is wrong with them.

Owns the syntax of `listeners`, `advertised.listeners`, `listener.security.protocol.map`
and `inter.broker.listener.name`. Pure: never resolves a host and never binds a
port, which `plog.network.listeners` does.

A key that is wrong is understood as far as it can be, so that the others are
still compared with it: an entry with a wrong address still says its name. Where
not even the name can be told, it may be any, and no name is said to be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from plog.settings.keys import ConfigType, Fault, Kind


class SecurityProtocol(Enum):
    """Kafka's names for how bytes pass and whether clients authenticate."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


SERVED: Final = frozenset({SecurityProtocol.PLAINTEXT})
"""The others are refused: nobody would ask who clients are, or encrypt what they send."""

LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
INTER_BROKER: Final = "inter.broker.listener.name"

DEFAULT_LISTENERS: Final = "PLAINTEXT://127.0.0.1:9092"
DEFAULT_PROTOCOL_MAP: Final = ",".join(f"{p.name}:{p.name}" for p in SecurityProtocol)

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_ADDRESS = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]/]*):0*(?P<port>[0-9]+)")
_CAP = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:\[\]/\s]+)\s*:\s*(?P<most>[0-9]{1,9})")
_EVERY_INTERFACE = frozenset({"0.0.0.0", "::"})
EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""An address of this host for listeners on all addresses."""


class Address(NamedTuple):
    """A host, an IPv6 address without its brackets, and a port."""

    host: str
    port: int


def _parse_address(text: str) -> Address | None:
    if not text:
        return None
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ValueError(f"{text!r} is not of the form host:port")
    return Address(found["host"].strip("[]"), int(found["port"]))


def format_address(address: Address) -> str:
    """Write an address as host:port."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"


ADDRESS: Final = Kind(
    ConfigType.STRING,
    _parse_address,
    lambda address: "" if address is None else format_address(address),
)


class HostCap(NamedTuple):
    """One entry of `max.connections.per.ip.overrides`: host:count."""

    host: str
    most: int


def _parse_caps(text: str) -> tuple[HostCap, ...]:
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        cap = _CAP.fullmatch(entry)
        if cap is None:
            raise ValueError(f"{entry!r} is not of the form host:count")
        found.append(HostCap(cap["host"].strip("[]"), int(cap["most"])))
    return tuple(found)


def _format_caps(caps: tuple[HostCap, ...]) -> str:
    return ",".join(
        f"[{cap.host}]:{cap.most}" if ":" in cap.host else f"{cap.host}:{cap.most}" for cap in caps
    )


HOST_CAPS: Final = Kind(ConfigType.STRING, _parse_caps, _format_caps)


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
    registration say; until then, an empty `advertised_host` stands for the
    machine's name, and `advertised_port` 0 for the bound one.
    """

    name: str
    host: str
    port: int
    security_protocol: SecurityProtocol
    advertised_host: str
    advertised_port: int
    is_advertised: bool = True
    is_inter_broker: bool = False


class Endpoints(NamedTuple):
    """What is understood of a list of endpoints."""

    endpoints: list[Endpoint]
    names: list[str]
    """Each once, in order; also those whose address is wrong."""
    has_every_name: bool
    """Whether each entry's name could be told."""

    def lack(self, name: str) -> bool:
        """Return whether a name is surely not there."""
        return self.has_every_name and name not in self.names


def parse_endpoints(key: str, text: str) -> tuple[Endpoints, list[Fault]]:
    """Read a list like ``PLAINTEXT://127.0.0.1:9092,CLIENTS://[::1]:9093``.

    Names are made upper case, as Kafka does.
    """
    endpoints: list[Endpoint] = []
    names: list[str] = []
    has_every_name = True
    faults: list[Fault] = []
    for entry in (part.strip() for part in text.split(",")):
        name, colon, place = entry.partition("://")
        name = name.upper()
        has_name = bool(colon) and _NAME.fullmatch(name) is not None
        address = _ADDRESS.fullmatch(place)
        if not has_name or address is None:
            faults.append(Fault(key, f"{entry!r} is not of the form NAME://host:port"))
        elif len(address["port"]) > 5 or int(address["port"]) > 65535:
            port = address["port"]
            faults.append(Fault(key, f"{entry!r} has invalid port {port}; the maximum is 65535"))
        else:
            endpoints.append(Endpoint(name, address["host"].strip("[]"), int(address["port"])))
        if not has_name:
            # Nothing at all, as after a last comma, hides no name.
            has_every_name = has_every_name and not entry
        elif name in names:
            faults.append(Fault(key, f"{name} appears twice"))
        else:
            names.append(name)
    # In a list that says nothing, no name in particular is missing.
    return Endpoints(endpoints, names, has_every_name and bool(names)), faults


def parse_protocol_map(text: str) -> tuple[dict[str, SecurityProtocol | None], list[Fault]]:
    """Read a list like ``CLIENTS:SASL_PLAINTEXT``; names with a wrong protocol have None."""
    protocols: dict[str, SecurityProtocol | None] = {}
    faults: list[Fault] = []
    for entry in (part.strip() for part in text.split(",")):
        name, _, word = (part.strip().upper() for part in entry.partition(":"))
        protocol = SecurityProtocol.__members__.get(word)
        if not name or protocol is None:
            faults.append(
                Fault(
                    PROTOCOL_MAP,
                    f"{entry!r} is not of the form NAME:PROTOCOL, "
                    f"PROTOCOL one of {', '.join(SecurityProtocol.__members__)}",
                )
            )
            meant = _NAME.match(name)
            name = meant[0] if meant else ""
        if name:
            protocols[name] = protocol
    return protocols, faults


def parse_listeners(
    listeners: str = DEFAULT_LISTENERS,
    advertised_listeners: str | None = None,
    listener_security_protocol_map: str = DEFAULT_PROTOCOL_MAP,
    inter_broker_listener_name: str | None = None,
) -> tuple[list[Listener], list[Fault]]:
    """Bring the four together, in the order of `listeners`; return that, or all that is wrong.

    Without `advertised.listeners` every listener is advertised as it is bound,
    by the machine's name where it is bound to no host. Without
    `inter.broker.listener.name` brokers use the listener named PLAINTEXT, else
    the first.
    """
    bound, faults = parse_endpoints(LISTENERS, listeners)
    faults += _shared_ports(bound.endpoints)
    if advertised_listeners:
        advertised, wrong = parse_endpoints(ADVERTISED, advertised_listeners)
        faults += wrong
        faults += (
            Fault(ADVERTISED, f"{name} is not one of listeners")
            for name in advertised.names
            if bound.lack(name)
        )
        faults += _unreachable(ADVERTISED, "", advertised.endpoints)
    else:
        advertised = bound
        faults += _unreachable(LISTENERS, f" in {ADVERTISED}", bound.endpoints)
    protocols, wrong = parse_protocol_map(listener_security_protocol_map)
    faults += wrong
    # Laid to a key that was set: one that is not its default.
    faults += _without_protocol(
        PROTOCOL_MAP if listener_security_protocol_map != DEFAULT_PROTOCOL_MAP else LISTENERS,
        bound.names,
        protocols,
    )
    faults += _not_served(
        LISTENERS if listeners != DEFAULT_LISTENERS else PROTOCOL_MAP, bound.names, protocols
    )
    inter_broker = _inter_broker_name(inter_broker_listener_name, bound)
    if inter_broker is not None and bound.lack(inter_broker):
        faults.append(Fault(INTER_BROKER, f"{inter_broker_listener_name} is not one of listeners"))
    elif inter_broker is not None and advertised.lack(inter_broker):
        faults.append(
            Fault(ADVERTISED, f"{inter_broker}, the listener between brokers, is missing")
        )
    if faults:
        # A name that comes three times is found wrong twice, and said to be once.
        return [], list(dict.fromkeys(faults))
    told = {endpoint.name: endpoint for endpoint in advertised.endpoints}
    served = {name: protocol for name, protocol in protocols.items() if protocol is not None}
    return [
        Listener(
            name=endpoint.name,
            host=endpoint.host,
            port=endpoint.port,
            security_protocol=served[endpoint.name],
            advertised_host=told.get(endpoint.name, endpoint).host,
            advertised_port=told.get(endpoint.name, endpoint).port,
            is_advertised=endpoint.name in told,
            is_inter_broker=endpoint.name == inter_broker,
        )
        for endpoint in bound.endpoints
    ], []


def _shared_ports(endpoints: Sequence[Endpoint]) -> Iterator[Fault]:
    for i, endpoint in enumerate(endpoints):
        for other in endpoints[:i]:
            # One port may serve an IPv4 and an IPv6 address (KIP-797), or two addresses.
            hosts = {other.host, endpoint.host}
            clash = len(hosts) == 1 or hosts & {"", *_EVERY_INTERFACE}
            if clash and other.port == endpoint.port != 0 and other.name != endpoint.name:
                yield Fault(
                    LISTENERS, f"{other.name} and {endpoint.name} share port {endpoint.port}"
                )
                break


def _unreachable(key: str, where: str, endpoints: Sequence[Endpoint]) -> Iterator[Fault]:
    for endpoint in endpoints:
        if endpoint.host in _EVERY_INTERFACE:
            yield Fault(
                key,
                f"{endpoint.name} would make clients connect to {endpoint.host}; "
                f"name a host that they can reach{where}",
            )


def _without_protocol(
    key: str, names: Sequence[str], protocols: Mapping[str, SecurityProtocol | None]
) -> Iterator[Fault]:
    # Of a map that says nothing, just that is wrong.
    for name in names if protocols else ():
        if name not in protocols:
            reason = (
                "of listeners is not there" if key == PROTOCOL_MAP else f"is not in {PROTOCOL_MAP}"
            )
            yield Fault(key, f"{name} {reason}")


def _not_served(
    key: str, names: Sequence[str], protocols: Mapping[str, SecurityProtocol | None]
) -> Iterator[Fault]:
    for name in names:
        protocol = protocols.get(name)
        if protocol is not None and protocol not in SERVED:
            yield Fault(
                key, f"listener {name}: plog does not support {protocol.name} yet; use PLAINTEXT"
            )


def _inter_broker_name(wanted: str | None, bound: Endpoints) -> str | None:
    """Return the name of the listener that brokers use, or None where it cannot be told."""
    if wanted:
        return wanted.upper()
    if "PLAINTEXT" in bound.names:
        return "PLAINTEXT"
    return bound.names[0] if bound.has_every_name else None
