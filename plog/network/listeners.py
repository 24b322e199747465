"""The listening sockets.

Owns binding, and listening once everything behind the addresses is ready. Never reads settings
(`plog.settings.listeners` does) and never accepts: the reactor does.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from plog.errors import ConfigError
from plog.settings.listeners import HostCap, Listener

IPV4_MAPPED = bytes(10) + b"\xff\xff"


class BoundListener(NamedTuple):
    """A listener, its port and advertised host filled in, and its socket, bound."""

    listener: Listener
    socket: socket.socket


def bind_listeners(listeners: Sequence[Listener]) -> list[BoundListener]:
    """Bind; ports that were 0 and hosts left to the machine are filled in. All or none.

    Nobody is let in before `listen`.

    Raises:
        ConfigError: an address is in use, not this host's, or not resolvable.
    """
    bound: list[BoundListener] = []
    try:
        for listener in listeners:
            held = bind(_name(listener), listener.host, listener.port)
            port = held.getsockname()[1]
            bound.append(
                BoundListener(
                    replace(
                        listener,
                        port=port,
                        advertised_host=listener.advertised_host or socket.getfqdn(),
                        advertised_port=listener.advertised_port or port,
                    ),
                    held,
                )
            )
    except ConfigError:
        for one in bound:
            one.socket.close()
        raise
    return bound


def listen_on(bound: BoundListener, backlog: int = 50) -> None:
    """Let clients in: until now they were refused, as by a host where nobody listens.

    Raises:
        ConfigError: somebody else has come to listen there since it was bound.
    """
    listen(_name(bound.listener), bound.socket, backlog)


def bind(what: str, host: str, port: int) -> socket.socket:
    """Take a host's port, without listening; no host is every interface.

    Raises:
        ConfigError: as `bind_listeners`; it names `what`.
    """
    try:
        # No host is every interface, by both families where the machine has both.
        if not host and socket.has_dualstack_ipv6():
            return _bound(socket.AF_INET6, ("", port), dual_stack=True)
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bound(family, (str(address[0]), port))
    except socket.gaierror as error:
        raise ConfigError(f"{what}: {host!r} does not resolve: {error.strerror}") from error
    except OSError as error:
        raise _refused(what, host, port, error) from error


def listen(what: str, held: socket.socket, backlog: int) -> None:
    """Listen on a socket that `bind` returned.

    Raises:
        ConfigError: as `listen_on`; it names `what`.
    """
    try:
        # What connections leave behind must not keep the next broker from the port.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.listen(backlog)
    except OSError as error:
        host, port = held.getsockname()[:2]
        raise _refused(what, host, port, error) from error


def _bound(family: int, address: tuple[str, int], *, dual_stack: bool = False) -> socket.socket:
    """Return a socket with an address that is nobody else's.

    SO_REUSEADDR takes a port on which the last broker's connections are still ending, but takes it
    from anybody who does not listen yet, too. So it is asked for where nothing else helps only.
    """
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual_stack)
        try:
            held.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)
    except OSError:
        held.close()
        raise
    return held


def _name(listener: Listener) -> str:
    return f"listener {listener.name}"


def _refused(what: str, host: str, port: int, error: OSError) -> ConfigError:
    reason = os.strerror(error.errno or 0)
    return ConfigError(f"{what}: cannot listen on {host or '*'}:{port}: {reason}")


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
