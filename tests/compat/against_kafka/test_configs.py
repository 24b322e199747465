"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs beside Kafka 3.9."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from plog.settings.definitions import BrokerSettings
from plog.settings.kafka_only import KAFKA_ONLY, REFUSED
from tests.compat.against_kafka.ask import (
    APPEND,
    BROKER,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    alter,
    describe,
    replace,
)
from tests.compat.against_kafka.pair import Case, Made, Pair, Step, Topic, one

LOGGER, CLIENT_METRICS = 8, 16
SHOWN = [
    "segment.bytes", "retention.ms", "cleanup.policy", "leader.replication.throttled.replicas",
]  # fmt: skip
SHOWN_OF_BROKER = [
    "log.segment.bytes", "log.retention.ms", "log.cleanup.policy", "log.cleaner.threads",
]  # fmt: skip
THREAD_COUNTS = {
    "background.threads": ("0", "4", "5", "20", "21"),
    "log.cleaner.threads": ("0", "1", "4", "5"),
    "num.io.threads": ("0", "3", "4", "16", "17"),
}
"""Both brokers begin with 10, 2 and 8: from half to double is allowed, and never 0."""
SHOW = Step(describe((TOPIC, "t"), keys=SHOWN, synonyms=True), 4)
SHOW_BROKER = Step(describe((BROKER, "0"), keys=SHOWN_OF_BROKER, synonyms=True), 4, settles=True)
SET_TOPIC = Topic(configs={"retention.ms": "5000", "cleanup.policy": "delete"})


def then_shown(request: Made, version: int, **topics: Topic) -> Case:
    """Return a case that changes a topic's configs and looks at them."""
    return Case([Step(request, version), SHOW], topics or {"t": SET_TOPIC})


DESCRIBE = {
    "fresh-topic": one(describe((TOPIC, "t")), 4),
    "fresh-topic-with-synonyms": one(describe((TOPIC, "t"), synonyms=True), 4),
    "fresh-topic-with-documentation": one(
        describe((TOPIC, "t"), keys=["segment.bytes", "cleanup.policy"], documentation=True), 4
    ),
    "topic-with-its-own": Case([SHOW], {"t": SET_TOPIC}),
    "some-keys": one(describe((TOPIC, "t"), keys=["segment.bytes", "retention.ms"]), 4),
    "unknown-key": one(describe((TOPIC, "t"), keys=["segment.bytes", "no.such"]), 4),
    "no-keys": one(describe((TOPIC, "t"), keys=[]), 0),
    "key-twice": one(describe((TOPIC, "t"), keys=["segment.bytes", "segment.bytes"]), 4),
    "unknown-topic": one(describe((TOPIC, "no")), 4),
    "illegal-topic": one(describe((TOPIC, "a b")), 4),
    "topic-twice": one(describe((TOPIC, "t"), (TOPIC, "t"), keys=["segment.bytes"]), 4),
    "good-and-unknown": one(describe((TOPIC, "t"), (TOPIC, "no"), keys=["segment.bytes"]), 4),
    "broker": one(describe((BROKER, "0"), keys=[*BrokerSettings.KEYS], synonyms=True), 4),
    "broker-by-version-0": one(describe((BROKER, "0"), keys=["num.partitions"]), 0),
    "broker-documentation": one(
        describe((BROKER, "0"), keys=["num.partitions"], documentation=True), 4
    ),
    "other-broker": one(describe((BROKER, "1")), 4),
    "broker-of-no-number": one(describe((BROKER, "x")), 4),
    "all-brokers": one(describe((BROKER, "")), 4),
    "logger-of-other-broker": one(describe((LOGGER, "1")), 4),
    "logger-of-broker-of-no-number": one(describe((LOGGER, "x")), 4),
    "logger-of-all-brokers": one(describe((LOGGER, "")), 4),
    "unknown-logger": one(describe((LOGGER, "0"), keys=["no.such"]), 4),
    "client-metrics": one(describe((CLIENT_METRICS, "m")), 4),
    "group": one(describe((GROUP, "g")), 4),
    "unknown-type": one(describe((3, "t")), 4),
    "type-0": one(describe((0, "t")), 4),
    "nothing": one(describe(), 4),
}  # fmt: skip

REPLACE = {
    "set": then_shown(replace((TOPIC, "t", {"segment.bytes": "2000000"})), 2),
    "to-nothing": then_shown(replace((TOPIC, "t", {})), 2),
    "validated": then_shown(
        replace((TOPIC, "t", {"segment.bytes": "2000000"}), validate_only=True), 2
    ),
    "bad-value": then_shown(replace((TOPIC, "t", {"segment.bytes": "x"})), 2),
    "bad-value-validated": one(
        replace((TOPIC, "t", {"segment.bytes": "x"}), validate_only=True), 2
    ),
    "unknown-key": then_shown(replace((TOPIC, "t", {"no.such": "1"})), 2),
    "null": then_shown(replace((TOPIC, "t", {"segment.bytes": None})), 2),
    "key-twice": then_shown(
        replace((TOPIC, "t", [("segment.bytes", "2000"), ("segment.bytes", "3000")])), 2
    ),
    "unknown-topic": one(replace((TOPIC, "no", {"segment.bytes": "2000000"})), 2),
    "illegal-topic": one(replace((TOPIC, "a b", {"segment.bytes": "2000000"})), 2),
    "good-and-unknown": one(
        replace((TOPIC, "t", {"flush.ms": "5"}), (TOPIC, "no", {"flush.ms": "5"})), 2
    ),
    "unknown-type": one(replace((3, "t", {})), 2),
    "logger": one(replace((LOGGER, "0", {"root": "INFO"})), 2),
    "other-broker": one(replace((BROKER, "1", {"log.cleaner.threads": "2"})), 2),
    "broker-of-no-number": one(replace((BROKER, "x", {"log.cleaner.threads": "2"})), 2),
    "read-only-of-broker": one(replace((BROKER, "0", {"num.partitions": "2"})), 2),
    "per-broker-for-all": one(replace((BROKER, "", {"listeners": "PLAINTEXT://:1"})), 2),
    "broker-bad-value": one(replace((BROKER, "0", {"log.cleaner.threads": "x"})), 2),
    "broker-bad-value-validated": one(
        replace((BROKER, "0", {"log.cleaner.threads": "x"}), validate_only=True), 2
    ),
    "broker-unknown-key-validated": one(
        replace((BROKER, "0", {"no.such": "x"}), validate_only=True), 2
    ),
    "broker-validated": one(
        replace((BROKER, "0", {"log.cleaner.threads": "3"}), validate_only=True), 2
    ),
    "thread-counts": Case(
        [
            Step(replace((BROKER, name, {key: text}), validate_only=True), 2)
            for name in ("0", "")
            for key, texts in THREAD_COUNTS.items()
            for text in texts
        ]
    ),
    "broker": Case(
        [
            Step(replace((BROKER, "0", {"log.retention.ms": "7000000"})), 2),
            SHOW_BROKER,
            Step(replace((BROKER, "0", {})), 2),
            SHOW_BROKER,
        ]
    ),
    "all-brokers": Case(
        [
            Step(replace((BROKER, "", {"log.segment.bytes": "7000000"})), 2),
            SHOW_BROKER,
            Step(describe((BROKER, ""), synonyms=True), 4),
            SHOW,
            Step(replace((BROKER, "", {})), 2),
            SHOW_BROKER,
        ]
    ),
    "nothing": one(replace(), 2),
}  # fmt: skip


def changed(*changes: tuple[str, int, str | None], **topics: Topic) -> Case:
    """Return a case that changes single configs of a topic and looks at them."""
    return then_shown(alter((TOPIC, "t", changes)), 1, **topics)


COMPACT = Topic(configs={"cleanup.policy": "compact"})
INCREMENTAL = {
    "set": changed(("segment.bytes", SET, "2000000")),
    "set-what-is-set": changed(("retention.ms", SET, "6000")),
    "delete": changed(("retention.ms", DELETE, None)),
    "delete-with-value": changed(("retention.ms", DELETE, "5")),
    "delete-what-is-not-set": changed(("segment.bytes", DELETE, None)),
    "delete-unknown": changed(("no.such", DELETE, None)),
    "append": changed(("cleanup.policy", APPEND, "compact")),
    "append-what-is-there": changed(("cleanup.policy", APPEND, "delete")),
    "append-to-default": changed(("cleanup.policy", APPEND, "compact"), t=Topic()),
    "append-two": changed(("cleanup.policy", APPEND, "compact,delete"), t=COMPACT),
    "append-bad": changed(("cleanup.policy", APPEND, "shrink")),
    "append-to-no-list": changed(("retention.ms", APPEND, "5")),
    "append-to-unknown": changed(("no.such", APPEND, "5")),
    "append-replicas": changed(("leader.replication.throttled.replicas", APPEND, "0:0")),
    "append-replicas-to-star": changed(
        ("leader.replication.throttled.replicas", APPEND, "0:0"),
        t=Topic(configs={"leader.replication.throttled.replicas": "*"}),
    ),
    "append-nothing": changed(("cleanup.policy", APPEND, "")),
    "subtract": changed(
        ("cleanup.policy", SUBTRACT, "delete"),
        t=Topic(configs={"cleanup.policy": "compact,delete"}),
    ),
    "subtract-what-is-not-there": changed(("cleanup.policy", SUBTRACT, "compact")),
    "subtract-all": changed(("cleanup.policy", SUBTRACT, "delete")),
    "subtract-from-default": changed(("cleanup.policy", SUBTRACT, "delete"), t=Topic()),
    "subtract-from-no-list": changed(("retention.ms", SUBTRACT, "5")),
    "null": changed(("segment.bytes", SET, None)),
    "append-null": changed(("cleanup.policy", APPEND, None)),
    "key-twice": changed(("segment.bytes", SET, "2000"), ("segment.bytes", SET, "3000")),
    "key-twice-by-two-operations": changed(
        ("cleanup.policy", SET, "compact"), ("cleanup.policy", APPEND, "delete")
    ),
    "unknown-operation": changed(("segment.bytes", 4, "2000")),
    "negative-operation": changed(("segment.bytes", -1, "2000")),
    "unknown-key": changed(("no.such", SET, "1")),
    "bad-value": changed(("segment.bytes", SET, "x")),
    "good-and-bad": changed(("segment.bytes", SET, "x"), ("flush.ms", SET, "5")),
    "all-four": changed(
        ("segment.bytes", SET, "3000000"),
        ("retention.ms", DELETE, None),
        ("cleanup.policy", APPEND, "compact"),
        ("leader.replication.throttled.replicas", SUBTRACT, "0:0"),
    ),
    "validated": then_shown(
        alter((TOPIC, "t", [("segment.bytes", SET, "2000000")]), validate_only=True), 1
    ),
    "bad-value-validated": one(
        alter((TOPIC, "t", [("segment.bytes", SET, "x")]), validate_only=True), 1
    ),
    "no-changes": changed(),
    "unknown-topic": one(alter((TOPIC, "no", [("flush.ms", SET, "5")])), 1),
    "unknown-topic-validated": one(
        alter((TOPIC, "no", [("flush.ms", SET, "5")]), validate_only=True), 1
    ),
    "illegal-topic": one(alter((TOPIC, "a b", [("flush.ms", SET, "5")])), 1),
    "topic-twice": one(
        alter((TOPIC, "t", [("flush.ms", SET, "5")]), (TOPIC, "t", [("flush.ms", SET, "6")])), 1
    ),
    "unknown-type": one(alter((3, "t", [("flush.ms", SET, "5")])), 1),
    "other-broker": one(alter((BROKER, "1", [("log.cleaner.threads", SET, "2")])), 1),
    "broker-of-no-number": one(alter((BROKER, "x", [("log.cleaner.threads", SET, "2")])), 1),
    "read-only-of-broker": one(alter((BROKER, "0", [("num.partitions", SET, "2")])), 1),
    "read-only-of-broker-deleted": one(
        alter((BROKER, "0", [("num.partitions", DELETE, None)])), 1
    ),
    "broker-append-to-no-list": one(
        alter((BROKER, "0", [("log.segment.bytes", APPEND, "2")])), 1
    ),
    "broker-bad-value": one(alter((BROKER, "0", [("log.segment.bytes", SET, "13")])), 1),
    "broker": Case(
        [
            Step(alter((BROKER, "0", [("log.segment.bytes", SET, "7000000")])), 1),
            SHOW_BROKER,
            SHOW,
            Step(alter((BROKER, "0", [("log.segment.bytes", DELETE, None)])), 1),
            SHOW_BROKER,
        ]
    ),
    "broker-list": Case(
        [
            Step(alter((BROKER, "0", [("log.cleanup.policy", APPEND, "compact")])), 1),
            SHOW_BROKER,
            Step(alter((BROKER, "0", [("log.cleanup.policy", SUBTRACT, "delete")])), 1),
            SHOW_BROKER,
            Step(alter((BROKER, "0", [("log.cleanup.policy", DELETE, None)])), 1),
            SHOW_BROKER,
        ]
    ),
    "nothing": one(alter(), 1),
}  # fmt: skip

ROOT_LOGGER = Step(describe((LOGGER, "0"), keys=["root"], documentation=True), 4)


def levels(*changes: tuple[str, int, str | None], validate_only: bool = False) -> Case:
    """Return a case that changes log levels and looks at the root logger's, which is INFO."""
    request = alter((LOGGER, "0", changes), validate_only=validate_only)
    info = Step(alter((LOGGER, "0", [("root", SET, "INFO")])), 1)
    return Case([info, Step(request, 1), ROOT_LOGGER, info, ROOT_LOGGER])


LOGGERS = {
    "set": levels(("root", SET, "WARN")),
    "validated": levels(("root", SET, "WARN"), validate_only=True),
    "unknown-logger": levels(("no.such", SET, "WARN")),
    "unknown-logger-reset": levels(("no.such", DELETE, None)),
    "unknown-level": levels(("root", SET, "LOUD")),
    "level-in-lower-case": levels(("root", SET, "warn")),
    "no-level": levels(("root", SET, None)),
    "root-reset": levels(("root", DELETE, None)),
    "root-reset-with-level": levels(("root", DELETE, "WARN")),
    "append": levels(("root", APPEND, "WARN")),
    "subtract": levels(("root", SUBTRACT, "WARN")),
    "append-to-unknown": levels(("no.such", APPEND, "WARN")),
    "logger-twice": levels(("root", SET, "WARN"), ("root", SET, "ERROR")),
    "good-and-unknown": levels(("root", SET, "WARN"), ("no.such", SET, "WARN")),
    "other-broker": one(alter((LOGGER, "1", [("root", SET, "WARN")])), 1),
    "broker-of-no-number": one(alter((LOGGER, "x", [("root", SET, "WARN")])), 1),
    "all-brokers": one(alter((LOGGER, "", [("root", SET, "WARN")])), 1),
    "nothing": one(alter((LOGGER, "0", [])), 1),
}

CASES = {
    f"{api}/{name}": case
    for api, cases in {
        "DescribeConfigs": DESCRIBE,
        "AlterConfigs": REPLACE,
        "IncrementalAlterConfigs": INCREMENTAL,
        "IncrementalAlterConfigs of loggers": LOGGERS,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])


def test_every_key_of_kafka_is_known(pair: Pair) -> None:
    pair.begin(Case([], {}))
    kafka, _ = pair.ask(Step(describe((BROKER, "0")), 4))
    names = {config.name for config in kafka.results[0].configs}
    assert len(names) > 300
    assert names - BrokerSettings.KEYS.keys() <= KAFKA_ONLY.keys() | REFUSED.keys()
