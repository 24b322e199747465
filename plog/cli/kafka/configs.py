"""kafka-configs: show and change the settings of topics, brokers and loggers."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from plog.cli.kafka import config_requests
from plog.cli.kafka.config import ClientFault, Clients, read_file
from plog.cli.kafka.config_requests import Setting
from plog.cli.kafka.options import Given, Options, UsageFault, java_integer
from plog.cli.kafka.texts import reason
from plog.client.admin import BROKER, DELETE, LOGGER, SET, TOPIC
from plog.errors import PlogError, UnsupportedVersion

OPTIONS = Options(
    "Show and change the settings of topics, brokers and loggers.",
    """
    --bootstrap-server HOST:PORT      Address of a broker. Required.
    --bootstrap-controller HOST:PORT  Refused: plog's controller is a broker.
    --zookeeper HOST:PORT             Refused: plog's settings are the broker's.
    --zk-tls-config-file FILE         Accepted and ignored.
    --command-config FILE             Properties of the client.
    --describe                        Show settings.
    --alter                           Change settings.
    --add-config NAME=VALUE,...       Settings to set; NAME=[A,B] for a list.
    --add-config-file FILE            Settings to set, as a properties file.
    --delete-config NAME,...          Settings to reset to their defaults.
    --all                             Show defaults and static settings, too.
    --entity-type TYPE                topics, brokers, broker-loggers, users, clients or ips.
    --entity-name NAME                Name of the entity.
    --entity-default                  The defaults for all entities of the type.
    --topic TOPIC                     The topic.
    --broker ID                       The broker.
    --broker-defaults                 The defaults of all brokers.
    --broker-logger ID                The loggers of a broker.
    --client ID                       Quotas of a client. Not supported by plog.
    --client-defaults                 Quotas of all clients. Not supported by plog.
    --user NAME                       Quotas of a user. Not supported by plog.
    --user-defaults                   Quotas of all users. Not supported by plog.
    --ip ADDRESS                      Quotas of an address. Not supported by plog.
    --ip-defaults                     Quotas of all addresses. Not supported by plog.
    --force                           Accepted and ignored.
    """,
)
TOPICS, CLIENTS, USERS, BROKERS, IPS, LOGGERS, METRICS = (
    "topics",
    "clients",
    "users",
    "brokers",
    "ips",
    "broker-loggers",
    "client-metrics",
)
TYPES = (TOPICS, CLIENTS, USERS, BROKERS, IPS, LOGGERS, METRICS)
ZOOKEEPER_TYPES = (USERS, BROKERS)
QUOTA_TYPES = (USERS, CLIENTS, IPS)
RESOURCE_TYPES = {TOPICS: TOPIC, BROKERS: BROKER, LOGGERS: LOGGER, METRICS: 16}
SHORT = {
    "topic": TOPICS,
    "client": CLIENTS,
    "user": USERS,
    "broker": BROKERS,
    "broker-logger": LOGGERS,
    "ip": IPS,
}
SHORT_DEFAULTS = {
    "client-defaults": CLIENTS,
    "user-defaults": USERS,
    "broker-defaults": BROKERS,
    "ip-defaults": IPS,
}
SERVERS = ("bootstrap-server", "bootstrap-controller", "zookeeper")
OUTSIDE_BRACKETS = re.compile(r",(?=[^\]]*(?:\[|$))")
SCRAM = re.compile("SCRAM-SHA-(256|512)")


class Entity(NamedTuple):
    """An entity; the name is None for all of its type, and "" for their defaults."""

    type: str
    name: str | None

    @property
    def text(self) -> str:
        """Return the entity as the messages name it."""
        return f"{self.type[:-1]} {self.name}"


def run(given: Given) -> int:
    """Run the script; return its exit status."""
    entities = _check(given)
    command = " ".join(given.arguments)
    try:
        if not given.has("bootstrap-server"):
            server = next(one for one in SERVERS if given.has(one))
            raise ValueError(f"--{server} is not supported: use --bootstrap-server")
        with Clients(given) as clients:
            if given.has("describe"):
                _describe(given, clients, entities)
            else:
                _alter(given, clients, entities)
    except (_Refused, BrokenPipeError):
        raise
    except (ClientFault, PlogError, OSError, ValueError) as fault:
        why = (
            f"{fault}\nCaused by: {fault.why}" if isinstance(fault, ClientFault) else _reason(fault)
        )
        sys.stderr.write(f"Error while executing config command with args '{command}'\n{why}\n")
        return 1
    return 0


class _Refused(ValueError):
    """An argument that is refused without the command line in the message."""


def _reason(fault: Exception) -> str:
    if isinstance(fault, OSError):
        return f"{fault.filename}: {fault.strerror}"
    return reason(fault)


# -- options -----------------------------------------------------------------------------------


def _check(given: Given) -> list[Entity]:
    """Return the entities; raise UsageFault if the options do not fit together."""
    if given.has("describe") == given.has("alter"):
        raise UsageFault("Command must include exactly one action: --describe, --alter")
    given.refuse("alter", "describe")
    given.refuse("describe", "alter", "add-config", "delete-config")
    entities = _entities(given)
    types = [one.type for one in entities]
    if sum(map(given.has, SERVERS)) > 1:
        raise UsageFault(
            "Only one of --bootstrap-server, --boostrap-controller, and --zookeeper can be"
            " specified"
        )
    by_broker = given.has("bootstrap-server") or given.has("bootstrap-controller")
    allowed = TYPES if by_broker else ZOOKEEPER_TYPES
    how = "--bootstrap-server or --bootstrap-controller" if by_broker else "--zookeeper"
    for one in types:
        if one not in allowed:
            raise _Refused(
                f"Invalid entity type {one}, the entity type must be one of"
                f" {', '.join(allowed)} with a {how} argument"
            )
    if not types:
        raise _Refused("At least one entity type must be specified")
    if len(types) > 1 and set(types) != {USERS, CLIENTS}:
        raise _Refused("Only 'users' and 'clients' entity types may be specified together")
    if not by_broker and not given.has("zookeeper"):
        raise _Refused(
            "One of the required --bootstrap-server, --boostrap-controller, or --zookeeper"
            " arguments must be specified"
        )
    for entity in entities:
        if entity.type in (BROKERS, LOGGERS) and entity.name and java_integer(entity.name) is None:
            raise _Refused(
                f"The entity name for {entity.type} must be a valid integer broker id,"
                f" but it is: {entity.name}"
            )
    if given.has("alter"):
        _check_changes(given, entities)
    return entities


def _check_changes(given: Given, entities: list[Entity]) -> None:
    for entity in entities:
        if entity.name is None:
            raise _Refused(f"an entity name must be specified with --alter of {entity.type}")
    if given.has("add-config") and given.has("add-config-file"):
        raise _Refused("Only one of --add-config or --add-config-file must be specified")
    if not any(map(given.has, ("add-config", "add-config-file", "delete-config"))):
        raise _Refused(
            "At least one of --add-config, --add-config-file, or --delete-config must be"
            " specified with --alter"
        )


def _entities(given: Given) -> list[Entity]:
    types = given.values("entity-type")
    short = [type_ for option, type_ in SHORT.items() for _ in given.values(option)]
    short += [type_ for option, type_ in SHORT_DEFAULTS.items() if given.has(option)]
    twice = sorted({one for one in types + short if (types + short).count(one) > 1})
    if twice:
        raise _Refused(f"Duplicate entity type(s) specified: {','.join(twice)}")
    names: list[str] = list(given.values("entity-name"))
    names += [""] * given.has("entity-default")
    entities = [
        Entity(type_, names[number] if number < len(names) else None)
        for number, type_ in enumerate(types)
    ]
    for option, type_ in SHORT.items():
        entities += [Entity(type_, name) for name in given.values(option)]
    entities += [Entity(type_, "") for option, type_ in SHORT_DEFAULTS.items() if given.has(option)]
    return entities


# -- actions -----------------------------------------------------------------------------------


def _describe(given: Given, clients: Clients, entities: list[Entity]) -> None:
    entity = entities[0]
    if entity.type in QUOTA_TYPES:
        raise UnsupportedVersion("The node does not support DESCRIBE_CLIENT_QUOTAS")
    shows_all = given.has("all")
    for one in _named(clients, entity):
        if one.name == "":
            print(f"Default configs for {one.type} in the cluster are:")
        else:
            print(f"{'All' if shows_all else 'Dynamic'} configs for {one.text} are:")
        assert one.name is not None
        resource_type = RESOURCE_TYPES[one.type]
        settings = config_requests.describe(clients.cluster, resource_type, one.name)
        for setting in settings:
            if shows_all or _is_own(one, setting):
                print(_line(setting))


def _named(clients: Clients, entity: Entity) -> list[Entity]:
    """Return the entities of a type; only this one if it has a name."""
    if entity.name is not None:
        return [entity]
    if entity.type == TOPICS:
        return [Entity(TOPICS, name) for name in clients.admin.topics()]
    nodes = [Entity(entity.type, str(node.node_id)) for node in clients.admin.nodes()]
    if entity.type == BROKERS:
        return [*nodes, Entity(BROKERS, "")]
    return nodes if entity.type == LOGGERS else []


def _is_own(entity: Entity, setting: Setting) -> bool:
    """Return whether the setting belongs to the entity itself."""
    if entity.type == BROKERS:
        wanted = "DYNAMIC_BROKER_CONFIG" if entity.name else "DYNAMIC_DEFAULT_BROKER_CONFIG"
        return setting.source == wanted
    return entity.type != TOPICS or setting.source == "DYNAMIC_TOPIC_CONFIG"


def _line(setting: Setting) -> str:
    synonyms = ", ".join(f"{one.source}:{one.name}={_value(one.value)}" for one in setting.synonyms)
    sensitive = str(setting.is_sensitive).lower()
    value = _value(setting.value)
    return f"  {setting.name}={value} sensitive={sensitive} synonyms={{{synonyms}}}"


def _value(value: str | None) -> str:
    return "null" if value is None else value


def _alter(given: Given, clients: Clients, entities: list[Entity]) -> None:
    entity = entities[0]
    added = _added(given)
    deleted = [name.strip() for name in given.text("delete-config").split(",") if name.strip()]
    if entity.type in QUOTA_TYPES:
        is_scram = entity.type == USERS and any(map(SCRAM.fullmatch, [*added, *deleted]))
        missing = "ALTER_USER_SCRAM_CREDENTIALS" if is_scram else "DESCRIBE_CLIENT_QUOTAS"
        raise UnsupportedVersion(f"The node does not support {missing}")
    resource_type = RESOURCE_TYPES[entity.type]
    assert entity.name is not None
    if deleted and entity.type in (TOPICS, BROKERS):
        settings = config_requests.describe(clients.cluster, resource_type, entity.name)
        own = {setting.name for setting in settings if _is_own(entity, setting)}
        absent = [name for name in deleted if name not in own]
        if absent:
            raise _Refused(f"Invalid config(s): {','.join(absent)}")
    if entity.type == LOGGERS:
        settings = config_requests.describe(clients.cluster, resource_type, entity.name)
        known = {setting.name for setting in settings}
        unknown = [name for name in [*deleted, *added] if name not in known]
        if unknown:
            raise _Refused(f"Invalid broker logger(s): {','.join(unknown)}")
    changes: list[tuple[str, int, str | None]] = [
        (name, SET, value) for name, value in added.items()
    ]
    changes += [(name, DELETE, None) for name in deleted]
    clients.admin.alter_configs(resource_type, entity.name, changes)
    if entity.name:
        print(f"Completed updating config for {entity.text}.")
    else:
        print(f"Completed updating default config for {entity.type} in the cluster.")


def _added(given: Given) -> dict[str, str]:
    if given.has("add-config-file"):
        return read_file(given.text("add-config-file"))
    added = {}
    entries = OUTSIDE_BRACKETS.split(given.text("add-config"))
    for entry in filter(str.strip, entries):
        name, equals, value = entry.partition("=")
        if not equals:
            raise _Refused(
                "requirement failed: Invalid entity config:"
                ' all configs to be added must be in the format "key=val".'
            )
        added[name.strip()] = value.strip().removeprefix("[").removesuffix("]")
    return added
