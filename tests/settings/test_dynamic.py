"""Layers over the file: what is in force, who is told, and what DescribeConfigs says of it."""

from __future__ import annotations

import logging
from collections import UserDict

import pytest

from plog.errors import InvalidConfig, InvalidRequest
from plog.settings import BrokerSettings
from plog.settings.dynamic import ConfigSource, ConfigSynonym, DynamicSettings
from plog.settings.kafka_only import KAFKA_ONLY
from plog.settings.kafka_only import REFUSED as NEVER_SET
from plog.settings.keys import PASSWORD, ConfigType, Update, key

TOPIC, BROKER, CLUSTER, STATIC, DEFAULT, _LOGGER, GROUP = ConfigSource


def entry(entries, name):
    (found,) = [each for each in entries if each.name == name]
    return found


def test_layers_lie_over_each_other():
    settings = DynamicSettings(BrokerSettings({"message.max.bytes": "1"}))
    assert settings.broker().message_max_bytes == 1
    settings.apply_cluster_default({"message.max.bytes": "2"})
    assert settings.broker().message_max_bytes == 2
    settings.apply_broker({"message.max.bytes": "3"})
    assert settings.broker().message_max_bytes == 3
    assert settings.topic("t").max_message_bytes == 3
    settings.apply_topic("t", {"max.message.bytes": "4"})
    assert settings.topic("t").max_message_bytes == 4
    assert settings.topic("other").max_message_bytes == 3
    settings.apply_topic("t", {})
    settings.apply_broker({})
    assert settings.topic("t").max_message_bytes == 2
    settings.apply_cluster_default({})
    assert settings.topic("t").max_message_bytes == 1


def test_topic_keeps_its_own_when_the_brokers_change():
    settings = DynamicSettings(BrokerSettings())
    settings.apply_topic("t", {"retention.ms": "5"})
    settings.apply_broker({"log.retention.ms": "6", "log.segment.bytes": "1000"})
    assert settings.topic("t").retention_ms == 5
    assert settings.topic("t").segment_bytes == 1000


def test_snapshot_that_was_taken_does_not_change():
    settings = DynamicSettings(BrokerSettings())
    before = settings.topic("t")
    settings.apply_topic("t", {"retention.ms": "5"})
    assert before.retention_ms == 604800000
    assert settings.topic("t") is not before


def test_topic_that_is_told_again_has_no_defaults_meanwhile():
    """As after every change: once for whoever has written it, and once at its notice."""
    settings = DynamicSettings(BrokerSettings({}))
    settings.apply_topic("t", {"retention.ms": "5"})
    seen = []

    class Overrides(UserDict):
        def __iter__(self):
            seen.append(settings.topic("t").retention_ms)
            return super().__iter__()

    settings.apply_topic("t", Overrides({"retention.ms": "5"}))
    assert set(seen) == {5}


def test_subscribers_hear_of_every_change_with_the_new_snapshot():
    settings = DynamicSettings(BrokerSettings())
    heard = []
    settings.on_broker_change(lambda new: heard.append(new.message_max_bytes))
    settings.on_topic_change(lambda name, new: heard.append((name, new.retention_ms)))
    settings.apply_broker({"message.max.bytes": "7"})
    settings.apply_topic("t", {"retention.ms": "8"})
    settings.apply_topic("t", {})
    assert heard == [7, ("t", 8), ("t", 604800000)]


REFUSED = [
    ("check_broker", {"message.max.bytes": "x"}, "message.max.bytes: 'x' is not a whole number"),
    ("check_topic", {"retention.ms": "x"}, "retention.ms: 'x' is not a whole number"),
    ("check_group", {"retention.ms": "1"}, "retention.ms: unknown key"),
    ("check_group", {"consumer.session.timeout.ms": "44999"}, "44999 is below group.consumer.min."),
    ("check_group", {"consumer.session.timeout.ms": "60001"}, "60001 is above group.consumer.max."),
    (
        "check_group",
        {"consumer.heartbeat.interval.ms": "4999"},
        "4999 is below group.consumer",
    ),
    ("check_group", {"consumer.heartbeat.interval.ms": "15001"}, "15001 is above group.consumer"),
    (
        "check_broker",
        {"log.cleaner.max.compaction.lag.ms": "1", "log.cleaner.min.compaction.lag.ms": "2"},
        "log.cleaner.min.compaction.lag.ms: 2 is above",
    ),
]


@pytest.mark.parametrize(("check", "configs", "reason"), REFUSED)
def test_wrong_change_is_refused_naming_the_key(check, configs, reason):
    settings = DynamicSettings(BrokerSettings())
    error = InvalidRequest if check == "check_broker" else InvalidConfig
    with pytest.raises(error) as caught:
        getattr(settings, check)(configs)
    assert reason in str(caught.value)


NOT_DYNAMIC = [
    ("check_broker", {"log.dirs": "/x"}, "log.dirs: cannot be changed while the broker runs"),
    ("check_cluster_default", {"broker.rack": "a"}, "broker.rack: cannot be changed"),
    (
        "check_broker",
        {"log.dirs": "/x", "message.max.bytes": "x"},
        "runs; message.max.bytes: 'x' is not a whole number",
    ),
]


@pytest.mark.parametrize(("check", "configs", "reason"), NOT_DYNAMIC)
def test_key_that_is_not_dynamic_makes_the_request_invalid(check, configs, reason):
    settings = DynamicSettings(BrokerSettings())
    with pytest.raises(InvalidRequest) as caught:
        getattr(settings, check)(configs)
    assert reason in str(caught.value)


def test_unknown_key_of_a_broker_is_no_fault_and_described_without_its_value():
    settings = DynamicSettings(BrokerSettings())
    settings.check_broker({"no.such": "1"})
    settings.check_cluster_default({"no.such": "1"})
    with pytest.raises(InvalidConfig, match="unknown key"):
        settings.check_topic({"no.such": "1"})
    settings.apply_cluster_default({"no.such": "1", "other": "2"})
    settings.apply_broker({"no.such": "3", "message.max.bytes": "5"})
    assert settings.broker().message_max_bytes == 5
    found = entry(settings.describe_broker(), "no.such")
    assert (found.value, found.source, found.sensitive) == (None, BROKER, True)
    assert [s.source for s in found.synonyms] == [BROKER, CLUSTER]
    assert entry(settings.describe_broker(["other"]), "other").source is CLUSTER
    (found,) = settings.describe_cluster_default(["no.such"])
    assert (found.value, found.source, found.type) == (None, CLUSTER, ConfigType.UNKNOWN)
    # What was refused is not in force, and is described as if it were not there.
    settings.apply_broker({"broker.id": "3"})
    assert entry(settings.describe_broker(), "broker.id").source is DEFAULT


def test_check_changes_nothing():
    settings = DynamicSettings(BrokerSettings())
    assert settings.check_broker({"message.max.bytes": "5"}).message_max_bytes == 5
    assert settings.check_cluster_default({"message.max.bytes": "6"}).message_max_bytes == 6
    assert settings.check_topic({"retention.ms": "7"}).retention_ms == 7
    assert settings.broker().given == {}


def test_key_for_one_broker_is_no_default_of_the_cluster():
    class Wider(BrokerSettings):
        one_at_a_time = key(
            "one.at.a.time", PASSWORD, "A key.", default=None, update=Update.PER_BROKER
        )

    settings = DynamicSettings(Wider())
    settings.check_broker({"one.at.a.time": "x"})
    with pytest.raises(InvalidRequest, match="can be set only for one broker"):
        settings.check_cluster_default({"one.at.a.time": "x"})


def test_wrong_values_from_the_store_are_logged_and_left_out(caplog):
    settings = DynamicSettings(BrokerSettings())
    with caplog.at_level(logging.ERROR, logger="plog.settings"):
        settings.apply_topic("t", {"retention.ms": "x", "segment.bytes": "1000"})
        settings.apply_broker({"broker.id": "3", "message.max.bytes": "5"})
    assert settings.topic("t").segment_bytes == 1000
    assert settings.topic("t").retention_ms == 604800000
    assert settings.broker().message_max_bytes == 5
    assert [record.getMessage() for record in caplog.records][:2] == [
        "settings of topic t: retention.ms is ignored: 'x' is not a whole number",
        "settings of this broker: broker.id is ignored: cannot be changed while the broker runs",
    ]


SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_group_has_its_own_settings_else_the_brokers(caplog):
    settings = DynamicSettings(BrokerSettings({"group.consumer.session.timeout.ms": "46000"}))
    assert settings.group("g").consumer_session_timeout_ms == 46_000
    assert settings.group("g") is settings.group("h")
    settings.apply_group("g", {SESSION: "50000"})
    settings.apply_broker({"message.max.bytes": "5"})
    assert settings.group("g").consumer_session_timeout_ms == 50_000
    assert settings.group("g").consumer_heartbeat_interval_ms == 5_000
    assert settings.group("h").consumer_session_timeout_ms == 46_000
    assert settings.groups() == ["g"]
    with caplog.at_level(logging.ERROR, logger="plog.settings"):
        settings.apply_group("g", {SESSION: "1", INTERVAL: "6000"})
    assert settings.group("g").consumer_session_timeout_ms == 46_000
    assert settings.group("g").consumer_heartbeat_interval_ms == 6_000
    assert "settings of group 'g': consumer.session.timeout.ms is ignored" in caplog.text
    settings.apply_group("g", {})
    assert settings.group("g") is settings.group("h")
    assert settings.groups() == []


def test_heartbeats_of_a_group_come_within_its_sessions():
    bounds = {
        "group.consumer.min.session.timeout.ms": "5000",
        "group.consumer.max.heartbeat.interval.ms": "60000",
    }
    settings = DynamicSettings(BrokerSettings(bounds))
    with pytest.raises(InvalidConfig, match=f"45000 is not below {SESSION}, 45000"):
        settings.check_group({INTERVAL: "45000"})
    with pytest.raises(InvalidConfig, match=f"5000 is not below {SESSION}, 5000"):
        settings.check_group({SESSION: "5000"})
    assert settings.check_group({INTERVAL: "44999"}).consumer_heartbeat_interval_ms == 44_999


def test_group_is_described_with_its_synonyms_most_specific_first():
    settings = DynamicSettings(BrokerSettings({"group.consumer.session.timeout.ms": "46000"}))
    assert [each.name for each in settings.describe_group("g")] == [SESSION, INTERVAL]
    found = entry(settings.describe_group("g"), SESSION)
    assert (found.value, found.source, found.read_only) == ("46000", STATIC, False)
    settings.apply_group("g", {SESSION: "50000"})
    (found,) = settings.describe_group("g", [SESSION])
    assert (found.value, found.source, found.type) == ("50000", GROUP, ConfigType.INT)
    broker = "group.consumer.session.timeout.ms"
    assert list(found.synonyms) == [
        ConfigSynonym(SESSION, "50000", GROUP),
        ConfigSynonym(broker, "46000", STATIC),
        ConfigSynonym(broker, "45000", DEFAULT),
    ]


def test_value_that_contradicts_another_layer_counts_again_when_that_changes():
    settings = DynamicSettings(BrokerSettings())
    settings.apply_cluster_default({"log.cleaner.max.compaction.lag.ms": "10"})
    settings.apply_broker({"log.cleaner.min.compaction.lag.ms": "20"})
    assert settings.broker().log_cleaner_min_compaction_lag_ms == 0
    settings.apply_cluster_default({})
    assert settings.broker().log_cleaner_min_compaction_lag_ms == 20


def test_set_that_contradicts_the_file_is_ignored_whole():
    settings = DynamicSettings(BrokerSettings({"log.cleaner.min.compaction.lag.ms": "20"}))
    settings.apply_broker({"log.cleaner.max.compaction.lag.ms": "10"})
    assert settings.broker().given == {"log.cleaner.min.compaction.lag.ms": "20"}


def test_topic_is_described_with_its_synonyms_most_specific_first():
    settings = DynamicSettings(BrokerSettings({"log.retention.hours": "1"}))
    found = entry(settings.describe_topic("t"), "retention.ms")
    assert (found.value, found.source, found.type) == ("3600000", STATIC, ConfigType.LONG)
    settings.apply_cluster_default({"log.retention.ms": "9"})
    settings.apply_broker({"log.retention.ms": "8"})
    settings.apply_topic("t", {"retention.ms": "7"})
    found = entry(settings.describe_topic("t"), "retention.ms")
    assert (found.value, found.source) == ("7", TOPIC)
    assert not found.read_only
    assert not found.sensitive
    assert found.synonyms == (
        ConfigSynonym("retention.ms", "7", TOPIC),
        ConfigSynonym("log.retention.ms", "8", BROKER),
        ConfigSynonym("log.retention.ms", "9", CLUSTER),
        ConfigSynonym("log.retention.hours", "1", STATIC),
        ConfigSynonym("log.retention.hours", "168", DEFAULT),
    )


def test_source_of_a_topics_value_is_where_that_value_came_from():
    settings = DynamicSettings(BrokerSettings({"log.segment.bytes": "1000"}))
    sources = {each.name: each.source for each in settings.describe_topic("t")}
    assert sources["segment.bytes"] is STATIC
    assert sources["segment.ms"] is DEFAULT
    assert sources["leader.replication.throttled.replicas"] is DEFAULT


def test_asked_for_names_only_are_described():
    settings = DynamicSettings(BrokerSettings())
    assert [e.name for e in settings.describe_topic("t", ["segment.ms", "x"])] == ["segment.ms"]
    assert [e.name for e in settings.describe_broker(["listeners", "x"])] == ["listeners"]
    settings.apply_cluster_default({"message.max.bytes": "1", "log.segment.bytes": "100"})
    described = settings.describe_cluster_default(["message.max.bytes"])
    assert [(e.name, e.value, e.source) for e in described] == [("message.max.bytes", "1", CLUSTER)]


def test_broker_is_described_whole_and_says_what_is_read_only():
    settings = DynamicSettings(BrokerSettings({"log.dirs": "/a"}))
    described = settings.describe_broker()
    assert [e.name for e in described] == list(BrokerSettings.KEYS)
    advertised = entry(described, "advertised.listeners")
    assert (advertised.value, advertised.source) == (None, DEFAULT)
    dirs = entry(described, "log.dirs")
    assert (dirs.value, dirs.source, dirs.read_only) == ("/a", STATIC, True)
    assert not entry(described, "log.segment.bytes").read_only
    hours = entry(described, "log.retention.ms")
    assert (hours.value, hours.source) == (None, DEFAULT)
    assert hours.synonyms == (ConfigSynonym("log.retention.hours", "168", DEFAULT),)


def test_nothing_set_for_all_brokers_describes_nothing():
    assert DynamicSettings(BrokerSettings()).describe_cluster_default() == []


def test_password_is_never_described():
    class Guarded(BrokerSettings):
        the_password = key(
            "the.password", PASSWORD, "A secret.", default=None, update=Update.CLUSTER_WIDE
        )

    settings = DynamicSettings(Guarded({"the.password": "static"}))
    settings.apply_cluster_default({"the.password": "cluster"})
    settings.apply_broker({"the.password": "broker"})
    secret = settings.broker().value("the.password")
    assert repr(secret) == "[hidden]"
    found = entry(settings.describe_broker(), "the.password")
    assert (found.value, found.sensitive, found.type) == (None, True, ConfigType.PASSWORD)
    assert [(s.value, s.source) for s in found.synonyms] == [
        (None, BROKER),
        (None, CLUSTER),
        (None, STATIC),
    ]
    assert settings.describe_cluster_default()[0].value is None


def test_documentation_says_what_setting_a_key_does_not_do():
    settings = DynamicSettings(BrokerSettings())
    said = {each.name: each.doc for each in settings.describe_broker()}
    assert said["log.preallocate"] == (
        "Allocate the full size of a new segment in advance. Accepted, without effect:"
        " segments grow as they are written."
    )
    assert said["broker.rack"] == BrokerSettings.broker_rack.doc


NO_EFFECT = sorted(
    {*KAFKA_ONLY, "listener.name.x.ssl.protocol"}
    | {key.name for key in BrokerSettings.KEYS.values() if key.no_effect is not None}
)


@pytest.mark.parametrize("place", ["this broker", "all brokers"])
def test_keys_without_effect_are_warned_of_once(caplog, place):
    settings = DynamicSettings(BrokerSettings())
    apply = settings.apply_broker if place == "this broker" else settings.apply_cluster_default
    other = settings.apply_cluster_default if place == "this broker" else settings.apply_broker
    known = {key: declared.update for key, declared in BrokerSettings.KEYS.items()}
    names = [name for name in NO_EFFECT if known.get(name) is not Update.READ_ONLY]
    defaults = {entry.name: entry.value for entry in settings.describe_broker()}
    configs = {name: defaults.get(name) or "1" for name in names}
    with caplog.at_level(logging.WARNING, logger="plog.settings"):
        apply(configs)
        apply(configs)  # the notice of the same change
        other({"message.max.bytes": "5000"})
        settings.apply_topic("t", {"retention.ms": "5"})
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert len(lines) == len(names) > 200
    for name, (level, text) in zip(configs, lines, strict=True):
        assert level == logging.WARNING
        assert text.startswith(f"settings of {place}: {name} has no effect in plog: ")
        assert "unknown key" not in text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="plog.settings"):
        apply({})
        apply({names[0]: configs[names[0]]})
    assert len(caplog.records) == 1, "a key that is set again is warned of again"


def test_unknown_keys_are_warned_of_once_and_kept(caplog):
    settings = DynamicSettings(BrokerSettings())
    with caplog.at_level(logging.WARNING, logger="plog.settings"):
        settings.apply_broker({"no.such.key": "1", "message.max.byte": "1"})
        settings.apply_cluster_default({"message.max.bytes": "5000"})
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "settings of this broker: no.such.key is ignored: unknown key"),
        (
            logging.WARNING,
            "settings of this broker: message.max.byte is ignored: unknown key;"
            " did you mean `message.max.bytes`?",
        ),
    ]
    assert [one.name for one in settings.describe_broker(["no.such.key"])] == ["no.such.key"]


@pytest.mark.parametrize("name", NEVER_SET)
def test_keys_that_stop_a_start_are_refused_while_it_runs(caplog, name):
    settings = DynamicSettings(BrokerSettings())
    for check in (settings.check_broker, settings.check_cluster_default):
        with pytest.raises(InvalidRequest, match=name):
            check({name: "x"})
    with caplog.at_level(logging.WARNING, logger="plog.settings"):
        settings.apply_broker({name: "x"})
        settings.apply_broker({name: "x"})
    (line,) = caplog.records
    assert line.getMessage() == f"settings of this broker: {name} is ignored: {NEVER_SET[name]}"


def test_faults_are_logged_once_for_as_long_as_they_last(caplog):
    settings = DynamicSettings(BrokerSettings())
    with caplog.at_level(logging.WARNING, logger="plog.settings"):
        settings.apply_topic("t", {"retention.ms": "x"})
        settings.apply_group("g", {SESSION: "1"})
        settings.apply_broker({"message.max.bytes": "x"})
        for _ in range(3):
            settings.apply_cluster_default({"log.retention.ms": "5000"})
            settings.apply_cluster_default({})
    assert len(caplog.records) == 3
    with caplog.at_level(logging.WARNING, logger="plog.settings"):
        settings.apply_topic("t", {})
        settings.apply_topic("t", {"retention.ms": "x"})
    assert len(caplog.records) == 4
