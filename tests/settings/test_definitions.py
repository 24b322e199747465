"""What the declarations make of values: kinds, ranges, defaults, fallbacks, contradictions."""

from __future__ import annotations

import pytest

from plog.errors import ConfigError, InvalidConfig
from plog.settings import BrokerSettings, TopicSettings
from plog.settings.kafka_only import KAFKA_ONLY, REFUSED
from plog.settings.keys import (
    INT,
    LONG_MAX,
    PASSWORD,
    STRING,
    EntityKey,
    Password,
    Settings,
    Update,
    key,
)

# Kafka 3.9's own defaults, of keys whose default a client or an operator would notice.
KAFKA_DEFAULTS = {
    "group.consumer.session.timeout.ms": 45_000,
    "group.consumer.min.session.timeout.ms": 45_000,
    "group.consumer.max.session.timeout.ms": 60_000,
    "group.consumer.heartbeat.interval.ms": 5_000,
    "group.consumer.min.heartbeat.interval.ms": 5_000,
    "group.consumer.max.heartbeat.interval.ms": 15_000,
    "group.consumer.max.size": 2**31 - 1,
    "group.consumer.migration.policy": "bidirectional",
    "auto.create.topics.enable": True,
    "broker.id": -1,
    "compression.type": "producer",
    "connections.max.idle.ms": 600000,
    "default.replication.factor": 1,
    "delete.topic.enable": True,
    "fetch.max.bytes": 55 * 1024 * 1024,
    "log.cleanup.policy": ("delete",),
    "log.index.interval.bytes": 4096,
    "log.index.size.max.bytes": 10 * 1024 * 1024,
    "log.message.timestamp.type": "CreateTime",
    "log.retention.bytes": -1,
    "log.retention.hours": 168,
    "log.roll.hours": 168,
    "log.segment.bytes": 1024 * 1024 * 1024,
    "log.segment.delete.delay.ms": 60000,
    "max.incremental.fetch.session.cache.slots": 1000,
    "message.max.bytes": 1024 * 1024 + 12,
    "min.insync.replicas": 1,
    "num.partitions": 1,
    "offsets.topic.num.partitions": 50,
    "producer.id.expiration.ms": 86400000,
    "reserved.broker.max.id": 1000,
    "socket.request.max.bytes": 100 * 1024 * 1024,
    "transaction.state.log.min.isr": 2,
    "unclean.leader.election.enable": False,
}

KAFKA_TOPIC_DEFAULTS = {
    "cleanup.policy": ("delete",),
    "delete.retention.ms": 86400000,
    "file.delete.delay.ms": 60000,
    "flush.messages": LONG_MAX,
    "flush.ms": LONG_MAX,
    "max.compaction.lag.ms": LONG_MAX,
    "max.message.bytes": 1048588,
    "message.timestamp.after.max.ms": LONG_MAX,
    "min.cleanable.dirty.ratio": 0.5,
    "retention.bytes": -1,
    "retention.ms": 604800000,
    "segment.bytes": 1073741824,
    "segment.jitter.ms": 0,
    "segment.ms": 604800000,
}


@pytest.mark.parametrize(("name", "default"), KAFKA_DEFAULTS.items())
def test_key_that_is_not_set_has_kafkas_default(name, default):
    assert BrokerSettings().value(name) == default


@pytest.mark.parametrize(("name", "default"), KAFKA_TOPIC_DEFAULTS.items())
def test_topic_key_that_is_not_set_has_kafkas_default(name, default):
    assert TopicSettings().value(name) == default
    assert TopicSettings.KEYS[name].default == default


@pytest.mark.parametrize("declared", [*BrokerSettings.KEYS.values(), *TopicSettings.KEYS.values()])
def test_default_is_in_range_and_survives_being_written(declared):
    if declared.default is None:
        return
    assert declared.objection(declared.default) is None
    text = declared.format(declared.default)
    assert text is not None
    assert declared.parse(text) == declared.default


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.5, "0.5"), (1.0, "1.0"), (1e-5, "1.0E-5"), (1.25e300, "1.25E300")],
)
def test_numbers_with_a_point_are_written_as_java_writes_them(number, text):
    assert TopicSettings.KEYS["min.cleanable.dirty.ratio"].format(number) == text


def test_every_key_says_what_it_does_in_a_sentence():
    for declared in [*BrokerSettings.KEYS.values(), *TopicSettings.KEYS.values()]:
        assert declared.doc.endswith("."), declared.name
        assert declared.doc.strip() == declared.doc, declared.name


def test_no_key_is_both_declared_and_listed_as_unknown_to_plog():
    assert not KAFKA_ONLY.keys() & BrokerSettings.KEYS.keys()
    assert not KAFKA_ONLY.keys() & REFUSED.keys()


ACCEPTED = [
    ("broker.id", " 7 ", 7),
    ("log.retention.bytes", "+12", 12),
    ("log.retention.ms", "-1", -1),
    ("auto.create.topics.enable", "TRUE", True),
    ("auto.create.topics.enable", "False", False),
    ("log.cleaner.min.cleanable.ratio", "1e-1", 0.1),
    ("log.cleanup.policy", "compact, delete", ("compact", "delete")),
    ("log.dirs", "/a,/b , /c", ("/a", "/b", "/c")),
    ("compression.gzip.level", "-1", -1),
    ("compression.zstd.level", "-131072", -131072),
    ("broker.rack", " r1 ", "r1"),
    ("offsets.topic.replication.factor", "32767", 32767),
]


@pytest.mark.parametrize(("name", "text", "value"), ACCEPTED)
def test_text_is_read_as_its_kind(name, text, value):
    settings = BrokerSettings({name: text})
    assert settings.value(name) == value
    assert vars(settings)[name.replace(".", "_")] == value
    assert settings.given == {name: text}


REFUSED_TEXTS = [
    ("broker.id", "one", "'one' is not a whole number"),
    ("broker.id", "", "'' is not a whole number"),
    ("broker.id", "1_0", "'1_0' is not a whole number"),
    ("broker.id", "٣", "'٣' is not a whole number"),
    ("broker.id", "1.0", "'1.0' is not a whole number"),
    ("broker.id", "-2", "-2 is below -1"),
    ("broker.id", "2147483648", "2147483648 is not within -2147483648 .. 2147483647"),
    ("log.retention.bytes", "9223372036854775808", "9223372036854775808 is not within"),
    ("offsets.topic.replication.factor", "32768", "32768 is not within"),
    ("log.retention.ms", "0", "0 is neither -1 nor at least 1"),
    ("log.retention.ms", "-2", "-2 is neither -1 nor at least 1"),
    ("auto.create.topics.enable", "yes", "'yes' is not true or false"),
    ("log.cleaner.min.cleanable.ratio", "half", "'half' is not a number"),
    ("log.cleaner.min.cleanable.ratio", "nan", "nan is not a valid number"),
    ("log.cleaner.min.cleanable.ratio", "1.5", "1.5 is above 1"),
    ("log.cleanup.policy", "delete,archive", "'archive' is not one of compact, delete"),
    ("compression.type", "brotli", "'brotli' is not one of uncompressed, zstd, lz4"),
    ("compression.gzip.level", "0", "0 is neither -1 nor at least 1"),
    ("compression.gzip.level", "10", "10 is above 9"),
    ("no.such.key", "1", "unknown key"),
    ("authorizer.class.name", "x", "unknown key"),
    ("log.dirs", "", "names no directory"),
    ("log.dirs", "/a,,/b", "names an empty directory"),
    ("log.dirs", "/a,/a", "names a directory twice"),
    ("broker.id", "1001", "1001 is above reserved.broker.max.id, 1000"),
    ("broker.id.generation.enable", "false", "broker.id: must be set"),
    ("queued.max.request.bytes", "1000", "1000 is below socket.request.max.bytes"),
    ("group.min.session.timeout.ms", "1800001", "is above group.max.session.timeout.ms"),
    ("group.coordinator.rebalance.protocols", "consumer", "must name classic"),
    ("group.coordinator.rebalance.protocols", "classic,share", "'share' is not one of"),
    ("group.consumer.assignors", "", "names no assignor"),
    ("group.consumer.assignors", "sticky", "'sticky' is not one of"),
    ("group.consumer.migration.policy", "sideways", "'sideways' is not one of"),
    ("group.consumer.session.timeout.ms", "1000", "is below group.consumer.min.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "60001", "is above group.consumer.max.session.timeout"),
    ("group.consumer.heartbeat.interval.ms", "4999", "is below group.consumer.min.heartbeat"),
    ("group.consumer.heartbeat.interval.ms", "15001", "is above group.consumer.max.heartbeat"),
    ("log.cleaner.max.compaction.lag.ms", "0", "0 is below 1"),
]


@pytest.mark.parametrize(("name", "text", "reason"), REFUSED_TEXTS)
def test_wrong_value_is_refused_with_key_and_reason(name, text, reason):
    with pytest.raises(ConfigError) as caught:
        BrokerSettings({name: text})
    assert reason in str(caught.value)
    assert BrokerSettings.faults({name: text})


def test_everything_wrong_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        BrokerSettings({"broker.id": "x", "num.partitions": "0", "log.dirs": "/a,/a", "typo": "1"})
    assert str(caught.value) == (
        "broker.id: 'x' is not a whole number; num.partitions: 0 is below 1; "
        "typo: unknown key; log.dirs: names a directory twice"
    )


def test_log_dir_stands_in_for_log_dirs():
    assert BrokerSettings({"log.dir": "/a, /b"}).log_dirs == ("/a", "/b")
    assert BrokerSettings({"log.dir": "/a", "log.dirs": "/b"}).log_dirs == ("/b",)


RETENTION = [
    ({}, 604800000),
    ({"log.retention.hours": "1"}, 3600000),
    ({"log.retention.hours": "-1"}, -1),
    ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120000),
    ({"log.retention.minutes": "-1", "log.retention.hours": "1"}, -1),
    ({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
]


@pytest.mark.parametrize(("given", "retention_ms"), RETENTION)
def test_smallest_unit_that_is_set_decides_retention(given, retention_ms):
    assert TopicSettings(BrokerSettings(given)).retention_ms == retention_ms


OTHER_CHAINS = [
    ({"log.roll.hours": "2"}, "segment.ms", 7200000),
    ({"log.roll.hours": "2", "log.roll.ms": "5"}, "segment.ms", 5),
    ({"log.roll.jitter.hours": "1"}, "segment.jitter.ms", 3600000),
    ({"log.flush.scheduler.interval.ms": "9"}, "flush.ms", 9),
    ({"log.flush.scheduler.interval.ms": "9", "log.flush.interval.ms": "0"}, "flush.ms", 0),
    ({"message.max.bytes": "77"}, "max.message.bytes", 77),
    ({"flush.before.ack": "false"}, "flush.before.ack", False),
    ({"log.message.timestamp.difference.max.ms": "8"}, "message.timestamp.before.max.ms", 8),
]


@pytest.mark.parametrize(("given", "name", "value"), OTHER_CHAINS)
def test_broker_key_is_the_topics_default(given, name, value):
    assert TopicSettings(BrokerSettings(given)).value(name) == value


def test_topics_own_value_is_before_the_brokers():
    broker = BrokerSettings({"log.retention.ms": "5"})
    topic = TopicSettings(broker, {"retention.ms": "0", "cleanup.policy": "compact"})
    assert topic.retention_ms == 0
    assert topic.cleanup_policy == ("compact",)
    assert topic.overrides == {"retention.ms": "0", "cleanup.policy": "compact"}


def test_older_timestamp_limit_counts_only_where_the_newer_is_not_set():
    topic = TopicSettings(
        overrides={
            "message.timestamp.difference.max.ms": "10",
            "message.timestamp.after.max.ms": "20",
        }
    )
    assert topic.message_timestamp_before_max_ms == 10
    assert topic.message_timestamp_after_max_ms == 20


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"retention.ms": "-2"}, "retention.ms: -2 is below -1"),
        ({"log.retention.ms": "1"}, "log.retention.ms: unknown key; did you mean `retention.ms`?"),
        ({"no.such.thing": "true"}, "no.such.thing: unknown key"),
        (
            {"remote.storage.enable": "true"},
            "remote.storage.enable: plog keeps every segment in its log directories",
        ),
        (
            {"min.compaction.lag.ms": "3", "max.compaction.lag.ms": "2"},
            "min.compaction.lag.ms: 3 is above max.compaction.lag.ms, 2",
        ),
        (
            {"retention.ms": "a", "segment.bytes": "1"},
            "retention.ms: 'a' is not a whole number; segment.bytes: 1 is below 14",
        ),
    ],
)
def test_wrong_topic_settings_are_invalid_config(overrides, reason):
    with pytest.raises(InvalidConfig) as caught:
        TopicSettings(overrides=overrides)
    assert str(caught.value) == reason


def test_every_topic_key_falls_back_on_keys_of_the_broker():
    alone = {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "local.retention.bytes",
        "local.retention.ms",
    }
    for name, declared in TopicSettings.KEYS.items():
        assert isinstance(declared, EntityKey)
        assert bool(declared.synonyms) is (name not in alone)
        for synonym in declared.synonyms:
            assert BrokerSettings.KEYS[synonym.key.name] is synonym.key


def test_only_the_first_broker_key_of_a_chain_is_dynamic():
    # So that what is set while the broker runs is never hidden by what is in the file.
    for declared in TopicSettings.KEYS.values():
        assert isinstance(declared, EntityKey)
        for synonym in declared.synonyms[1:]:
            assert synonym.key.update is Update.READ_ONLY


def test_settings_cannot_be_edited():
    for settings in (BrokerSettings(), TopicSettings()):
        with pytest.raises(AttributeError, match="not edited"):
            settings.min_insync_replicas = 3
        with pytest.raises(AttributeError, match="not edited"):
            del settings.min_insync_replicas
        with pytest.raises(KeyError):
            settings.value("no.such.key")


def test_key_is_read_from_the_class_and_its_value_from_the_object():
    assert BrokerSettings.log_segment_bytes.name == "log.segment.bytes"
    assert BrokerSettings().with_texts({"log.segment.bytes": "14"}).log_segment_bytes == 14


def test_attribute_that_is_not_the_keys_name_is_refused():
    with pytest.raises((TypeError, RuntimeError)) as caught:

        class Misnamed(Settings):
            wrong = key("right.name", INT, "A number.", default=1)

    cause = caught.value.__cause__ or caught.value
    assert "right.name is declared as wrong" in str(cause)


def test_key_declared_twice_is_refused():
    with pytest.raises(TypeError, match="is declared twice"):

        class Twice(BrokerSettings):
            broker_rack = key("broker.rack", STRING, "Again.", default=None)


def test_password_is_shown_nowhere_but_where_it_is_asked_for():
    class Guarded(Settings):
        the_password = key("the.password", PASSWORD, "A secret.", default=None)

    values, faults = Guarded.parse({"the.password": "sesame"})
    assert faults == []
    assert values["the.password"] == Password("sesame")
    assert "sesame" not in repr(values)
    assert Guarded.KEYS["the.password"].format(values["the.password"]) is None
    secret = values["the.password"]
    assert isinstance(secret, Password)
    assert secret.reveal() == "sesame"


def test_heartbeats_of_consumer_groups_come_within_their_sessions():
    texts = {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "5000",
    }
    with pytest.raises(ConfigError, match=r"5000 is not below group.consumer.session.timeout.ms"):
        BrokerSettings(texts)


def test_assignors_may_be_named_by_kafkas_classes():
    package = "org.apache.kafka.coordinator.group.assignor"
    given = {"group.consumer.assignors": f"{package}.RangeAssignor,uniform"}
    assert BrokerSettings(given).consumer_assignors() == ("range", "uniform")
    assert BrokerSettings().consumer_assignors() == ("uniform", "range")
