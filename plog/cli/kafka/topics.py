"""kafka-topics: create, list, describe, alter and delete topics."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from plog.cli.kafka.config import Clients
from plog.cli.kafka.options import Given, OptionFault, Options, UsageFault, java_integer
from plog.cli.kafka.texts import reason
from plog.client.admin import BROKER_DEFAULT, TOPIC
from plog.client.metadata import PartitionInfo, TopicInfo
from plog.errors import ErrorCode, KafkaError, PlogError
from plog.types import uuid_to_text

OPTIONS = Options(
    "Create, list, describe, alter and delete topics.",
    """
    --bootstrap-server HOST:PORT  Address of a broker. Required.
    --command-config FILE         Properties of the client.
    --create                      Create a topic.
    --list                        List topics.
    --describe                    Describe topics with their partitions.
    --alter                       Raise the number of partitions.
    --delete                      Delete topics.
    --topic TOPIC                 The topic; a regular expression except with --create.
    --topic-id ID                 The id of the topic to describe.
    --partitions NUMBER           Number of partitions.
    --replication-factor NUMBER   Number of replicas of each partition.
    --replica-assignment LIST     Brokers of each partition, such as 0,0 for two partitions.
    --config NAME=VALUE           Setting of the new topic. Repeatable.
    --delete-config NAME          Not supported, as in Kafka.
    --if-exists                   Do nothing for a topic that does not exist.
    --if-not-exists               Do nothing for a topic that exists.
    --exclude-internal            Leave out internal topics.
    --topics-with-overrides       Describe only topics with settings of their own.
    --under-replicated-partitions    Describe only partitions with replicas that lag.
    --unavailable-partitions      Describe only partitions without a leader.
    --under-min-isr-partitions    Describe only partitions with too few replicas in sync.
    --at-min-isr-partitions       Describe only partitions with just enough replicas in sync.
    --partition-size-limit-per-response NUMBER  Accepted and ignored.
    """,
)
ACTIONS = ("list", "describe", "create", "alter", "delete")
FILTERS = (
    "under-replicated-partitions",
    "unavailable-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
)
ALLOWED = {
    "config": ("create", "alter"),
    "delete-config": ("alter",),  # and not with --bootstrap-server, which is required
    "partitions": ("create", "alter"),
    "replication-factor": ("create",),
    "replica-assignment": ("create", "alter"),
    **dict.fromkeys((*FILTERS, "topics-with-overrides"), ("describe",)),
    "if-exists": ("alter", "delete", "describe"),
    "if-not-exists": ("create",),
    "exclude-internal": ("list", "describe"),
}
"""The actions with which an option may be used."""
MAX_REPLICATION_FACTOR = 32767
UUID_BYTES = 16
COLLISION = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_')"
    " could collide. To avoid issues it is best to use either, but not both."
)


class Described(NamedTuple):
    """A topic, its own settings, and its min.insync.replicas."""

    topic: TopicInfo
    settings: dict[str, str]
    min_isr: int


def run(given: Given) -> int:
    """Run the script; return its exit status."""
    _check(given)
    with Clients(given) as clients:
        try:
            ACTION[_action(given)](given, clients)
        except (OptionFault, PlogError, ValueError) as fault:
            print(f"Error while executing topic command : {reason(fault)}")
            return 1
    return 0


def _action(given: Given) -> str:
    (action,) = (name for name in ACTIONS if given.has(name))
    return action


def _check(given: Given) -> None:
    """Raise UsageFault if the options do not fit together."""
    if sum(map(given.has, ACTIONS)) != 1:
        raise UsageFault(
            "Command must include exactly one action:"
            " --list, --describe, --create, --alter or --delete"
        )
    if not given.has("bootstrap-server"):
        raise ValueError("--bootstrap-server must be specified")
    action = _action(given)
    is_named = given.has("topic") or given.has("topic-id")
    if action == "describe" and given.has("if-exists") and not is_named:
        raise UsageFault("--topic or --topic-id is required to describe a topic")
    if action not in ("list", "describe"):
        given.require("topic")
    if action == "alter":
        if given.has("config"):
            raise UsageFault(
                'Option combination "[[bootstrap-server], [config]]" can\'t be used with option'
                ' "[alter]" (the kafka-configs CLI supports altering topic configs with a'
                " --bootstrap-server option)"
            )
        given.require("partitions")
    for option, actions in ALLOWED.items():
        given.refuse(option, *(name for name in ACTIONS if name not in actions))
        if option == "delete-config":
            given.refuse(option, "bootstrap-server")
        if option == "replica-assignment" and action == "create":
            given.refuse(option, "partitions", "replication-factor")
        if option in FILTERS:
            given.refuse(option, "topics-with-overrides")


# -- actions -----------------------------------------------------------------------------------


def _create(given: Given, clients: Clients) -> None:
    name = given.text("topic")
    partitions, replicas = given.integer("partitions"), given.integer("replication-factor")
    settings = _settings(given.values("config"))
    assignment = given.value("replica-assignment")
    assignments = None if assignment is None else _assignments(assignment)
    if "." in name or "_" in name:
        print(COLLISION)
    if replicas is not None and not 1 <= replicas <= MAX_REPLICATION_FACTOR:
        raise ValueError(
            f"The replication factor must be between 1 and {MAX_REPLICATION_FACTOR} inclusive"
        )
    if partitions is not None and partitions < 1:
        raise ValueError("The partitions must be greater than 0")
    try:
        clients.admin.create_topic(
            name,
            partitions=BROKER_DEFAULT if partitions is None else partitions,
            replication_factor=BROKER_DEFAULT if replicas is None else replicas,
            assignments=assignments,
            configs=settings,
        )
    except KafkaError as fault:
        if fault.code == ErrorCode.TOPIC_ALREADY_EXISTS and given.has("if-not-exists"):
            return
        raise
    print(f"Created topic {name}.")


def _settings(entries: Iterable[str]) -> dict[str, str]:
    settings = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise ValueError(
                "requirement failed: Invalid topic config:"
                ' all configs to be added must be in the format "key=val".'
            )
        settings[name.strip()] = value.strip()
    return settings


def _assignments(text: str) -> dict[int, list[int]]:
    """Read the brokers of each partition: partitions divided by commas, brokers by colons."""
    found: dict[int, list[int]] = {}
    for index, entry in enumerate(text.split(",")):
        brokers = []
        for broker in entry.strip().split(":"):
            number = java_integer(broker)
            if number is None:
                raise ValueError(f'For input string: "{broker}"')
            brokers.append(number)
        twice = sorted({one for one in brokers if brokers.count(one) > 1})
        if twice:
            raise ValueError(
                "Partition replica lists may not contain duplicate entries: "
                + ",".join(map(str, twice))
            )
        if index and len(brokers) != len(found[0]):
            raise ValueError(f"Partition {index} has different replication factor: {brokers}")
        found[index] = brokers
    return found


def _list(given: Given, clients: Clients) -> None:
    topics = _wanted(clients, given.value("topic"), internal=not given.has("exclude-internal"))
    print("\n".join(sorted(topics)))


def _alter(given: Given, clients: Clients) -> None:
    name = given.value("topic")
    topics = _wanted(clients, name, internal=True)
    _must_exist(topics, name, optional=given.has("if-exists"))
    count = given.integer("partitions")
    for topic in topics if count is not None else ():
        assert count is not None
        clients.admin.create_partitions(topic, count)


def _delete(given: Given, clients: Clients) -> None:
    name = given.value("topic")
    topics = _wanted(clients, name, internal=True)
    _must_exist(topics, name, optional=given.has("if-exists"))
    for topic in topics:
        clients.admin.delete_topic(topic)


def _describe(given: Given, clients: Clients) -> None:
    name, topic_id = given.value("topic"), given.value("topic-id")
    optional = given.has("if-exists")
    internal = not given.has("exclude-internal")
    if topic_id:
        wanted = _uuid(topic_id)
        topics = {
            topic: info
            for topic, info in clients.admin.topics().items()
            if uuid_to_text(info.topic_id) == wanted
        }
        if not topics and not optional:
            raise ValueError(f"TopicId '{topic_id}' does not exist as expected")
    else:
        topics = _wanted(clients, name, internal=internal)
        if name is not None:
            _must_exist(topics, name, optional=optional)
    with_settings = not any(map(given.has, FILTERS))
    for _, topic in sorted(topics.items()):
        described = _with_settings(clients, topic)
        own = ",".join(f"{key}={value}" for key, value in sorted(described.settings.items()))
        if given.has("topics-with-overrides"):
            if own:
                print(_topic_line(topic, own))
            continue
        if with_settings:
            print(_topic_line(topic, own))
        for number, partition in sorted(topic.partitions.items()):
            if with_settings or _is_shown(given, partition, described.min_isr):
                print(_partition_line(topic.name, number, partition))


ACTION = {
    "list": _list,
    "describe": _describe,
    "create": _create,
    "alter": _alter,
    "delete": _delete,
}


# -- topics ------------------------------------------------------------------------------------


def _wanted(clients: Clients, name: str | None, *, internal: bool) -> dict[str, TopicInfo]:
    """Return the topics that a name or regular expression selects; all without one."""
    topics = clients.admin.topics()
    if name is not None:
        pattern = topic_pattern(name)
        topics = {topic: info for topic, info in topics.items() if pattern.fullmatch(topic)}
    return {topic: info for topic, info in topics.items() if internal or not info.is_internal}


def topic_pattern(text: str) -> re.Pattern[str]:
    """Compile a list of topics or regular expressions, divided by commas or bars.

    Raises:
        ValueError: it is none.
    """
    cleaned = text.strip().replace(",", "|").replace(" ", "")
    cleaned = cleaned.removeprefix('"').removeprefix("'").removesuffix('"').removesuffix("'")
    try:
        return re.compile(cleaned)
    except re.error as fault:
        raise ValueError(f"{text} is an invalid regex.") from fault


def _must_exist(topics: Mapping[str, object], name: str | None, *, optional: bool) -> None:
    if not topics and not optional:
        raise ValueError(f"Topic 'Optional[{name}]' does not exist as expected")


def _uuid(text: str) -> str:
    if len(text) > 2 * UUID_BYTES:
        raise ValueError(
            f"Input string with prefix `{text[: UUID_BYTES + 8]}` is too long to be decoded as a"
            " base64 UUID"
        )
    decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(decoded) != UUID_BYTES:
        raise ValueError(
            f"Input string `{text}` decoded as {len(decoded)} bytes, which is not equal to the"
            " expected 16 bytes of a base64-encoded UUID"
        )
    return text


def _with_settings(clients: Clients, topic: TopicInfo) -> Described:
    entries = clients.admin.describe_configs(TOPIC, topic.name)
    own = {entry.name: entry.value or "" for entry in entries if entry.source == "topic"}
    (min_isr,) = (entry.value for entry in entries if entry.name == "min.insync.replicas")
    return Described(topic, own, int(min_isr or 1))


def _is_shown(given: Given, partition: PartitionInfo, min_isr: int) -> bool:
    in_sync = len(partition.isr)
    return (
        (given.has("under-replicated-partitions") and in_sync < len(partition.replicas))
        or (given.has("unavailable-partitions") and partition.leader_id < 0)
        or (given.has("under-min-isr-partitions") and in_sync < min_isr)
        or (given.has("at-min-isr-partitions") and in_sync == min_isr)
    )


def _topic_line(topic: TopicInfo, settings: str) -> str:
    partitions = topic.partitions
    replicas = len(next(iter(partitions.values())).replicas) if partitions else 0
    return "\t".join(
        (
            f"Topic: {topic.name}",
            f"TopicId: {uuid_to_text(topic.topic_id)}",
            f"PartitionCount: {len(partitions)}",
            f"ReplicationFactor: {replicas}",
            f"Configs: {settings}",
        )
    )


def _partition_line(topic: str, number: int, partition: PartitionInfo) -> str:
    leader = "none" if partition.leader_id < 0 else str(partition.leader_id)
    return "\t".join(
        (
            f"\tTopic: {topic}",
            f"Partition: {number}",
            f"Leader: {leader}",
            f"Replicas: {','.join(map(str, partition.replicas))}",
            f"Isr: {','.join(map(str, partition.isr))}",
            # plog has no eligible leader replicas (KIP-966), as Kafka without that feature.
            "Elr: N/A",
            "LastKnownElr: N/A",
        )
    )
