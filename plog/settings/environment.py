"""Reads settings from environment variables, as containers set them.

Owns the names: PLOG_LOG_DIRS and Kafka's KAFKA_LOG_DIRS stand for `log.dirs`. Also owns the fate of
the variables that an existing set-up of the image apache/kafka has and plog does not need. Never
checks values: a value from a variable is read like one from a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from plog.settings.keys import unknown_key

PLOG: Final = "PLOG_"
KAFKA: Final = "KAFKA_"

TOOLS: Final = frozenset({"PLOG_BOOTSTRAP_SERVER", "PLOG_METRICS"})
"""Variables of plog's tools."""
DEVELOPMENT: Final = frozenset(
    {
        "PLOG_BENCH_SHORT",
        "PLOG_BUILD",
        "PLOG_FUZZ_SECONDS",
        "PLOG_KAFKA_JARS",
        "PLOG_KERNELS",
        "PLOG_NO_SKIP",
        "PLOG_REFERENCE",
        "PLOG_RUN_SEED",
        "PLOG_TEST_HOST",
        "PLOG_TEST_SEED",
    }
)
"""Variables of plog's builds and tests."""

JVM: Final = re.compile(
    r"KAFKA_(.*_)?OPTS|KAFKA_(JMX|LOG4J|DEBUG)(_.*)?|KAFKA_(HOME|VERSION|JAVA_.*)"
)
IMAGE_SSL: Final = re.compile(
    r"KAFKA_SSL_((KEY|TRUST)STORE_(FILENAME|CREDENTIALS)|KEY_CREDENTIALS)"
)
"""Kafka's image makes ssl.* keys from files with these names."""
KUBERNETES: Final = re.compile(
    r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""Kubernetes sets these for a service whose name begins with plog or kafka."""
LINK: Final = re.compile(r"(tcp|udp|sctp)://.*")
"""The value of NAME_PORT beside them."""

UNDERSCORES: Final = {"_": ".", "__": "_", "___": "-"}


class Variable(NamedTuple):
    """A variable that sets a key."""

    name: str
    key: str
    value: str


class Remark(NamedTuple):
    """A sentence about a variable."""

    name: str
    text: str


@dataclass
class Environment:
    """The settings among the variables, and remarks about the others."""

    variables: list[Variable] = field(default_factory=list)
    """Those of Kafka first. A later one overrides an earlier one with the same key."""
    ignored: list[Remark] = field(default_factory=list)
    """Variables that an existing set-up may well have, and why plog does not need them."""
    warnings: list[Remark] = field(default_factory=list)
    faults: list[Remark] = field(default_factory=list)


def key_of(name: str, known: Iterable[str]) -> str:
    """Return the key of a variable, without its prefix: LOG_DIRS stands for log.dirs."""
    text = re.sub("___|__|_", lambda found: UNDERSCORES[found[0]], name).lower()
    # Some of Kafka's keys have capitals: zookeeper.clientCnxnSocket.
    return next((key for key in known if key.lower() == text), text)


def read_environment(
    variables: Mapping[str, str],
    known: Iterable[str],
    listeners: str | None = None,
    *,
    has_later_listeners: bool = False,
) -> Environment:
    """Find the settings among all variables of a process.

    Args:
        known: all keys that plog or Kafka has.
        listeners: the value of that key in the file; None if the file does not have it.
        has_later_listeners: a source that overrides the variables has that key, too.
    """
    known = set(known)
    found = Environment()
    kafka = {name: variables[name] for name in sorted(variables) if name.startswith(KAFKA)}
    _skip(kafka, found)
    _take_kraft(kafka, variables, found)
    if not has_later_listeners and f"{PLOG}LISTENERS" not in variables:
        _take_advertised(kafka, listeners, found)
    for name, value in kafka.items():
        key = key_of(name.removeprefix(KAFKA), known)
        if key in known:
            found.variables.append(Variable(name, key, value))
        else:
            text = f"ignored, `{key}`: {unknown_key(key, known)}"
            found.warnings.append(Remark(name, text))
    plog = {name: variables[name] for name in sorted(variables) if name.startswith(PLOG)}
    _skip(plog, found)
    for name, value in plog.items():
        if name not in TOOLS | DEVELOPMENT:
            key = key_of(name.removeprefix(PLOG), known)
            found.variables.append(Variable(name, key, value))
    return found


def _skip(variables: dict[str, str], found: Environment) -> None:
    """Take out the variables that set no key, with one line for each kind."""
    for pattern, why in (
        (JVM, "plog has no JVM"),
        (IMAGE_SSL, "connections are not encrypted yet"),
        (KUBERNETES, "Kubernetes sets them for a service"),
    ):
        names = [name for name in variables if pattern.fullmatch(name)]
        if pattern is KUBERNETES:
            names += [
                name
                for name, value in variables.items()
                if name.endswith("_PORT") and LINK.fullmatch(value)
            ]
        if names:
            if pattern is IMAGE_SSL:
                found.warnings.append(Remark(", ".join(sorted(names)), f"ignored: {why}"))
            else:
                found.ignored.append(Remark(", ".join(sorted(names)), why))
        for name in names:
            del variables[name]


# -- variables of a KRaft broker ---------------------------------------------------------------

ROLES: Final = "KAFKA_PROCESS_ROLES"
VOTERS: Final = ("KAFKA_CONTROLLER_QUORUM_VOTERS", "KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS")
CONTROLLERS: Final = "KAFKA_CONTROLLER_LISTENER_NAMES"
CLUSTER_IDS: Final = ("CLUSTER_ID", "KAFKA_CLUSTER_ID")
NODE_ID: Final = "KAFKA_NODE_ID"
BROKER_ID: Final = "KAFKA_BROKER_ID"
LISTENERS: Final = "KAFKA_LISTENERS"
ADVERTISED: Final = "KAFKA_ADVERTISED_LISTENERS"
PROTOCOLS: Final = "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"
EVERYWHERE: Final = re.compile(r"[^:]*://(0\.0\.0\.0|\[::\])?:")
"""A listener on all addresses."""


def _take_kraft(kafka: dict[str, str], variables: Mapping[str, str], found: Environment) -> None:
    """Read the variables of a single KRaft broker, and refuse those of a larger cluster."""

    def say(name: str, text: str) -> None:
        found.warnings.append(Remark(name, text))

    for name in CLUSTER_IDS:
        if name in variables and (kafka or name in kafka):
            found.ignored.append(Remark(name, "plog generates the id of its cluster"))
        kafka.pop(name, None)
    roles = kafka.pop(ROLES, "")
    if roles and "broker" not in _items(roles):
        text = f"plog runs brokers only, which need no controller: {roles!r} has no broker"
        found.faults.append(Remark(ROLES, text))
    elif roles:
        found.ignored.append(Remark(ROLES, "a plog broker coordinates itself"))
    for name in VOTERS:
        voters = _items(kafka.pop(name, ""))
        if len(voters) > 1:
            text = f"names {len(voters)} controllers, but plog brokers are coordinated by ZooKeeper"
            found.faults.append(Remark(name, text))
        elif voters:
            found.ignored.append(Remark(name, "a plog broker coordinates itself"))
    if NODE_ID in kafka:
        node_id = kafka.pop(NODE_ID)
        if BROKER_ID in kafka:
            say(NODE_ID, f"ignored: {BROKER_ID} sets `broker.id`")
        else:
            found.variables.append(Variable(NODE_ID, "broker.id", node_id))
    controllers = {one.upper() for one in _items(kafka.pop(CONTROLLERS, ""))}
    for name in (LISTENERS, ADVERTISED, PROTOCOLS):
        entries = _items(kafka.get(name, ""))
        kept = [one for one in entries if one.partition(":")[0].upper() not in controllers]
        if len(kept) < len(entries):
            kafka[name] = ",".join(kept)
            gone = ", ".join(one for one in entries if one not in kept)
            say(name, f"ignored {gone}: plog has no KRaft controller")


def _take_advertised(kafka: dict[str, str], listeners: str | None, found: Environment) -> None:
    """Listen on all addresses, as Kafka's image does, where only advertised listeners are set.

    A file that names an address stays in force: a variable that does not mention it must not open
    the broker to other hosts.
    """
    advertised = kafka.get(ADVERTISED)
    if not advertised or LISTENERS in kafka:
        return
    if listeners is not None and not all(map(EVERYWHERE.match, _items(listeners))):
        return
    kafka[LISTENERS] = re.sub(r"://(\[[^\]]*\]|[^:,]*):", "://0.0.0.0:", advertised)
    text = f"without {LISTENERS}, plog listens on {kafka[LISTENERS]}"
    found.warnings.append(Remark(ADVERTISED, text))


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
