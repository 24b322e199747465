"""The options of the source, with the names of Spark's own Kafka source.

Owns parsing, and the refusal of unknown and unsupported options; talks to no broker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plog.errors import ConfigError
from plog.spark.bounds import (
    AT_EARLIEST,
    AT_LATEST,
    BOUNDS,
    STREAM_BOUNDS,
    Bound,
    inverted_bounds,
    json_integer,
    json_object,
    partition_index,
)
from plog.spark.option_values import (
    MISSING_SERVERS,
    SERVERS,
    at_least_0,
    boolean,
    long_time_ms,
    not_empty,
    one_of,
    positive,
    positive_long,
    security_protocol,
    unknown_option,
    with_servers,
)
from plog.types import TopicPartition

SUBSCRIPTIONS = ("subscribe", "assign", "subscribePattern")


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options. Picklable: tasks carry it."""

    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    start: Bound = AT_EARLIEST
    end: Bound = AT_LATEST
    latest_if_no_later_record: bool = False
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    push_filters: bool = False
    plan_attempts: int = 3
    plan_retry_interval_ms: int = 1000
    poll_timeout_ms: int = 120_000
    client_id: str = "plog-spark"
    read_committed: bool = False
    # Measured: larger responses cost more in fresh memory than they save in round trips.
    fetch_max_bytes: int = 4 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    request_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    # Streams only.
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60 * 1000
    commit_group: str | None = None


def wants_headers(options: Mapping[str, str]) -> bool:
    """Tell whether the schema has headers, for batch queries and streams alike.

    Raises:
        ConfigError: includeHeaders is neither true nor false.
    """
    for key, value in options.items():
        if key.lower() == "includeheaders":
            try:
                return bool(boolean(value))
            except ValueError as fault:
                raise ConfigError(f"plog source: includeHeaders: {fault}") from fault
    return False


def parse(options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """Read the options of a batch query, or of a stream.

    If several options set the same end of the range, one is used, in the order of Spark's Kafka
    source: the timestamp, the timestamps per partition, the offsets. The others are ignored.

    Raises:
        ConfigError: lists all faults at once, each with its option.
    """
    given = {key.lower(): value for key, value in with_servers(options).items()}
    supported, bounds = supported_options(streaming=streaming)
    reasons = REFUSED | (REFUSED_IN_STREAMS if streaming else REFUSED_IN_BATCHES)
    refused = {name.lower(): f"{name} {reason}" for name, reason in reasons.items()}
    names = [*supported, *(option for by in bounds.values() for option in by)]
    known = {option.lower() for option in names}
    faults = [_refusal(key, refused, names) for key in given if key not in known]
    values: dict[str, Any] = {"start": AT_LATEST} if streaming else {}

    def take(option: str, field: str, convert: Callable[[str], Any]) -> None:
        try:
            values[field] = convert(given[option.lower()])
        except ValueError as fault:
            faults.append(f"{option}: {fault}")

    for option, (field, convert) in supported.items():
        if option.lower() in given:
            take(option, field, convert)
    for field, by_preference in bounds.items():
        present = [option for option in by_preference if option.lower() in given]
        if present:
            take(present[0], field, by_preference[present[0]])
    if SERVERS not in given:
        faults.append(MISSING_SERVERS)
    subscriptions = [option for option in SUBSCRIPTIONS if option.lower() in given]
    if len(subscriptions) != 1:
        found = f"found {' and '.join(subscriptions)}" if subscriptions else "found none"
        faults.append(f"set exactly one of {', '.join(SUBSCRIPTIONS)} ({found})")
    start, end = values.get("start", Bound()), values.get("end", Bound())
    faults += inverted_bounds("offset", start.offsets, end.offsets)
    faults += inverted_bounds("timestamp", start.timestamps, end.timestamps)
    least, most = values.get("min_offsets_per_trigger"), values.get("max_offsets_per_trigger")
    if least is not None and most is not None and least > most:
        faults.append(f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}")
    if not options:
        faults = [
            "no options arrived: Spark does not pass the options of CREATE TABLE to Python "
            "sources; use CREATE TEMPORARY VIEW"
        ]
    if faults:
        raise ConfigError("plog source: " + "; ".join(faults))
    values.pop("security_protocol", None)
    return SourceOptions(**values)


def supported_options(
    *, streaming: bool
) -> tuple[
    dict[str, tuple[str, Callable[[str], Any]]], dict[str, dict[str, Callable[[str], Bound]]]
]:
    """Return the options of a kind of query, as OPTIONS and BOUNDS list them."""
    if streaming:
        return OPTIONS | STREAM_OPTIONS, STREAM_BOUNDS
    return OPTIONS | BATCH_OPTIONS, BOUNDS


def _refusal(key: str, refused: Mapping[str, str], names: Iterable[str]) -> str:
    if key in refused:
        return refused[key]
    if key.startswith("kafka."):
        supported = ", ".join(option for option in OPTIONS if option.startswith("kafka."))
        return f"{key} is not supported; remove it (supported: {supported})"
    return unknown_option(key, "source", names)


_UNIT_MS: dict[str, float] = {
    "": 1,
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def _duration(text: str) -> int:
    """Read a duration as Spark writes it (15m, 90s, 250); without a unit it is in ms."""
    found = re.fullmatch(r"(\d+)([a-z]*)", text.strip().lower(), re.ASCII)
    if found is None or found[2] not in _UNIT_MS:
        raise ValueError(f"invalid duration {text!r}: use a whole number and us, ms, s, m, h or d")
    return int(int(found[1]) * _UNIT_MS[found[2]])


def _topics(text: str) -> tuple[str, ...]:
    topics = dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip())
    if not topics:
        raise ValueError("no topic given; use topic1,topic2")
    return tuple(topics)


def _pattern(text: str) -> str:
    try:
        return re.compile(not_empty(text)).pattern
    except re.error as fault:
        raise ValueError(f"invalid regular expression {text!r} (Python syntax): {fault}") from fault


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    example = '{"topic": [0, 1]}'
    found: dict[TopicPartition, None] = {}
    for topic, indexes in json_object(text, example).items():
        if not isinstance(indexes, list):
            raise ValueError(f"expected e.g. {example}, not {text}")
        for index in indexes:
            found[TopicPartition(topic, partition_index(str(json_integer(index))))] = None
    if not found:
        raise ValueError(f"no partition given; expected e.g. {example}")
    return tuple(sorted(found))


OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "subscribe": ("topics", _topics),
    "subscribePattern": ("pattern", _pattern),
    "assign": ("assigned", _assignment),
    "startingOffsetsByTimestampStrategy": (
        "latest_if_no_later_record",
        one_of({"error": False, "latest": True}),
    ),
    "failOnDataLoss": ("fail_on_data_loss", boolean),
    "includeHeaders": ("include_headers", boolean),
    "minPartitions": ("min_partitions", positive),
    "maxRecordsPerPartition": ("max_records_per_partition", positive_long),
    "fetchOffset.numRetries": ("plan_attempts", positive),
    "fetchOffset.retryIntervalMs": ("plan_retry_interval_ms", at_least_0),
    "kafkaConsumer.pollTimeoutMs": ("poll_timeout_ms", positive_long),
    "kafka.bootstrap.servers": ("bootstrap_servers", not_empty),
    "kafka.client.id": ("client_id", not_empty),
    "kafka.isolation.level": (
        "read_committed",
        one_of({"read_uncommitted": False, "read_committed": True}),
    ),
    "kafka.fetch.max.bytes": ("fetch_max_bytes", positive),
    "kafka.max.partition.fetch.bytes": ("partition_max_bytes", positive),
    "kafka.fetch.max.wait.ms": ("fetch_max_wait_ms", at_least_0),
    "kafka.request.timeout.ms": ("request_timeout_ms", positive),
    "kafka.retry.backoff.ms": ("retry_backoff_ms", long_time_ms),
    "kafka.security.protocol": ("security_protocol", security_protocol),
}
"""By option: the field of SourceOptions it sets, and the function that reads its text."""

BATCH_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "pushFilters": ("push_filters", boolean),
}
"""Options for batch queries only."""

STREAM_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", positive_long),
    "minOffsetsPerTrigger": ("min_offsets_per_trigger", positive_long),
    "maxTriggerDelay": ("max_trigger_delay_ms", _duration),
    "commitOffsetsToGroup": ("commit_group", not_empty),
}
"""Options for streams only."""

_NO_GROUP = (
    "is not supported: this source reads without a consumer group. To see a stream's lag, set "
    "commitOffsetsToGroup to a group name"
)
REFUSED = {
    "path": 'is not supported: use .option("subscribe", "topic") instead of load(path)',
    "groupIdPrefix": _NO_GROUP,
    "kafka.group.id": _NO_GROUP,
    "kafka.auto.offset.reset": "is not supported: use startingOffsets",
    "kafka.enable.auto.commit": "is not supported: Spark keeps the offsets in its checkpoint",
    "kafka.key.deserializer": "is not supported: keys are binary; use CAST(key AS STRING)",
    "kafka.value.deserializer": "is not supported: values are binary; use CAST(value AS STRING)",
}

REFUSED_IN_BATCHES = dict.fromkeys(STREAM_OPTIONS, "applies to streaming queries only")
REFUSED_IN_STREAMS = dict.fromkeys(
    [*BOUNDS["end"], *BATCH_OPTIONS], "applies to batch queries only"
)
