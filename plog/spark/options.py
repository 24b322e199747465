"""The options of the source, by the names that Spark's own Kafka source gives them.

Owns parsing and the refusal of what is unknown or not served; talks to no broker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plog.errors import ConfigError
from plog.types import TopicPartition

LATEST, EARLIEST = -1, -2
"""In JSON of offsets: the end and the start of a partition."""

SUBSCRIPTIONS = ("subscribe", "assign", "subscribePattern")


@dataclass(frozen=True)
class Bound:
    """One end of the range to read.

    Exactly one of the four says where: `named` (LATEST or EARLIEST) for all partitions, `offsets`
    per partition, `timestamp` (ms) for all, `timestamps` per partition.
    """

    named: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None
    timestamps: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True)
class SourceOptions:
    """What the user asked for, parsed. Picklable: tasks carry it."""

    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    start: Bound = Bound(named=EARLIEST)
    end: Bound = Bound(named=LATEST)
    latest_if_no_later_record: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    plan_attempts: int = 3
    plan_retry_interval_ms: int = 1000
    poll_timeout_ms: int = 120_000
    client_id: str = "plog-spark"
    read_committed: bool = False
    # Measured: larger answers cost more in fresh memory than they save in round trips.
    fetch_max_bytes: int = 4 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of a batch query.

    Of several options for the same end of the range, one counts, in the order of Spark's Kafka
    source: the timestamp, the timestamps per partition, the offsets; the others are not looked at.

    Raises:
        ConfigError: all faults at once, each naming its option.
    """
    given = {key.lower(): value for key, value in options.items()}
    faults = [_refusal(key) for key in given if key not in _KNOWN]
    values: dict[str, Any] = {}

    def take(option: str, field: str, convert: Callable[[str], Any]) -> None:
        try:
            values[field] = convert(given[option.lower()])
        except ValueError as fault:
            faults.append(f"{option}: {fault}")

    for option, (field, convert) in OPTIONS.items():
        if option.lower() in given:
            take(option, field, convert)
    for field, by_preference in BOUNDS.items():
        present = [option for option in by_preference if option.lower() in given]
        if present:
            take(present[0], field, by_preference[present[0]])
    if "kafka.bootstrap.servers" not in given:
        faults.append("kafka.bootstrap.servers must be set, to host:port of a broker")
    if sum(option.lower() in given for option in SUBSCRIPTIONS) != 1:
        faults.append(f"exactly one of {', '.join(SUBSCRIPTIONS)} must be set")
    start, end = values.get("start", Bound()), values.get("end", Bound())
    faults += _crossed("offset", start.offsets, end.offsets)
    faults += _crossed("timestamp", start.timestamps, end.timestamps)
    if faults:
        raise ConfigError("plog source: " + "; ".join(faults))
    values.pop("security_protocol", None)
    return SourceOptions(**values)


def _crossed(
    what: str,
    starts: Mapping[TopicPartition, int] | None,
    ends: Mapping[TopicPartition, int] | None,
) -> list[str]:
    return [
        f"the starting {what} {starts[partition]} of {partition} is above the ending one, {end}"
        for partition, end in (ends or {}).items()
        if starts is not None and 0 <= end < starts.get(partition, end)
    ]


def _refusal(key: str) -> str:
    if key in REFUSED:
        return f"{key} {REFUSED[key]}"
    if key.startswith("kafka."):
        served = ", ".join(option for option in OPTIONS if option.startswith("kafka."))
        return f"{key} is not supported; of the client's settings there are {served}"
    return f"{key} is not an option of this source"


def _whole(value: object) -> int:
    # JSON numbers only: true and 1.5 are no offsets, and neither is "7".
    if type(value) is not int:
        raise ValueError(f"{json.dumps(value)} is not a whole number")
    return value


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _positive(text: str) -> int:
    value = _number(text)
    if value <= 0:
        raise ValueError(f"{value} is not above 0")
    return value


def _not_negative(text: str) -> int:
    value = _number(text)
    if value < 0:
        raise ValueError(f"{value} is below 0")
    return value


def _one_of(**choices: Any) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return choices[word]

    return convert


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text.strip()


def _topics(text: str) -> tuple[str, ...]:
    topics = dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip())
    if not topics:
        raise ValueError("names no topic")
    return tuple(topics)


def _pattern(text: str) -> str:
    try:
        return re.compile(_not_empty(text)).pattern
    except re.error as fault:
        raise ValueError(f"{text!r} is no regular expression: {fault}") from fault


def _json_object(text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as fault:
        raise ValueError(f"no JSON ({fault}); expected is {example}") from fault
    if not isinstance(parsed, dict):
        raise ValueError(f"expected is {example}, not {text}")
    return parsed


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    example = '{"topic": [0, 1]}'
    found = {}
    for topic, indexes in _json_object(text, example).items():
        if not isinstance(indexes, list):
            raise ValueError(f"expected is {example}, not {text}")
        found.update(dict.fromkeys(TopicPartition(topic, _whole(index)) for index in indexes))
    if not found:
        raise ValueError("names no partition")
    return tuple(sorted(found))


def _per_partition(text: str) -> dict[TopicPartition, int]:
    example = '{"topic": {"0": 23, "1": 42}}'
    found = {}
    for topic, partitions in _json_object(text, example).items():
        if not isinstance(partitions, dict):
            raise ValueError(f"expected is {example}, not {text}")
        for index, value in partitions.items():
            if not index.isdecimal():
                raise ValueError(f"{index!r} is no partition")
            found[TopicPartition(topic, int(index))] = _whole(value)
    return found


def _offsets(name: str, allowed: int, forbidden: int) -> Callable[[str], Bound]:
    words = {"latest": LATEST, "earliest": EARLIEST}

    def convert(text: str) -> Bound:
        word = text.strip().lower()
        if words.get(word) == allowed:
            return Bound(named=allowed)
        if word in words:
            raise ValueError(f"a batch query cannot {name} at {word}")
        offsets = _per_partition(text)
        for partition, offset in offsets.items():
            if offset == forbidden or offset < EARLIEST:
                raise ValueError(f"a batch query cannot {name} at {offset} of {partition}")
        return Bound(offsets=offsets)

    return convert


def _timestamp(text: str) -> Bound:
    return Bound(timestamp=_not_negative(text))


def _timestamps(text: str) -> Bound:
    timestamps = _per_partition(text)
    for partition, timestamp in timestamps.items():
        if timestamp < 0:
            raise ValueError(f"{timestamp} of {partition} is below 0")
    return Bound(timestamps=timestamps)


BOUNDS: dict[str, dict[str, Callable[[str], Bound]]] = {
    "start": {
        "startingTimestamp": _timestamp,
        "startingOffsetsByTimestamp": _timestamps,
        "startingOffsets": _offsets("start", EARLIEST, LATEST),
    },
    "end": {
        "endingTimestamp": _timestamp,
        "endingOffsetsByTimestamp": _timestamps,
        "endingOffsets": _offsets("end", LATEST, EARLIEST),
    },
}
"""The options of each end of the range, in the order of their precedence."""

OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "subscribe": ("topics", _topics),
    "subscribePattern": ("pattern", _pattern),
    "assign": ("assigned", _assignment),
    "startingOffsetsByTimestampStrategy": (
        "latest_if_no_later_record",
        _one_of(error=False, latest=True),
    ),
    "failOnDataLoss": ("fail_on_data_loss", _one_of(true=True, false=False)),
    "includeHeaders": ("include_headers", _one_of(true=True, false=False)),
    "minPartitions": ("min_partitions", _positive),
    "maxRecordsPerPartition": ("max_records_per_partition", _positive),
    "fetchOffset.numRetries": ("plan_attempts", _positive),
    "fetchOffset.retryIntervalMs": ("plan_retry_interval_ms", _not_negative),
    "kafkaConsumer.pollTimeoutMs": ("poll_timeout_ms", _positive),
    "kafka.bootstrap.servers": ("bootstrap_servers", _not_empty),
    "kafka.client.id": ("client_id", _not_empty),
    "kafka.isolation.level": (
        "read_committed",
        _one_of(read_uncommitted=False, read_committed=True),
    ),
    "kafka.fetch.max.bytes": ("fetch_max_bytes", _positive),
    "kafka.max.partition.fetch.bytes": ("partition_max_bytes", _positive),
    "kafka.fetch.max.wait.ms": ("fetch_max_wait_ms", _not_negative),
    "kafka.request.timeout.ms": ("request_timeout_ms", _positive),
    "kafka.retry.backoff.ms": ("retry_backoff_ms", _not_negative),
    "kafka.security.protocol": ("security_protocol", _one_of(plaintext="PLAINTEXT")),
}
"""By option: the field of SourceOptions it sets, and how its text is read."""

REFUSED = {
    "path": "is not served: name topics by subscribe, not by load(path)",
    "maxoffsetspertrigger": "has a meaning for streaming queries only",
    "minoffsetspertrigger": "has a meaning for streaming queries only",
    "maxtriggerdelay": "has a meaning for streaming queries only",
    "groupidprefix": "is not supported: this source reads without a consumer group",
    "kafka.group.id": "is not supported: this source reads without a consumer group",
    "kafka.auto.offset.reset": "is not supported: say startingOffsets",
    "kafka.enable.auto.commit": "is not supported: this source commits no offsets",
    "kafka.key.deserializer": "is not supported: keys are binary, cast them",
    "kafka.value.deserializer": "is not supported: values are binary, cast them",
}

_KNOWN = {option.lower() for option in OPTIONS} | {
    option.lower() for by_preference in BOUNDS.values() for option in by_preference
}
