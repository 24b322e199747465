"""The syntax of `zookeeper.connect`: servers, and one path after the last of them.

Owns its rules; those for paths are ZooKeeper's own. Pure: never resolves a host and
never connects.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from plog.settings.keys import ConfigType, Kind
from plog.settings.listeners import Address, format_address

DEFAULT_PORT: Final = 2181
MAX_PORT: Final = 65535

_SERVER = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(:(?P<port>[^:]*))?")
_NOT_IN_A_HOST = re.compile(r"[\s@?#%\\]")
_NOT_IN_A_PATH = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
"""What ZooKeeper refuses in the name of a node."""


class ZooKeeperConnect(NamedTuple):
    """What `zookeeper.connect` says. As text, each server has its port."""

    servers: tuple[Address, ...]
    path: str
    """The path below which the nodes are, as /plog; empty for ZooKeeper's root."""

    @property
    def hosts(self) -> str:
        """The servers, separated by commas."""
        return ",".join(format_address(server) for server in self.servers)

    def __str__(self) -> str:
        return self.hosts + self.path


def parse_connect(text: str) -> ZooKeeperConnect:
    """Read a list like ``zk1:2181,[::1]:2182/plog``.

    Blanks around a server and commas without a server are ignored, as ZooKeeper's clients do.

    Raises:
        ValueError: the reason.
    """
    listed, _, names = text.strip().partition("/")
    servers = [_parse_server(entry) for entry in map(str.strip, listed.split(",")) if entry]
    if not servers:
        raise ValueError("names no server")
    path = f"/{names}" if names else ""
    if path:
        _check_path(path)
    return ZooKeeperConnect(tuple(servers), path)


def _parse_key(text: str) -> str:
    if not text:
        raise ValueError("is empty; remove the key for a broker that runs alone")
    return str(parse_connect(text))


CONNECT: Final = Kind(ConfigType.STRING, _parse_key, str)


def _parse_server(entry: str) -> Address:
    if entry.count(":") > 1 and "[" not in entry:
        raise ValueError(
            f"{entry!r} has several colons; write an IPv6 address in brackets, and a comma between"
            " servers"
        )
    found = _SERVER.fullmatch(entry)
    if found is None:
        raise ValueError(f"{entry!r} is not of the form host:port")
    host, port = found["host"], found["port"]
    if host in ("", "[]"):
        raise ValueError(f"{entry!r} names no host")
    if port is not None and not _is_port(port):
        raise ValueError(f"{entry!r} has port {port!r}; use a number from 1 to {MAX_PORT}")
    if not _is_host(host):
        raise ValueError(f"{entry!r} has an invalid host")
    return Address(host.strip("[]"), DEFAULT_PORT if port is None else int(port))


def _is_port(text: str) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PORT))
    return is_number and 1 <= int(text) <= MAX_PORT


def _is_host(text: str) -> bool:
    try:
        if text.startswith("["):
            IPv6Address(text[1:-1])
        else:
            text.encode("idna")  # as the resolver does, which refuses an empty label
    except ValueError:
        return False
    return text.startswith("[") or _NOT_IN_A_HOST.search(text) is None


def _check_path(path: str) -> None:
    """Refuse what ZooKeeper refuses, and what a second server behind the path would make."""
    if "," in path or ":" in path:
        raise ValueError(
            f"path {path!r} has a comma or a colon; name all servers first, and the path once,"
            " after the last server"
        )
    if path.endswith("/"):
        raise ValueError(f"path {path!r} ends with a slash")
    if any(name in ("", ".", "..") for name in path[1:].split("/")):
        raise ValueError(f"path {path!r} has an empty name, . or ..")
    if (found := _NOT_IN_A_PATH.search(path)) is not None:
        raise ValueError(f"path {path!r} has the character {found[0]!r}")
