"""Configs: described with their sources, altered whole and by key, in force and for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from plog.errors import ErrorCode
from plog.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from plog.protocol.messages.topics import DeleteTopicsRequest
from plog.settings.definitions import BrokerSettings
from plog.settings.dynamic import THREAD_COUNTS
from plog.settings.keys import ConfigType, Key, Update
from plog.settings.server_properties import ConfigError, read
from tests.handlers.conftest import ManyListeners
from tests.handlers.wire import (
    Speaker,
    create_topic,
    eventually,
    fresh_name,
    make_batch,
    produce,
    speak,
)
from tests.servers import BrokerProcess

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
OF_TOPIC, OF_BROKER, OF_ALL_BROKERS, STATIC, DEFAULT, OF_GROUP = 1, 2, 3, 4, 5, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
ALL_BROKERS = ""

Resource = tuple[int, str]


def describe(
    connection: Speaker,
    resource: Resource,
    keys: Sequence[str] | None = None,
    *,
    version: int = 4,
    synonyms: bool = False,
    documentation: bool = False,
) -> DescribeConfigsResult:
    asked = DescribeConfigsResource(
        resource_type=resource[0],
        resource_name=resource[1],
        configuration_keys=None if keys is None else list(keys),
    )
    request = DescribeConfigsRequest(
        resources=[asked], include_synonyms=synonyms, include_documentation=documentation
    )
    (result,) = connection.ask(request, version).results
    assert (result.resource_type, result.resource_name) == resource
    return result


def one(
    connection: Speaker, resource: Resource, key: str, **options: bool | int
) -> DescribeConfigsResourceResult:
    (found,) = describe(connection, resource, [key], **options).configs
    return found


def value(connection: Speaker, resource: Resource, key: str) -> tuple[str | None, int]:
    found = one(connection, resource, key)
    return found.value, found.config_source


def chain(connection: Speaker, resource: Resource, key: str) -> list[tuple[str, str | None, int]]:
    found = one(connection, resource, key, synonyms=True)
    return [(s.name, s.value, s.source) for s in found.synonyms]


def replace(
    connection: Speaker,
    *changes: tuple[Resource, dict[str, str | None] | Sequence[tuple[str, str | None]]],
    version: int = 2,
    validate_only: bool = False,
) -> list[AlterConfigsResourceResponse]:
    resources = [
        AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                AlterableConfig(name=key, value=text)
                for key, text in (configs.items() if isinstance(configs, dict) else configs)
            ],
        )
        for (kind, name), configs in changes
    ]
    request = AlterConfigsRequest(resources=resources, validate_only=validate_only)
    return connection.ask(request, version).responses


def alter(
    connection: Speaker,
    resource: Resource,
    *changes: tuple[str, int, str | None],
    version: int = 1,
    validate_only: bool = False,
) -> AlterConfigsResourceResponse:
    asked = IncrementalAlterConfigsResource(
        resource_type=resource[0],
        resource_name=resource[1],
        configs=[
            IncrementalAlterableConfig(name=key, config_operation=op, value=text)
            for key, op, text in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=validate_only)
    (result,) = connection.ask(request, version).responses
    assert (result.resource_type, result.resource_name) == resource
    return result


def overrides(connection: Speaker, topic: str) -> dict[str, str | None]:
    found = describe(connection, (TOPIC, topic)).configs
    return {entry.name: entry.value for entry in found if entry.config_source == OF_TOPIC}


# -- DescribeConfigs


@pytest.mark.parametrize("version", range(5))
def test_topic_is_described(wire: Speaker, version: int) -> None:
    topic, _ = create_topic(wire, retention_ms=5000)
    result = describe(wire, (TOPIC, topic), version=version)
    assert (result.error_code, result.error_message) == (0, "")
    found = {entry.name: entry for entry in result.configs}
    assert {"retention.ms", "cleanup.policy", "max.message.bytes", "segment.bytes"} <= set(found)
    assert found["retention.ms"].value == "5000"
    assert found["cleanup.policy"].value == "delete"
    assert not found["retention.ms"].read_only
    for key, is_default, source in (
        ("retention.ms", False, OF_TOPIC),
        ("cleanup.policy", True, DEFAULT),
    ):
        if version == 0:
            assert found[key].is_default == is_default
        else:
            assert found[key].config_source == source
    expected = (int(ConfigType.LONG), int(ConfigType.LIST)) if version >= 3 else (0, 0)
    assert (found["retention.ms"].config_type, found["cleanup.policy"].config_type) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["retention.ms"], {"retention.ms"}),
        (["retention.ms", "segment.ms", "no.such.key"], {"retention.ms", "segment.ms"}),
        (["no.such.key"], set()),
    ],
)
def test_keys_asked_for_are_described(
    wire: Speaker, topic: str, keys: list[str], expected: set[str]
) -> None:
    assert {entry.name for entry in describe(wire, (TOPIC, topic), keys).configs} == expected


def test_no_keys_means_all_keys(wire: Speaker, topic: str) -> None:
    everything = describe(wire, (TOPIC, topic)).configs
    assert len(everything) > 20
    assert describe(wire, (TOPIC, topic), []).configs == everything


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((["retention.ms"], ["segment.ms", "retention.ms"]), {"retention.ms", "segment.ms"}),
        ((["retention.ms"], None), None),
        ((["retention.ms"], []), None),
    ],
)
def test_resource_asked_for_twice_is_described_once_with_all_its_keys(
    wire: Speaker, topic: str, asked: tuple, expected: set[str] | None
) -> None:
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=keys)
        for keys in asked
    ]
    (result,) = wire.ask(DescribeConfigsRequest(resources=resources), 4).results
    everything = {entry.name for entry in describe(wire, (TOPIC, topic)).configs}
    assert {entry.name for entry in result.configs} == (expected or everything)


def test_synonyms_go_from_the_most_specific_on(own_broker: Callable[..., BrokerProcess]) -> None:
    connection = speak(own_broker(log_retention_ms=900_000, log_retention_hours=7).port)
    topic, _ = create_topic(connection, retention_ms=5000)
    assert chain(connection, (TOPIC, topic), "retention.ms") == [
        ("retention.ms", "5000", OF_TOPIC),
        ("log.retention.ms", "900000", STATIC),
        ("log.retention.hours", "7", STATIC),
        ("log.retention.hours", "168", DEFAULT),
    ]
    assert alter(connection, (BROKER, ""), ("log.retention.ms", SET, "800000")).error_code == 0
    assert alter(connection, (BROKER, "0"), ("log.retention.ms", SET, "700000")).error_code == 0
    eventually(lambda: len(chain(connection, (TOPIC, topic), "retention.ms")) == 6, "both heard")
    assert chain(connection, (TOPIC, topic), "retention.ms")[1:4] == [
        ("log.retention.ms", "700000", OF_BROKER),
        ("log.retention.ms", "800000", OF_ALL_BROKERS),
        ("log.retention.ms", "900000", STATIC),
    ]
    assert value(connection, (BROKER, "0"), "log.retention.ms") == ("700000", OF_BROKER)
    assert alter(connection, (TOPIC, topic), ("retention.ms", DELETE, None)).error_code == 0
    eventually(
        lambda: value(connection, (TOPIC, topic), "retention.ms") == ("700000", OF_BROKER), "heard"
    )
    connection.close()


@pytest.mark.parametrize(("synonyms", "documentation"), [(False, False), (True, True)])
def test_synonyms_and_documentation_come_when_asked_for(
    wire: Speaker, topic: str, synonyms: bool, documentation: bool
) -> None:
    found = one(
        wire, (TOPIC, topic), "retention.ms", synonyms=synonyms, documentation=documentation
    )
    assert bool(found.synonyms) == synonyms
    assert bool(found.documentation) == documentation


def test_broker_is_described(broker: ManyListeners, wire: Speaker) -> None:
    found = {entry.name: entry for entry in describe(wire, (BROKER, "0")).configs}
    assert found["num.partitions"].value == "2"
    assert f"PLAINTEXT://127.0.0.1:{broker.port}" in (found["advertised.listeners"].value or "")
    assert found["log.dirs"].read_only
    assert (found["broker.id"].read_only, found["broker.id"].value) == (True, "0")
    assert not found["log.retention.ms"].read_only
    assert found["log.dirs"].config_source == STATIC


REFUSED_RESOURCES = {
    "topic that is not there": ((TOPIC, "nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "no topic name": ((TOPIC, "a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "empty topic name": ((TOPIC, ""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "another broker": ((BROKER, "7"), ErrorCode.INVALID_REQUEST),
    "no broker id": ((BROKER, "first"), ErrorCode.INVALID_REQUEST),
    "broker id in other digits": ((BROKER, "\u0660"), ErrorCode.INVALID_REQUEST),
    "loggers of another broker": ((LOGGER, "7"), ErrorCode.INVALID_REQUEST),
    "client metrics": ((METRICS, "m"), ErrorCode.INVALID_REQUEST),
    "group without a name": ((GROUP, ""), ErrorCode.INVALID_REQUEST),
    "nothing known": ((99, "x"), ErrorCode.INVALID_REQUEST),
}


@pytest.mark.parametrize("case", REFUSED_RESOURCES)
def test_resource_is_refused(wire: Speaker, case: str) -> None:
    resource, expected = REFUSED_RESOURCES[case]
    described = describe(wire, resource)
    assert (ErrorCode(described.error_code), described.configs) == (expected, [])
    assert described.error_message
    # A change does not look at a topic's name, as in Kafka.
    is_topic = resource[0] == TOPIC
    unchanged = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_topic else expected
    (replaced,) = replace(wire, (resource, {"retention.ms": "1"}))
    assert ErrorCode(replaced.error_code) is unchanged
    altered = alter(wire, resource, ("retention.ms", SET, "1"))
    assert ErrorCode(altered.error_code) is unchanged


def test_one_resource_s_error_leaves_the_others_alone(wire: Speaker, topic: str) -> None:
    asked = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((TOPIC, topic), (TOPIC, "nowhere"), (BROKER, "0"))
    ]
    request = DescribeConfigsRequest(resources=asked)
    codes = [result.error_code for result in wire.ask(request, 4).results]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


# -- AlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_whole_set_is_replaced(wire: Speaker, version: int) -> None:
    topic, _ = create_topic(wire, retention_ms=5000, segment_bytes=99_999)
    wanted = {"retention.ms": "6000", "max.message.bytes": "7777"}
    (result,) = replace(wire, ((TOPIC, topic), wanted), version=version)
    assert (result.error_code, result.error_message) == (0, None)
    eventually(lambda: overrides(wire, topic) == wanted, "heard")
    replace(wire, ((TOPIC, topic), {}), version=version)
    eventually(lambda: overrides(wire, topic) == {}, "heard")


REFUSED_SETS: dict[str, tuple[list[tuple[str, str | None]], ErrorCode]] = {
    "unknown key": ([("no.such.key", "1")], ErrorCode.INVALID_CONFIG),
    "wrong type": ([("retention.ms", "soon")], ErrorCode.INVALID_CONFIG),
    "out of range": ([("retention.ms", "-2")], ErrorCode.INVALID_CONFIG),
    "no replicas": (
        [("leader.replication.throttled.replicas", "0:1,x")],
        ErrorCode.INVALID_CONFIG,
    ),
    "not one of those": ([("cleanup.policy", "shred")], ErrorCode.INVALID_CONFIG),
    "contradiction": (
        [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")],
        ErrorCode.INVALID_CONFIG,
    ),
    "no value": ([("retention.ms", None)], ErrorCode.INVALID_REQUEST),
    "key twice": ([("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
}


@pytest.mark.parametrize("case", REFUSED_SETS)
def test_set_is_refused_whole(wire: Speaker, case: str) -> None:
    topic, _ = create_topic(wire, retention_ms=5000)
    configs, expected = REFUSED_SETS[case]
    good: list[tuple[str, str | None]] = [("segment.bytes", "12345")]
    (result,) = replace(wire, ((TOPIC, topic), good + configs))
    assert ErrorCode(result.error_code) is expected
    altered = alter(wire, (TOPIC, topic), *((key, SET, text) for key, text in good + configs))
    assert ErrorCode(altered.error_code) is expected
    assert overrides(wire, topic) == {"retention.ms": "5000"}


def test_validation_changes_nothing(wire: Speaker) -> None:
    topic, _ = create_topic(wire, retention_ms=5000)
    (good,) = replace(wire, ((TOPIC, topic), {"segment.bytes": "12345"}), validate_only=True)
    (bad,) = replace(wire, ((TOPIC, topic), {"segment.bytes": "x"}), validate_only=True)
    assert (good.error_code, bad.error_code) == (0, ErrorCode.INVALID_CONFIG)
    change = ("segment.bytes", SET, "12345")
    assert alter(wire, (TOPIC, topic), change, validate_only=True).error_code == 0
    assert overrides(wire, topic) == {"retention.ms": "5000"}


def test_resource_twice_in_a_request_is_refused_both_times(wire: Speaker) -> None:
    one_topic, two = create_topic(wire)[0], create_topic(wire)[0]
    results = replace(
        wire,
        ((TOPIC, one_topic), {"retention.ms": "1"}),
        ((TOPIC, two), {"retention.ms": "2"}),
        ((TOPIC, one_topic), {"retention.ms": "3"}),
    )
    assert [result.error_code for result in results] == [
        ErrorCode.INVALID_REQUEST,
        0,
        ErrorCode.INVALID_REQUEST,
    ]
    eventually(lambda: overrides(wire, two) == {"retention.ms": "2"}, "heard")
    assert overrides(wire, one_topic) == {}


# -- IncrementalAlterConfigs


@pytest.mark.parametrize("version", [0, 1])
def test_operations_change_their_keys_only(wire: Speaker, version: int) -> None:
    topic, _ = create_topic(wire, retention_ms=5000, segment_bytes=99_999)
    steps = [
        ([("max.message.bytes", SET, "7")], {"max.message.bytes": "7"}),
        ([("retention.ms", DELETE, None)], {"max.message.bytes": "7"}),
        ([("retention.ms", DELETE, None)], {"max.message.bytes": "7"}),
        ([("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "delete,compact"}),
        ([("cleanup.policy", APPEND, "compact")], {"cleanup.policy": "delete,compact"}),
        ([("cleanup.policy", SUBTRACT, "delete")], {"cleanup.policy": "compact"}),
        (
            [("cleanup.policy", DELETE, None), ("max.message.bytes", SET, "8")],
            {"max.message.bytes": "8"},
        ),
    ]
    for changes, expected in steps:
        result = alter(wire, (TOPIC, topic), *changes, version=version)
        assert (result.error_code, result.error_message) == (0, None)
        eventually(lambda e=expected: e.items() <= overrides(wire, topic).items(), f"{expected}")
    assert overrides(wire, topic) == {"segment.bytes": "99999", "max.message.bytes": "8"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SUBTRACT, "1"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", 4, "1"), ErrorCode.INVALID_REQUEST),
        (("retention.ms", -1, "1"), ErrorCode.INVALID_REQUEST),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("cleanup.policy", APPEND, None), ErrorCode.INVALID_REQUEST),
        (("cleanup.policy", APPEND, "shred"), ErrorCode.INVALID_CONFIG),
        (("no.such.key", APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (("follower.replication.throttled.replicas", APPEND, "0:"), ErrorCode.INVALID_CONFIG),
        (("follower.replication.throttled.replicas", SUBTRACT, "x"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_operation_is_refused(
    wire: Speaker, topic: str, change: tuple[str, int, str | None], expected: ErrorCode
) -> None:
    assert ErrorCode(alter(wire, (TOPIC, topic), change).error_code) is expected
    assert overrides(wire, topic) == {}


# -- groups

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_settings_of_a_group_that_is_not_there_are_kept(wire: Speaker) -> None:
    group = (GROUP, fresh_name())
    assert value(wire, group, SESSION) == ("45000", DEFAULT)
    assert alter(wire, group, (SESSION, SET, "50000")).error_code == 0
    assert value(wire, group, SESSION) == ("50000", OF_GROUP)
    assert chain(wire, group, SESSION) == [
        (SESSION, "50000", OF_GROUP),
        ("group.consumer.session.timeout.ms", "45000", DEFAULT),
    ]
    (replaced,) = replace(wire, (group, {INTERVAL: "6000"}))
    assert replaced.error_code == 0
    assert value(wire, group, SESSION) == ("45000", DEFAULT)
    assert value(wire, group, INTERVAL) == ("6000", OF_GROUP)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((SESSION, SET, "44999"), ErrorCode.INVALID_CONFIG),
        ((SESSION, SET, "60001"), ErrorCode.INVALID_CONFIG),
        ((SESSION, SET, "soon"), ErrorCode.INVALID_CONFIG),
        ((SESSION, SET, None), ErrorCode.INVALID_REQUEST),
        ((SESSION, APPEND, "50000"), ErrorCode.INVALID_CONFIG),
        ((INTERVAL, SET, "15001"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, "1"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_setting_of_a_group_is_refused(
    wire: Speaker, change: tuple[str, int, str | None], expected: ErrorCode
) -> None:
    group = (GROUP, fresh_name())
    assert ErrorCode(alter(wire, group, change).error_code) is expected
    assert value(wire, group, SESSION) == ("45000", DEFAULT)


def listed(wire: Speaker, *types: int, version: int = 1) -> set[tuple[int, str]]:
    answer = wire.ask(ListConfigResourcesRequest(resource_types=list(types)), version)
    assert answer.error_code == 0
    return {(one.resource_type, one.resource_name) for one in answer.config_resources}


def test_resources_are_listed(wire: Speaker, topic: str) -> None:
    name = fresh_name()
    assert (GROUP, name) not in listed(wire)
    alter(wire, (GROUP, name), (SESSION, SET, "50000"))
    assert {(GROUP, name), (TOPIC, topic), (BROKER, "0")} <= listed(wire)
    assert (GROUP, name) in listed(wire, GROUP, GROUP, METRICS)
    assert {kind for kind, _ in listed(wire, GROUP)} == {GROUP}
    assert listed(wire, BROKER) == {(BROKER, "0")}
    assert listed(wire, METRICS) == listed(wire, version=0) == set()
    alter(wire, (GROUP, name), (SESSION, DELETE, None))
    assert (GROUP, name) not in listed(wire)


def test_resources_of_unknown_types_are_not_listed(wire: Speaker) -> None:
    answer = wire.ask(ListConfigResourcesRequest(resource_types=[TOPIC, 99]), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.config_resources == []


# -- in force


def test_topic_s_settings_are_in_force_without_a_restart(wire: Speaker, topic: str) -> None:
    large = make_batch([b"x" * 5000])
    assert produce(wire, topic, large).error_code == 0
    alter(wire, (TOPIC, topic), ("max.message.bytes", SET, "1000"))
    eventually(
        lambda: produce(wire, topic, large).error_code == ErrorCode.MESSAGE_TOO_LARGE, "in force"
    )
    alter(wire, (TOPIC, topic), ("max.message.bytes", DELETE, None))
    eventually(lambda: produce(wire, topic, large).error_code == 0, "in force")


@pytest.mark.parametrize("resource", [(BROKER, ALL_BROKERS), (BROKER, "0")])
def test_broker_s_settings_are_in_force_at_once_and_after_restarts(
    own_broker: Callable[..., BrokerProcess], resource: Resource
) -> None:
    broker = own_broker()
    connection = speak(broker.port)
    topic, _ = create_topic(connection)
    own, _ = create_topic(connection, max_message_bytes=100_000)
    large = make_batch([b"x" * 5000])
    change = ("message.max.bytes", SET, "1000")
    assert alter(connection, resource, change, validate_only=True).error_code == 0
    assert produce(connection, topic, large).error_code == 0
    assert alter(connection, resource, change).error_code == 0
    eventually(
        lambda: produce(connection, topic, large).error_code == ErrorCode.MESSAGE_TOO_LARGE,
        "in force",
    )
    assert produce(connection, own, large).error_code == 0
    later, _ = create_topic(connection)
    assert produce(connection, later, large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    source = OF_ALL_BROKERS if resource[1] == ALL_BROKERS else OF_BROKER
    for end in (broker.stop, broker.kill):
        connection.close()
        end()
        broker.start()
        connection = speak(broker.port)
        assert value(connection, (BROKER, "0"), "message.max.bytes") == ("1000", source)
        eventually(
            lambda at=connection: (
                produce(at, topic, large).error_code == ErrorCode.MESSAGE_TOO_LARGE
            ),
            "in force",
        )
    assert alter(connection, resource, ("message.max.bytes", DELETE, None)).error_code == 0
    eventually(lambda: produce(connection, topic, large).error_code == 0, "back")
    connection.close()


def test_cluster_default_lists_what_is_set_and_nothing_else(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    connection = speak(own_broker().port)
    everywhere = (BROKER, ALL_BROKERS)
    assert describe(connection, everywhere).configs == []
    (result,) = replace(connection, (everywhere, {"log.retention.ms": "100000"}))
    assert result.error_code == 0
    eventually(
        lambda: (
            [
                (entry.name, entry.value, entry.config_source)
                for entry in describe(connection, everywhere).configs
            ]
            == [("log.retention.ms", "100000", OF_ALL_BROKERS)]
        ),
        "described",
    )
    assert value(connection, (BROKER, "0"), "log.retention.ms") == ("100000", OF_ALL_BROKERS)
    connection.close()


@pytest.mark.parametrize("name", [ALL_BROKERS, "0"])
@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("broker.id", "5", ErrorCode.INVALID_REQUEST),
        ("log.dirs", "/elsewhere", ErrorCode.INVALID_REQUEST),
        ("message.max.bytes", "lots", ErrorCode.INVALID_REQUEST),
    ],
)
def test_broker_s_setting_is_refused(
    wire: Speaker, name: str, key: str, text: str, expected: ErrorCode
) -> None:
    resource = (BROKER, name)
    assert ErrorCode(alter(wire, resource, (key, SET, text)).error_code) is expected
    (replaced,) = replace(wire, (resource, {key: text}))
    assert ErrorCode(replaced.error_code) is expected


@pytest.mark.parametrize(("name", "source"), [(ALL_BROKERS, OF_ALL_BROKERS), ("0", OF_BROKER)])
def test_broker_s_unknown_setting_is_kept_and_said_to_be_ignored(
    own_broker: Callable[..., BrokerProcess], name: str, source: int
) -> None:
    broker = own_broker()
    connection = speak(broker.port)
    resource = (BROKER, name)
    changes = [("no.such.key", SET, "secret?"), ("message.max.bytes", SET, "1000")]
    assert alter(connection, resource, *changes).error_code == 0
    eventually(lambda: "no.such.key is ignored: unknown key" in broker.log, "said")
    assert value(connection, (BROKER, "0"), "message.max.bytes") == ("1000", source)
    # Kafka's tools remove only what is described; nobody knows whether the value may be shown.
    found = one(connection, resource, "no.such.key", synonyms=True)
    assert (found.value, found.is_sensitive, found.config_source) == (None, True, source)
    assert (found.read_only, found.config_type) == (False, int(ConfigType.UNKNOWN))
    assert [(s.name, s.value, s.source) for s in found.synonyms] == [("no.such.key", None, source)]
    names = [entry.name for entry in describe(connection, resource).configs]
    assert names.count("no.such.key") == 1
    assert alter(connection, resource, ("no.such.key", DELETE, None)).error_code == 0
    eventually(lambda: describe(connection, resource, ["no.such.key"]).configs == [], "gone")
    connection.close()


def test_configs_of_a_deleted_topic_are_not_its_successor_s(wire: Speaker) -> None:
    name, _ = create_topic(wire, fresh_name(), retention_ms=5000)
    wire.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000), 5)
    create_topic(wire, name)
    assert overrides(wire, name) == {}


# -- the same bounds at a start and at run time

EDGES = ["", "x", "0", "1", "-1", "-2", "0.5", "true", "nan", str(-(2**63)), str(2**63), " 1 "]
DYNAMIC = [
    key
    for key in BrokerSettings.KEYS.values()
    if key.update is not Update.READ_ONLY and key.name not in THREAD_COUNTS
]


def values_to_try(key: Key[object]) -> list[str]:
    bounds = [bound for bound in (key.at_least, key.at_most) if bound is not None]
    around = [f"{int(bound) + step}" for bound in bounds for step in (-1, 0, 1)]
    return list(dict.fromkeys([*EDGES, *around, *(key.values or ()), *map(str, key.besides)]))


def starts_with(name: str, text: str) -> bool:
    try:
        read(overrides=[f"{name}={text}"])
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("key", DYNAMIC, ids=lambda key: key.name)
def test_dynamic_setting_has_the_same_bounds_at_a_start_and_at_run_time(
    wire: Speaker, key: Key[object]
) -> None:
    resources = [(BROKER, "0")]
    if key.update is Update.CLUSTER_WIDE:
        resources.append((BROKER, ALL_BROKERS))
    wrong = []
    for text in values_to_try(key):
        expected = starts_with(key.name, text)
        for resource in resources:
            (replaced,) = replace(wire, (resource, {key.name: text}), validate_only=True)
            altered = alter(wire, resource, (key.name, SET, text), validate_only=True)
            found = [replaced.error_code == 0, altered.error_code == 0]
            if found != [expected] * 2:
                wrong.append((text, resource, expected, found, altered.error_message))
    assert not wrong


@pytest.mark.parametrize("name", ["0", ALL_BROKERS])
@pytest.mark.parametrize("key", THREAD_COUNTS)
def test_thread_count_stays_between_half_and_double_of_now(
    wire: Speaker, key: str, name: str
) -> None:
    """Kafka's rule: from 1 to 2, or from 8 to 4..16, but never 0."""
    resource = (BROKER, name)
    current = BrokerSettings().value(key)
    reasons = {
        "0": "0 is below 1",
        f"{current // 2 - 1}": "is below",
        f"{current // 2}": "" if current > 1 else "0 is below 1",
        f"{current * 2}": "",
        f"{current * 2 + 1}": f"is above double the current {current}",
    }
    for text, reason in reasons.items():
        (replaced,) = replace(wire, (resource, {key: text}), validate_only=True)
        altered = alter(wire, resource, (key, SET, text), validate_only=True)
        for answer in (replaced, altered):
            expected = ErrorCode.INVALID_REQUEST if reason else ErrorCode.NONE
            assert ErrorCode(answer.error_code) is expected, text
            assert reason in (answer.error_message or ""), text


def test_thread_count_is_compared_with_that_of_now(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    connection = speak(own_broker().port)
    key, resource = "log.cleaner.threads", (BROKER, "0")
    for count in (2, 4, 8):
        assert alter(connection, resource, (key, SET, f"{count}")).error_code == 0
        eventually(
            lambda count=count: value(connection, resource, key) == (f"{count}", OF_BROKER), "set"
        )
    # Without its own value the broker would have 1 at once.
    refused = alter(connection, resource, (key, DELETE, None))
    assert ErrorCode(refused.error_code) is ErrorCode.INVALID_REQUEST
    assert "log.cleaner.threads: 1 is below half of the current 8" in refused.error_message
    connection.close()


def test_broker_without_threads_that_compact_gets_none_at_run_time(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    """As Kafka: 0 is accepted in the file, and every other count is more than double of it."""
    broker = own_broker(**{"log.cleaner.threads": 0})
    assert "WARNING plog.storage.log_cleaner: no log is compacted: log.cleaner.threads=0" in (
        broker.log
    )
    connection = speak(broker.port)
    for text, code in (("1", ErrorCode.INVALID_REQUEST), ("0", ErrorCode.NONE)):
        answer = alter(connection, (BROKER, "0"), ("log.cleaner.threads", SET, text))
        assert ErrorCode(answer.error_code) is code
    assert broker.log.count("no log is compacted") == 1
    connection.close()
