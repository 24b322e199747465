"""Kafka's nodes in the coordination store: their paths and their payloads.

Owns the text forms (Kafka's ZooKeeper mode, 3.9 and older where readers must cope).
Encoding and decoding are pure: nothing here reads or writes the store, nor decides
what a value means for the cluster. JSON is compact UTF-8 in Kafka's own key order.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

from plog.errors import PlogError
from plog.types import NO_EPOCH, TopicPartition, uuid_from_text, uuid_to_text

# --- paths ------------------------------------------------------------------------------------

CLUSTER_ID: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CONFIG: Final = "/config"
CONFIG_GROUPS: Final = "/config/groups"
"""Not of Kafka, whose groups have settings with KRaft alone."""
CONFIG_CHANGES: Final = "/config/changes"
CONFIG_CHANGE_PREFIX: Final = "/config/changes/config_change_"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
ISR_CHANGES: Final = "/isr_change_notification"
ISR_CHANGE_PREFIX: Final = "/isr_change_notification/isr_change_"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX: Final = "/log_dir_event_notification/log_dir_event_"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
FEATURES: Final = "/feature"

PERSISTENT_PATHS: Final = (
    "/consumers",
    BROKER_IDS,
    TOPICS,
    BROKER_SEQUENCE,
    CONFIG_CHANGES,
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
    CONFIG_GROUPS,
    DELETE_TOPICS,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
)
"""Created empty when a broker starts."""

DEFAULT_ENTITY: Final = "<default>"
"""Name of the node that holds the cluster-wide default of a kind of entity."""

NO_LEADER: Final = -1
LEADER_DURING_DELETE: Final = -2
"""Leader of a partition, as UpdateMetadata says it, whose topic is being deleted."""


def broker_path(broker_id: int) -> str:
    """Return the registration node of a broker."""
    return f"{BROKER_IDS}/{broker_id}"


def topic_path(topic: str) -> str:
    """Return the assignment node of a topic."""
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    """Return the parent of a topic's partition nodes."""
    return f"{TOPICS}/{topic}/partitions"


def partition_path(partition: TopicPartition) -> str:
    """Return the parent of a partition's state."""
    return f"{TOPICS}/{partition.topic}/partitions/{partition.partition}"


def partition_state_path(partition: TopicPartition) -> str:
    """Return the node of a partition's leader and ISR; its version is the partition epoch."""
    return f"{partition_path(partition)}/state"


def delete_topic_path(topic: str) -> str:
    """Return the node whose existence asks for a topic's deletion."""
    return f"{DELETE_TOPICS}/{topic}"


# --- config entities --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigEntity:
    """What a set of configs belongs to: a topic, broker, client or user, or the default of a kind.

    `parts` are (kind, name) pairs, two of them for a user's client; the name of a
    default is `<default>`. Kinds: topics, brokers, clients, users, ips, groups.
    """

    parts: tuple[tuple[str, str], ...]

    @staticmethod
    def topic(name: str) -> ConfigEntity:
        """Return the entity of a topic."""
        return ConfigEntity((("topics", name),))

    @staticmethod
    def broker(broker_id: int | None) -> ConfigEntity:
        """Return the entity of one broker, or of all of them (None)."""
        return ConfigEntity((("brokers", DEFAULT_ENTITY if broker_id is None else str(broker_id)),))

    @staticmethod
    def group(group_id: str) -> ConfigEntity:
        """Return the entity of a consumer group."""
        return ConfigEntity((("groups", group_id),))

    @property
    def kind(self) -> str:
        """The first kind: topics, brokers, clients, users, ips or groups."""
        return self.parts[0][0]

    @property
    def name(self) -> str:
        """The first name."""
        return self.parts[0][1]

    @property
    def entity_path(self) -> str:
        """Kafka's path below /config, as change notifications hold it."""
        return "/".join(f"{kind}/{_sanitize(name)}" for kind, name in self.parts)

    @property
    def path(self) -> str:
        """The node that holds the configs."""
        return f"{CONFIG}/{self.entity_path}"

    @staticmethod
    def from_entity_path(entity_path: str) -> ConfigEntity:
        """Read what `entity_path` returns, or raise MalformedNode."""
        words = entity_path.split("/")
        pairs = tuple(
            (kind, unquote(name)) for kind, name in zip(words[::2], words[1::2], strict=False)
        )
        if len(words) % 2 or not all(kind and name for kind, name in pairs):
            raise MalformedNode(f"not the path of a config entity: {entity_path!r}")
        return ConfigEntity(pairs)


def _sanitize(name: str) -> str:
    """URL-encode as Kafka's Sanitizer: Java's encoder with `*` escaped and `+` made `%20`.

    A group may be called `.` and `..`, which is no name of a node.
    """
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return name if name == DEFAULT_ENTITY else quote(name, safe="-._").replace("~", "%7E")


# --- payloads ---------------------------------------------------------------------------------


class MalformedNode(PlogError):
    """A node of the store does not hold what Kafka would have written."""


SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""Kafka's numbers for security protocols."""

MAX_PORT: Final = 65_535
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a listener of a broker is reached, as clients are told."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def address(self) -> str:
        """The host and the port, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        """Return Kafka's form."""
        return f"{self.listener}://{self.address}"

    @staticmethod
    def parse(text: str, protocols: Mapping[str, str]) -> Endpoint:
        """Read `LISTENER://host:port`, or raise MalformedNode."""
        listener, found, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not (found and colon and listener):
            raise MalformedNode(f"not an endpoint: {text!r}")
        return Endpoint.of(listener, host.strip("[]"), port, protocols.get(listener, listener))

    @staticmethod
    def of(listener: str, host: object, port: object, security_protocol: str) -> Endpoint:
        """Return an endpoint that the protocol can carry, or raise MalformedNode."""
        number = _int32(port)
        if security_protocol not in SECURITY_PROTOCOLS:
            raise MalformedNode(f"unknown security protocol: {security_protocol!r}")
        if not (isinstance(host, str) and host and number <= MAX_PORT):
            raise MalformedNode(f"not an address: {host!r}:{number}")
        return Endpoint(listener, host, number, security_protocol)


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """/brokers/ids/<id>: a live broker."""

    endpoints: tuple[Endpoint, ...]
    timestamp_ms: int
    rack: str | None = None
    jmx_port: int = -1
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The lowest and the highest level of each feature that the broker supports."""

    def encode(self) -> bytes:
        """Return version 5, that of IBP 2.7 and newer."""
        plain = next((e for e in self.endpoints if e.security_protocol == "PLAINTEXT"), None)
        fields: dict[str, object] = {
            "version": 5,
            "host": plain.host if plain else None,
            "port": plain.port if plain else -1,
            "jmx_port": self.jmx_port,
            "timestamp": str(self.timestamp_ms),
            "endpoints": [str(endpoint) for endpoint in self.endpoints],
            "listener_security_protocol_map": {
                endpoint.listener: endpoint.security_protocol for endpoint in self.endpoints
            },
        }
        if self.rack is not None:
            fields["rack"] = self.rack
        features = {
            name: {"min_version": lowest, "max_version": highest}
            for name, (lowest, highest) in self.features.items()
        }
        return _encode(fields | {"features": features})

    @staticmethod
    def decode(data: bytes) -> BrokerNode:
        """Read versions 1 (0.8) to 5, or raise MalformedNode."""
        with _reading(data) as fields:
            if fields["version"] == 1:
                host, port = fields["host"], fields["port"]
                endpoints: tuple[Endpoint, ...] = (
                    Endpoint.of("PLAINTEXT", host, port, "PLAINTEXT"),
                )
            else:
                protocols = fields.get("listener_security_protocol_map", {})
                endpoints = tuple(Endpoint.parse(text, protocols) for text in fields["endpoints"])
            features = {
                name: (int(levels["min_version"]), int(levels["max_version"]))
                for name, levels in fields.get("features", {}).items()
            }
            return BrokerNode(
                endpoints,
                int(fields["timestamp"]),
                _rack(fields.get("rack")),
                fields["jmx_port"],
                features,
            )


@dataclass(frozen=True, slots=True)
class ControllerNode:
    """/controller: who the controller is."""

    broker_id: int
    timestamp_ms: int

    def encode(self) -> bytes:
        """Return version 2."""
        return _encode(
            {
                "version": 2,
                "brokerid": self.broker_id,
                "timestamp": str(self.timestamp_ms),
                "kraftControllerEpoch": -1,
            }
        )

    @staticmethod
    def decode(data: bytes) -> ControllerNode:
        """Read version 1 or 2; only the broker id must be there."""
        with _reading(data) as fields:
            return ControllerNode(_int32(fields["brokerid"]), int(fields.get("timestamp", -1)))


def encode_controller_epoch(epoch: int) -> bytes:
    """Return the text of /controller_epoch."""
    return b"%d" % epoch


def decode_controller_epoch(data: bytes) -> int:
    """Read /controller_epoch, or raise MalformedNode."""
    if not data.isdigit() or len(data) > 10 or int(data) >= MAX_INT32:
        raise MalformedNode(f"not what Kafka writes: {data[:200]!r}")
    return int(data)


def encode_cluster_id(cluster_id: str) -> bytes:
    """Return the text of /cluster/id; the version is a string there."""
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """Read /cluster/id, or raise MalformedNode."""
    with _reading(data) as fields:
        return str(fields["id"])


@dataclass(frozen=True, slots=True)
class TopicNode:
    """/brokers/topics/<topic>: its id, and each partition's replicas, preferred leader first."""

    topic_id: uuid.UUID | None
    partitions: Mapping[int, tuple[int, ...]]
    adding_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return version 3, or 2 for a topic without an id."""
        fields: dict[str, object] = {"version": 2 if self.topic_id is None else 3}
        if self.topic_id is not None:
            fields["topic_id"] = uuid_to_text(self.topic_id)
        for name in ("partitions", "adding_replicas", "removing_replicas"):
            replicas: Mapping[int, Sequence[int]] = getattr(self, name)
            fields[name] = {str(index): list(replicas[index]) for index in sorted(replicas)}
        return _encode(fields)

    @staticmethod
    def decode(data: bytes) -> TopicNode:
        """Read versions 1 (0.8) to 3, or raise MalformedNode."""
        with _reading(data) as fields:
            text = fields.get("topic_id")
            partitions = _replicas(fields["partitions"])
            if not partitions or not all(partitions.values()):
                raise ValueError("no partitions, or one without replicas")
            return TopicNode(
                None if text is None else uuid_from_text(text),
                partitions,
                _replicas(fields.get("adding_replicas", {})),
                _replicas(fields.get("removing_replicas", {})),
            )


@dataclass(frozen=True, slots=True)
class PartitionStateNode:
    """/brokers/topics/<t>/partitions/<p>/state: who leads, who is in sync, by whose word."""

    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    leader_recovery_state: int = 0  # 1 while recovering from an unclean election
    leader_broker_epoch: int = NO_EPOCH
    """Of the registration with which the leader was chosen. Kafka does not write it."""

    def encode(self) -> bytes:
        """Return version 1."""
        fields: dict[str, object] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
        }
        if self.leader_recovery_state:
            fields["leader_recovery_state"] = self.leader_recovery_state
        if self.leader_broker_epoch != NO_EPOCH:
            fields["leader_broker_epoch"] = self.leader_broker_epoch
        return _encode(fields)

    @staticmethod
    def decode(data: bytes) -> PartitionStateNode:
        """Read version 1, or raise MalformedNode."""
        with _reading(data) as fields:
            return PartitionStateNode(
                _int32(fields["controller_epoch"]),
                _int32(fields["leader"], LEADER_DURING_DELETE),
                _int32(fields["leader_epoch"]),
                _broker_ids(fields["isr"]),
                _int32(fields.get("leader_recovery_state", 0)),
                _int64(fields.get("leader_broker_epoch", NO_EPOCH), NO_EPOCH),
            )


def encode_config(config: Mapping[str, str]) -> bytes:
    """Return the text of a node below /config."""
    return _encode({"version": 1, "config": dict(config)})


def decode_config(data: bytes) -> dict[str, str]:
    """Read a node below /config (an empty one has no configs), or raise MalformedNode."""
    if not data:
        return {}
    with _reading(data) as fields:
        return {str(key): str(value) for key, value in fields["config"].items()}


def encode_config_change(entity: ConfigEntity) -> bytes:
    """Return version 2 of a change notification."""
    return _encode({"version": 2, "entity_path": entity.entity_path})


def decode_config_change(data: bytes) -> ConfigEntity:
    """Read version 1 or 2 of a change notification, or raise MalformedNode."""
    with _reading(data) as fields:
        if fields["version"] == 1:
            return ConfigEntity(((fields["entity_type"], fields["entity_name"]),))
        return ConfigEntity.from_entity_path(fields["entity_path"])


def encode_partitions(partitions: Sequence[TopicPartition]) -> bytes:
    """Return the text of a preferred election or an isr change: a list of partitions."""
    return _encode(
        {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": partition} for topic, partition in partitions
            ],
        }
    )


def decode_partitions(data: bytes) -> list[TopicPartition]:
    """Read what `encode_partitions` returns, or raise MalformedNode."""
    with _reading(data) as fields:
        return [
            TopicPartition(str(one["topic"]), int(one["partition"])) for one in fields["partitions"]
        ]


def encode_reassignment(targets: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Return the text of /admin/reassign_partitions."""
    return _encode(
        {
            "version": 1,
            "partitions": [
                {"topic": topic, "partition": partition, "replicas": list(replicas)}
                for (topic, partition), replicas in targets.items()
            ],
        }
    )


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Read /admin/reassign_partitions, or raise MalformedNode."""
    with _reading(data) as fields:
        return {
            TopicPartition(str(one["topic"]), int(one["partition"])): tuple(one["replicas"])
            for one in fields["partitions"]
        }


def encode_log_dir_event(broker_id: int) -> bytes:
    """Return the notification that a log directory of a broker has failed (event 1)."""
    return _encode({"version": 1, "broker": broker_id, "event": 1})


def decode_log_dir_event(data: bytes) -> int:
    """Return the id of the broker that has lost a log directory, or raise MalformedNode."""
    with _reading(data) as fields:
        return int(fields["broker"])


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """/latest_producer_id_block: the ids, first to last inclusive, that a broker has taken."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        """Return version 1; the ids are strings, for readers whose numbers are doubles."""
        return _encode(
            {
                "version": 1,
                "broker": self.broker_id,
                "block_start": str(self.first),
                "block_end": str(self.last),
            }
        )

    @staticmethod
    def decode(data: bytes) -> ProducerIdBlock:
        """Read version 1, or raise MalformedNode."""
        with _reading(data) as fields:
            return ProducerIdBlock(
                int(fields["broker"]), int(fields["block_start"]), int(fields["block_end"])
            )


@dataclass(frozen=True, slots=True)
class FeaturesNode:
    """/feature: the levels of the features that are in force (KIP-584).

    With `is_enabled` unset there are none: brokers too old for features are about.
    """

    levels: Mapping[str, int]
    is_enabled: bool = True

    def encode(self) -> bytes:
        """Return version 2."""
        return _encode(
            {"version": 2, "status": int(self.is_enabled), "features": dict(self.levels)}
        )

    @staticmethod
    def decode(data: bytes) -> FeaturesNode:
        """Read version 2, or 1 (which has lowest levels too), or raise MalformedNode."""
        with _reading(data) as fields:
            is_old = int(fields["version"]) < 2
            return FeaturesNode(
                {
                    str(name): int(level["max_version_level"] if is_old else level)
                    for name, level in fields["features"].items()
                },
                is_enabled=bool(int(fields["status"])),
            )


# --- JSON -------------------------------------------------------------------------------------


def _encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _replicas(fields: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    replicas = {_int32(index): _broker_ids(ids) for index, ids in fields.items()}
    return dict(sorted(replicas.items()))


def _broker_ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, list):
        raise TypeError(f"not a list: {ids!r}")
    return tuple(map(_int32, ids))


def _rack(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"not a rack: {value!r}")
    return value


def _int32(value: object, least: int = 0) -> int:
    return _whole_number(value, least, MAX_INT32)


def _int64(value: object, least: int = 0) -> int:
    return _whole_number(value, least, MAX_INT64)


def _whole_number(value: object, least: int, most: int) -> int:
    """Return a number that the protocol can carry, which JSON may hold as a text."""
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise TypeError(f"not a whole number: {value!r}")
    if not least <= (number := int(value)) <= most:
        raise ValueError(f"{number} is below {least} or above {most}")
    return number


FAULTS = KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
"""What comes of JSON of another shape, or of numbers beyond all bounds."""


@contextlib.contextmanager
def _reading(data: bytes) -> Iterator[dict[str, Any]]:
    """Give the fields of a JSON object; a missing field or a wrong type is MalformedNode."""
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise MalformedNode(f"not a JSON object: {data[:200]!r}")
        yield fields
    except FAULTS as fault:
        # The fault may quote all of a long text.
        raise MalformedNode(f"not what Kafka writes: {data[:200]!r}: {fault!r:.200}") from fault
