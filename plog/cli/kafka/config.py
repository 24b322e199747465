"""The properties files of Kafka's clients, as far as they matter to the scripts.

Owns the meaning of `--command-config`, `--consumer.config` and the like. Properties that change
nothing here are ignored, as Kafka's clients ignore unknown ones. Security is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plog.cli.kafka.commands import Words
from plog.cli.kafka.options import INT_BITS, LONG_BITS, Given, java_integer
from plog.client.admin import Admin
from plog.client.group_admin import GroupAdmin
from plog.client.metadata import Cluster
from plog.client.transaction_admin import TransactionAdmin
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

    def fault(self, why: str) -> ClientFault:
        """Return the error for properties that make no client."""
        return ClientFault(self._client, why)

    def text(self, key: str, default: str) -> str:
        """Return a property as text."""
        return self._properties.get(key, default)

    def integer(self, key: str, default: int, *, bits: int = INT_BITS) -> int:
        """Return a property as a whole number.

        Raises:
            ValueError: it is none.
        """
        text = self._properties.get(key)
        if text is None:
            return default
        number = java_integer(text.strip(), bits)
        if number is None:
            kind = "INT" if bits == INT_BITS else "LONG"
            raise ValueError(
                f"Invalid value {text} for configuration {key}: Not a number of type {kind}"
            )
        return number

    def choice(self, key: str, default: str, *known: str) -> str:
        """Return a property that is one of some texts.

        Raises:
            ValueError: it is none of them.
        """
        text = self.text(key, default)
        if text not in known:
            raise ValueError(
                f"Invalid value {text} for configuration {key}:"
                f" String must be one of: {', '.join(known)}"
            )
        return text

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a property as a boolean.

        Raises:
            ValueError: it is none.
        """
        text = self._properties.get(key)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise ValueError(
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

    def reader_arguments(self) -> dict[str, Any]:
        """Return the arguments of a `Consumer`.

        Raises:
            ValueError: a value is invalid.
        """
        return {
            "client_id": self.text("client.id", "consumer"),
            "auto_offset_reset": self.choice(
                "auto.offset.reset", "latest", "latest", "earliest", "none"
            ),
            "isolation_level": self.choice(
                "isolation.level", "read_uncommitted", "read_committed", "read_uncommitted"
            ),
            "fetch_max_wait_ms": self.integer("fetch.max.wait.ms", 500),
            "fetch_min_bytes": self.integer("fetch.min.bytes", 1),
            "fetch_max_bytes": self.integer("fetch.max.bytes", 50 << 20),
            "max_partition_fetch_bytes": self.integer("max.partition.fetch.bytes", 1 << 20),
            "max_poll_records": self.integer("max.poll.records", 500),
            "request_timeout_ms": self.timeout_ms,
        }

    def group_arguments(self) -> dict[str, Any]:
        """Return the arguments of a `GroupConsumer`, except its group.

        Raises:
            ValueError: a value is invalid.
        """
        if self.text("group.protocol", "classic").lower() != "classic":
            raise ValueError("group.protocol=consumer is not supported; only classic is")
        return {
            **self.reader_arguments(),
            "group_instance_id": self._properties.get("group.instance.id"),
            "enable_auto_commit": self.flag("enable.auto.commit", default=True),
            "auto_commit_interval_ms": self.integer("auto.commit.interval.ms", 5_000),
            "session_timeout_ms": self.integer("session.timeout.ms", 45_000),
            "heartbeat_interval_ms": self.integer("heartbeat.interval.ms", 3_000),
            "max_poll_interval_ms": self.integer("max.poll.interval.ms", 300_000),
            "metadata_max_age_ms": self.integer("metadata.max.age.ms", 300_000, bits=LONG_BITS),
        }

    def producer_arguments(self) -> dict[str, Any]:
        """Return the arguments of a `Producer`.

        Raises:
            ValueError: a value is invalid.
        """
        acks = self.choice("acks", "all", "all", "-1", "0", "1")
        return {
            "client_id": self.text("client.id", "producer"),
            "acks": acks,
            "enable_idempotence": acks in ("all", "-1")
            and self.flag("enable.idempotence", default=True),
            "linger_ms": self.integer("linger.ms", 0, bits=LONG_BITS),
            "batch_size": self.integer("batch.size", 16384),
            "compression_type": self.choice(
                "compression.type", "none", "none", "gzip", "snappy", "lz4", "zstd"
            ),
            "max_request_size": self.integer("max.request.size", 1 << 20),
            "buffer_memory": self.integer("buffer.memory", 32 << 20, bits=LONG_BITS),
            "max_block_ms": self.integer("max.block.ms", 60_000, bits=LONG_BITS),
            "request_timeout_ms": self.timeout_ms,
            "delivery_timeout_ms": self.integer("delivery.timeout.ms", 120_000),
            "retry_backoff_ms": self.integer("retry.backoff.ms", 100, bits=LONG_BITS),
            "metadata_max_age_ms": self.integer("metadata.max.age.ms", 300_000, bits=LONG_BITS),
            "transactional_id": self._properties.get("transactional.id"),
            "transaction_timeout_ms": self.integer("transaction.timeout.ms", 60_000),
        }

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
    """Read `key=value` words of the command line; a key without a value has an empty one."""
    found = {}
    for entry in entries:
        key, _, value = entry.partition("=")
        if key:
            found[key] = value
    return found


class Clients:
    """The administrative clients of one run. They share their connections."""

    def __init__(
        self,
        given: Given | Words,
        *,
        server: str = "bootstrap-server",
        config: str = "command-config",
    ) -> None:
        path = given.value(config)
        properties = {} if path is None else read_file(path)
        properties["bootstrap.servers"] = given.text(server)
        found = ClientProperties(properties, "Failed to create new KafkaAdminClient")
        self.timeout_ms = found.timeout_ms
        self.cluster = found.cluster()
        self.admin = Admin(self.cluster, request_timeout_ms=found.timeout_ms)
        self.groups = GroupAdmin(self.cluster, request_timeout_ms=found.timeout_ms)
        self.transactions = TransactionAdmin(self.cluster, request_timeout_ms=found.timeout_ms)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()
