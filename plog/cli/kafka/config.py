"""The properties files of Kafka's clients, as far as they matter to the scripts.

Owns the meaning of `--command-config`, `--consumer.config` and the like. Properties that change
nothing here are ignored, as Kafka's clients ignore unknown ones. Security is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from plog.cli.kafka.options import INT_BITS, Given, java_integer
from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.client.metadata import Cluster
from plog.errors import InvalidConfig
from plog.settings.properties import load_properties

PLAINTEXT = "PLAINTEXT"
ADDRESS = re.compile(r"(?:.*?://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:,]+):[0-9]+")
API_TIMEOUT_MS = 60_000
REQUEST_TIMEOUT_MS = 30_000


class ClientFault(Exception):
    """A client cannot be made of these properties.

    Args:
        what: which client, as Kafka calls it.
        why: the reason.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.why = why


class ClientProperties:
    """The properties of a client: those of files, below those of the command line."""

    def __init__(self, properties: dict[str, str], client: str) -> None:
        self._properties = properties
        self._client = client
        protocol = self.text("security.protocol", PLAINTEXT)
        if protocol.upper() != PLAINTEXT:
            raise self.fault(
                f"security.protocol={protocol} is not supported yet; only {PLAINTEXT} is"
            )

    def __contains__(self, key: str) -> bool:
        return key in self._properties

    def fault(self, why: str) -> ClientFault:
        """Return the error for properties that make no client."""
        return ClientFault(self._client, why)

    def text(self, key: str, default: str) -> str:
        """Return a property as text."""
        return self._properties.get(key, default)

    def integer(self, key: str, default: int) -> int:
        """Return a property as a whole number.

        Raises:
            ClientFault: it is none.
        """
        text = self._properties.get(key)
        if text is None:
            return default
        number = java_integer(text.strip(), INT_BITS)
        if number is None:
            raise self.fault(
                f"Invalid value {text} for configuration {key}: Not a number of type INT"
            )
        return number

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a property as a boolean.

        Raises:
            ClientFault: it is none.
        """
        text = self._properties.get(key)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise self.fault(
                f"Invalid value {text} for configuration {key}:"
                " Expected value to be either true or false"
            )
        return text.strip().lower() == "true"

    @property
    def servers(self) -> str:
        """Return the addresses of the brokers.

        Raises:
            ClientFault: there are none, or one lacks its port.
        """
        servers = self.text("bootstrap.servers", "")
        entries = [entry.strip() for entry in servers.split(",") if entry.strip()]
        if not entries:
            raise self.fault("No resolvable bootstrap urls given in bootstrap.servers")
        for entry in entries:
            if not ADDRESS.fullmatch(entry):
                raise self.fault(f"Invalid url in bootstrap.servers: {entry}")
        return ",".join(entries)

    @property
    def timeout_ms(self) -> int:
        """How long one request may take."""
        most = self.integer("default.api.timeout.ms", API_TIMEOUT_MS)
        return max(min(self.integer("request.timeout.ms", REQUEST_TIMEOUT_MS), most), 1)

    def cluster(self) -> Cluster:
        """Return the cluster at these addresses; no connection is open yet."""
        try:
            return Cluster(
                self.servers,
                client_id=self.text("client.id", "adminclient-1"),
                request_timeout_ms=self.timeout_ms,
            )
        except InvalidConfig as fault:
            raise self.fault(str(fault)) from fault


def read_file(path: str) -> dict[str, str]:
    """Read a properties file.

    Raises:
        OSError: it cannot be read.
        InvalidConfig: it is not a properties file.
    """
    with Path(path).open("rb"):  # the error for a missing file names it
        pass
    return {entry.key: entry.value for entry in load_properties(path)}


def pairs(entries: Iterable[str]) -> dict[str, str]:
    """Read `key=value` words of the command line.

    Raises:
        ValueError: one has no key, or no `=`.
    """
    found = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise ValueError(f"Invalid command line properties: {entry}")
        found[key] = value
    return found


class Clients:
    """The administrative clients of one run. They share their connections."""

    def __init__(self, given: Given, *, server: str = "bootstrap-server") -> None:
        path = given.value("command-config")
        properties = {} if path is None else read_file(path)
        properties["bootstrap.servers"] = given.text(server)
        found = ClientProperties(properties, "Failed to create new KafkaAdminClient")
        self.cluster = found.cluster()
        self.admin = Admin(self.cluster, request_timeout_ms=found.timeout_ms)
        self.groups = GroupAdmin(self.cluster, request_timeout_ms=found.timeout_ms)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()
