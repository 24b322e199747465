"""Settings of consumer groups beside Kafka 4.1: described, altered, replaced, listed and obeyed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.compat.against_kafka.ask import (
    APPEND,
    DELETE,
    GROUP,
    SET,
    SUBTRACT,
    TOPIC,
    alter,
    describe,
    replace,
)
from tests.compat.against_kafka.pair import Case, Step
from tests.compat.against_kafka_4.steps import beat, config_resources, join

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
LOGGER, CLIENT_METRICS = 8, 16
KEYS = [SESSION, INTERVAL]
SHOWN = Step(describe((GROUP, "g"), keys=KEYS), 4, settles=True)
LISTED = config_resources(GROUP)._replace(settles=True)
"""Kafka's broker hears of changes by and by."""


def changed(*changes: tuple[str, int, str | None]) -> Step:
    return Step(alter((GROUP, "g", changes)), 1)


DESCRIBE = {
    **{f"version-{version}": [Step(describe((GROUP, "g"), keys=KEYS), version)]
        for version in range(1, 5)},
    "all-keys": [Step(describe((GROUP, "g")), 4)],
    "synonyms": [Step(describe((GROUP, "g"), keys=KEYS, synonyms=True), 4),
        changed((SESSION, SET, "50000")),
        Step(describe((GROUP, "g"), keys=KEYS, synonyms=True, documentation=True), 4,
            settles=True)],
    "unknown-keys": [Step(describe((GROUP, "g"), keys=["no", "retention.ms", SESSION]), 4)],
    "empty-name": [Step(describe((GROUP, "")), 4)],
    "two": [changed((SESSION, SET, "50000")),
        Step(describe((GROUP, "g"), (GROUP, "h"), (TOPIC, "t"), keys=[SESSION]), 4,
            settles=True)],
}  # fmt: skip

BAD_CHANGES: dict[str, tuple[tuple[str, int, str | None], ...]] = {
    "below-the-least": ((SESSION, SET, "44999"),),
    "above-the-most": ((SESSION, SET, "60001"),),
    "interval-below-the-least": ((INTERVAL, SET, "4999"),),
    "interval-above-the-most": ((INTERVAL, SET, "15001"),),
    "zero": ((SESSION, SET, "0"),),
    "no-number": ((SESSION, SET, "soon"),),
    "empty-value": ((SESSION, SET, ""),),
    "too-large-a-number": ((SESSION, SET, "5000000000"),),
    "no-value": ((SESSION, SET, None),),
    "unknown-key": (("no", SET, "1"),),
    "key-of-a-topic": (("retention.ms", SET, "1"),),
    "key-of-a-broker": (("group.consumer.session.timeout.ms", SET, "50000"),),
    "appended": ((SESSION, APPEND, "50000"),),
    "subtracted": ((SESSION, SUBTRACT, "50000"),),
    "unknown-key-appended": (("no", APPEND, "1"),),
    "unknown-operation": ((SESSION, 9, "50000"),),
    "key-twice": ((SESSION, SET, "50000"), (SESSION, SET, "51000")),
    "good-and-bad": ((SESSION, SET, "50000"), (INTERVAL, SET, "1")),
}
ALTER = {
    "set": [changed((SESSION, SET, "50000"), (INTERVAL, SET, "6000")), SHOWN, LISTED],
    "bounds": [changed((SESSION, SET, "45000"), (INTERVAL, SET, "15000")), SHOWN,
        changed((SESSION, SET, "60000"), (INTERVAL, SET, "5000")), SHOWN],
    "spaces": [changed((SESSION, SET, " 50000 ")), SHOWN],
    "version-0": [Step(alter((GROUP, "g", [(SESSION, SET, "50000")])), 0), SHOWN],
    "deleted": [changed((SESSION, SET, "50000"), (INTERVAL, SET, "6000")),
        changed((SESSION, DELETE, None)), SHOWN],
    "deleted-that-is-not-there": [changed((SESSION, DELETE, None)), changed(("no", DELETE, None)),
        SHOWN, LISTED],
    "all-deleted": [changed((SESSION, SET, "50000")), changed((SESSION, DELETE, None)), SHOWN,
        LISTED],
    "nothing": [changed(), SHOWN, LISTED],
    "validated": [Step(alter((GROUP, "g", [(SESSION, SET, "50000")]), validate_only=True), 1),
        Step(alter((GROUP, "g", [(SESSION, SET, "1")]), validate_only=True), 1), SHOWN, LISTED],
    "empty-name": [Step(alter((GROUP, "", [(SESSION, SET, "50000")])), 1)],
    "same-group-twice": [Step(alter((GROUP, "g", [(SESSION, SET, "50000")]),
        (GROUP, "g", [(INTERVAL, SET, "6000")])), 1), SHOWN],
    "two-groups": [Step(alter((GROUP, "g", [(SESSION, SET, "50000")]),
        (GROUP, "h", [(SESSION, SET, "1")])), 1), SHOWN, LISTED],
    **{name: [changed(*changes), SHOWN, LISTED] for name, changes in BAD_CHANGES.items()},
}  # fmt: skip

REPLACE = {
    "set": [changed((SESSION, SET, "50000")),
        *(Step(replace((GROUP, "g", {INTERVAL: str(value)})), version)
            for version, value in enumerate((6000, 7000, 8000))), SHOWN],
    "nothing": [changed((SESSION, SET, "50000")), Step(replace((GROUP, "g", {})), 2), SHOWN,
        LISTED],
    "no-value": [Step(replace((GROUP, "g", {SESSION: None})), 2)],
    "beyond": [Step(replace((GROUP, "g", {SESSION: "1"})), 2)],
    "unknown-key": [Step(replace((GROUP, "g", {"no": "1"})), 2)],
    "empty-name": [Step(replace((GROUP, "", {})), 2)],
    "validated": [Step(replace((GROUP, "g", {SESSION: "50000"}), validate_only=True), 2), SHOWN],
}  # fmt: skip

LIST = {
    "nothing": [config_resources(GROUP)],
    "group": [
        changed((SESSION, SET, "50000")),
        *(
            config_resources(*types)
            for types in ((GROUP,), (GROUP, CLIENT_METRICS), (GROUP, GROUP))
        ),
    ],
    "client-metrics": [config_resources(CLIENT_METRICS), config_resources(version=0)],
    "topics": [config_resources(TOPIC)],
    "brokers": [config_resources(4)],
    "loggers": [config_resources(LOGGER)],
    "unknown-type": [config_resources(99), config_resources(GROUP, 99), config_resources(0)],
}

BEAT = beat("a")._replace(settles=True)
OBEYED = {
    "interval": [join("a"), changed((INTERVAL, SET, "6000")), BEAT, join("b"),
        join("c", group="h"), changed((INTERVAL, DELETE, None)), BEAT],
    "interval-of-a-group-to-come": [changed((INTERVAL, SET, "6000")),
        join("a")._replace(settles=True), BEAT],
}  # fmt: skip

CASES = {
    f"{api}/{name}": Case(steps)
    for api, cases in {
        "DescribeConfigs of a group": DESCRIBE,
        "IncrementalAlterConfigs of a group": ALTER,
        "AlterConfigs of a group": REPLACE,
        "ListConfigResources": LIST,
        "Settings of a group": OBEYED,
    }.items()
    for name, steps in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_kafka(hold: Callable[[str, Case], None], name: str) -> None:
    hold(name, CASES[name])
