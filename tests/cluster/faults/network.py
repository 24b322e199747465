"""Hosts of their own for ZooKeeper and each broker: network namespaces, whose links can be cut.

    clients, tests --- 10.0.1.0/24 --- brokers     what clients connect to
                       10.0.2.0/24 --- brokers     the listener between brokers
    ZooKeeper, tests - 10.0.3.0/24 --- brokers

The three networks are bridges in one namespace, where the tests and the clients are. A link is cut
at the bridge's side, as when a cable is pulled: packets are lost without an error. For a cut in one
direction, the senders believe that the receiver has a hardware address that no host has.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.processes import Brokers
from tests.servers import BrokerProcess, free_port

CLONE_NEWNET = 0x40000000
NAMESPACES = Path("/run/netns")
ZOOKEEPER = "10.0.3.1"
NO_ADDRESS = "02:00:00:00:00:01"
"""A hardware address. Packets to it are lost."""


class Link(Enum):
    """A link of each broker: its name there, and its network."""

    CLIENTS = "clients"
    BROKERS = "brokers"
    ZOOKEEPER = "zookeeper"

    @property
    def network(self) -> str:
        return f"10.0.{list(Link).index(self) + 1}"

    def address(self, broker_id: int) -> str:
        return f"{self.network}.{10 + broker_id}"


class Host(NamedTuple):
    """A namespace in a network: its device there and its address."""

    namespace: str
    device: str
    address: str


class Way(Enum):
    """The packets that a cut loses: those that a broker sends, or those that others send to it."""

    FROM_BROKER = "from the broker"
    TO_BROKER = "to the broker"


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def launcher(namespace: str) -> list[str]:
    """Return what goes before a command that is to run in a namespace."""
    return ["nsenter", f"--net={NAMESPACES / namespace}"]


class Network:
    """The namespaces and links for ZooKeeper and brokers 0, 1, ..."""

    def __init__(self, brokers: int = 3) -> None:
        self._name = f"plog-{os.getpid()}"
        self._made: list[str] = []
        try:
            self._make(brokers)
        except BaseException:
            self.close()
            raise

    def _make(self, brokers: int) -> None:
        self.hub = self._namespace("hub")
        self.zookeeper = self._namespace("zookeeper")
        self.brokers = [self._namespace(f"broker{number}") for number in range(brokers)]
        for link in Link:
            self._bridge(link)
            for number, namespace in enumerate(self.brokers):
                self._connect(link, namespace, f"{link.value}{number}", link.address(number))
        self._connect(Link.ZOOKEEPER, self.zookeeper, "zk", ZOOKEEPER)

    def _namespace(self, name: str) -> str:
        full = f"{self._name}-{name}"
        _ip("netns", "add", full)
        self._made.append(full)
        _ip("-n", full, "link", "set", "lo", "up")
        return full

    def _bridge(self, link: Link) -> None:
        name = f"all-{link.value}"
        _ip("-n", self.hub, "link", "add", name, "type", "bridge")
        _ip("-n", self.hub, "address", "add", f"{link.network}.254/24", "dev", name)
        _ip("-n", self.hub, "link", "set", name, "up")

    def _connect(self, link: Link, namespace: str, port: str, address: str) -> None:
        _ip(
            *("-n", self.hub, "link", "add", port, "type", "veth"),
            *("peer", "name", link.value, "netns", namespace),
        )
        _ip("-n", self.hub, "link", "set", port, "master", f"all-{link.value}", "up")
        _ip("-n", namespace, "address", "add", f"{address}/24", "dev", link.value)
        _ip("-n", namespace, "link", "set", link.value, "up")

    def cut(self, broker_id: int, *links: Link, is_cut: bool = True) -> None:
        """Cut links of a broker, or join them again."""
        for link in links:
            port = f"{link.value}{broker_id}"
            _ip("-n", self.hub, "link", "set", port, "down" if is_cut else "up")

    def cut_one_way(self, broker_id: int, way: Way, *links: Link, is_cut: bool = True) -> None:
        """Lose the packets of one direction, or no more."""
        for link in links:
            broker, others = self._broker_and_others(broker_id, link)
            for other in others:
                sender, receiver = (broker, other) if way is Way.FROM_BROKER else (other, broker)
                place = (receiver.address, "dev", sender.device, "nud", "permanent")
                change = ("replace", *place, "lladdr", NO_ADDRESS) if is_cut else ("flush", *place)
                _ip("-n", sender.namespace, "neighbour", *change)

    def _broker_and_others(self, broker_id: int, link: Link) -> tuple[Host, list[Host]]:
        """Return a broker in one of its networks, and all others there."""
        brokers = [
            Host(namespace, link.value, link.address(number))
            for number, namespace in enumerate(self.brokers)
        ]
        others = [one for number, one in enumerate(brokers) if number != broker_id]
        others.append(Host(self.hub, f"all-{link.value}", f"{link.network}.254"))
        if link is Link.ZOOKEEPER:
            others.append(Host(self.zookeeper, link.value, ZOOKEEPER))
        return brokers[broker_id], others

    @contextmanager
    def entered(self, namespace: str = "") -> Iterator[None]:
        """Have this thread, and the threads and processes that it starts, be in a namespace.

        By default, that is where clients are.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        place = NAMESPACES / (namespace or self.hub)
        with open("/proc/thread-self/ns/net") as before, open(place) as there:
            _enter(libc, there.fileno())
            try:
                yield
            finally:
                _enter(libc, before.fileno())

    def close(self) -> None:
        """Remove all namespaces, and their links with them."""
        for name in self._made:
            _ip("netns", "delete", name)


def _enter(libc: Any, fd: int) -> None:
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def network() -> Iterator[Network]:
    """Make a network for the block, and enter it. Skips where this process may not."""
    if os.geteuid() != 0:
        pytest.skip("no network can be cut: only root makes network namespaces")
    made = Network()
    try:
        with made.entered():
            yield made
    finally:
        made.close()


class BrokersApart(Brokers):
    """Each broker in a namespace of its own."""

    def __init__(self, directory: Path, servers: str, made: Network, **settings: object) -> None:
        self.network = made
        super().__init__(directory, servers, len(made.brokers), **settings)

    def _process(self, place: Path, overrides: dict[str, object]) -> BrokerProcess:
        number = len(self.brokers)
        clients, brokers = Link.CLIENTS.address(number), Link.BROKERS.address(number)
        made = BrokerProcess(
            place,
            overrides=overrides,
            launcher=[*launcher(self.network.brokers[number]), *self._program(place)],
            host=clients,
        )
        made.overrides |= {
            "listeners": f"CLIENTS://{clients}:{made.port},BROKERS://{brokers}:{free_port()}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
        }
        return made

    def _program(self, _place: Path) -> list[str]:
        """Return what starts the broker of a directory in its namespace."""
        return [sys.executable, "-m", "plog", "server"]
