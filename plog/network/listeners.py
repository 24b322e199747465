"""The listening sockets.

Owns binding. Never reads settings (`plog.settings.listeners` does) and never
accepts: the reactor does.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from plog.errors import ConfigError
from plog.settings.listeners import HostCap, Listener

IPV4_MAPPED = bytes(10) + b"\xff\xff"


class BoundListener(NamedTuple):
    """A listener, its ports and advertised host filled in, and its listening socket."""

    listener: Listener
    socket: socket.socket


def bind_listeners(listeners: Sequence[Listener], backlog: int = 50) -> list[BoundListener]:
    """Bind and listen; ports that were 0 and hosts left to the machine are filled in. All or none.

    Raises:
        ConfigError: an address is in use, not this host's, or not resolvable.
    """
    bound: list[BoundListener] = []
    try:
        for listener in listeners:
            listening = bind(f"listener {listener.name}", listener.host, listener.port, backlog)
            port = listening.getsockname()[1]
            bound.append(
                BoundListener(
                    replace(
                        listener,
                        port=port,
                        advertised_host=listener.advertised_host or socket.getfqdn(),
                        advertised_port=listener.advertised_port or port,
                    ),
                    listening,
                )
            )
    except ConfigError:
        for one in bound:
            one.socket.close()
        raise
    return bound


def bind(what: str, host: str, port: int, backlog: int) -> socket.socket:
    """Listen on a host's port; no host is every interface.

    Raises:
        ConfigError: as `bind_listeners`; it names `what`.
    """
    place = f"{host or '*'}:{port}"
    try:
        # No host is every interface, by both families where the machine has both.
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True
            )
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=backlog)
    except socket.gaierror as error:
        raise ConfigError(f"{what}: {host!r} does not resolve: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(
            f"{what}: cannot listen on {place}: {os.strerror(error.errno or 0)}"
        ) from error


def cap_by_address(caps: Sequence[HostCap]) -> list[tuple[bytes, int]]:
    """Return each host's cap by its addresses, as IPv6 has them; the first cap of an address holds.

    Raises:
        ConfigError: a host does not resolve.
    """
    found: dict[bytes, int] = {}
    for host, most in caps:
        try:
            resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise ConfigError(
                f"max.connections.per.ip.overrides: {host!r} does not resolve: {error.strerror}"
            ) from error
        for family, _, _, _, name in resolved:
            packed = socket.inet_pton(family, str(name[0]).partition("%")[0])
            found.setdefault(packed if len(packed) == 16 else IPV4_MAPPED + packed, most)
    return list(found.items())
