"""The options of the sink: those of Spark's own Kafka sink, and a few more.

Owns parsing, and the refusal of unknown and unsupported options; talks to no broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from plog.errors import ConfigError
from plog.protocol.record_batch import CODECS
from plog.spark.option_values import (
    LONG_MAX,
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
from plog.types import is_legal_topic_name

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
DECISIONS_TOPIC = "__plog_spark_decisions"
ID_PREFIX = "plog-spark-"
QUERY_OPTION, RUN_OPTION, BATCH_OPTION = "batchSink.query", "batchSink.run", "batchSink.batch"
"""Options that `BatchSink` sets: the batch of a stream that a batch query writes."""


class StreamBatch(NamedTuple):
    """A batch of a streaming query."""

    query: str
    run: str
    number: int


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options. Picklable: tasks carry it.

    `producer` are arguments of `plog.client.Producer`. `stream_batch` is set in `foreachBatch`.
    """

    bootstrap_servers: str
    topic: str | None = None
    delivery: str = EXACTLY_ONCE
    fail_on_torn_batch: bool = True
    fail_on_changed_batch: bool = True
    checkpoint: str | None = None
    decisions_topic: str = DECISIONS_TOPIC
    id_prefix: str = ID_PREFIX
    client_id: str = "plog-spark"
    request_timeout_ms: int = 30_000
    # The brokers' default limit: a transaction must outlive the other tasks of its batch.
    transaction_timeout_ms: int = 900_000
    producer: Mapping[str, Any] = field(default_factory=dict)
    stream_batch: StreamBatch | None = None


def is_decisions_topic(topic: str) -> bool:
    """Tell whether a topic is a decisions topic: its name begins with the default name."""
    return topic.startswith(DECISIONS_TOPIC)


def _topic(text: str) -> str:
    name = not_empty(text)
    if not is_legal_topic_name(name):
        raise ValueError(
            f"invalid topic name {name!r}: use 1-249 characters from a-z A-Z 0-9 . _ - "
            "(not '.' or '..')"
        )
    return name


class Option(NamedTuple):
    """The function that reads an option, and the field or producer argument that it sets."""

    read: Callable[[str], Any]
    field: str = ""
    is_producers: bool = False


def _producers(read: Callable[[str], Any], argument: str) -> Option:
    return Option(read, argument, is_producers=True)


OPTIONS = {
    "topic": Option(_topic, "topic"),
    "includeHeaders": Option(boolean),  # without effect: a headers column is always written
    "delivery": Option(one_of({one: one for one in (EXACTLY_ONCE, AT_LEAST_ONCE)}), "delivery"),
    "failOnTornBatch": Option(boolean, "fail_on_torn_batch"),
    "failOnChangedBatch": Option(boolean, "fail_on_changed_batch"),
    "checkpointLocation": Option(not_empty, "checkpoint"),
    "decisionsTopic": Option(_topic, "decisions_topic"),
    "transactionalIdPrefix": Option(not_empty, "id_prefix"),
    "kafka.bootstrap.servers": Option(not_empty, "bootstrap_servers"),
    "kafka.client.id": Option(not_empty, "client_id"),
    "kafka.request.timeout.ms": Option(positive, "request_timeout_ms"),
    "kafka.transaction.timeout.ms": Option(positive, "transaction_timeout_ms"),
    "kafka.security.protocol": Option(security_protocol),
    "kafka.acks": _producers(one_of({"all": "all", "-1": "all", "1": "1", "0": "0"}), "acks"),
    "kafka.batch.size": _producers(at_least_0, "batch_size"),
    "kafka.buffer.memory": _producers(positive_long, "buffer_memory"),
    "kafka.compression.type": _producers(one_of({one: one for one in CODECS}), "compression_type"),
    "kafka.delivery.timeout.ms": _producers(positive, "delivery_timeout_ms"),
    "kafka.enable.idempotence": _producers(boolean, "enable_idempotence"),
    "kafka.linger.ms": _producers(long_time_ms, "linger_ms"),
    "kafka.max.block.ms": _producers(long_time_ms, "max_block_ms"),
    "kafka.max.request.size": _producers(positive, "max_request_size"),
    "kafka.metadata.max.age.ms": _producers(long_time_ms, "metadata_max_age_ms"),
    "kafka.retry.backoff.ms": _producers(long_time_ms, "retry_backoff_ms"),
}
BATCH_OPTIONS = {
    QUERY_OPTION: Option(not_empty, "query"),
    RUN_OPTION: Option(not_empty, "run"),
    BATCH_OPTION: Option(partial(at_least_0, most=LONG_MAX), "number"),
}
"""Set together, and by `BatchSink` only."""
SPARK_OPTIONS = frozenset({"queryname"})
"""Options of the query, which Spark passes together with the sink's."""
REFUSED = {
    "kafka.transactional.id": "is not supported: the sink makes the ids; set their prefix with "
    "transactionalIdPrefix",
    "kafka.key.serializer": "is not supported: keys are written as bytes",
    "kafka.value.serializer": "is not supported: values are written as bytes",
    "kafka.partitioner.class": "is not supported: keys are partitioned as by Java's default "
    "partitioner; add a column `partition` to choose partitions yourself",
    "path": "is not supported: use the option topic, or a column topic, instead of save(path)",
}


def parse(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink.

    Raises:
        ConfigError: lists all faults at once, each with its option.
    """
    known = {name.lower(): (name, option) for name, option in {**OPTIONS, **BATCH_OPTIONS}.items()}
    values: dict[str, Any] = {}
    stream_batch: dict[str, Any] = {}
    producer: dict[str, Any] = {}
    faults: list[str] = []
    options = with_servers(options)
    for key, text in options.items():
        if key.lower() in SPARK_OPTIONS:
            continue
        if key.lower() not in known:
            refused = REFUSED.get(key.lower())
            faults.append(f"{key} {refused}" if refused else unknown_option(key, "sink", OPTIONS))
            continue
        name, option = known[key.lower()]
        try:
            value = option.read(text)
        except ValueError as fault:
            faults.append(f"{name}: {fault}")
            continue
        if name in BATCH_OPTIONS:
            stream_batch[option.field] = value
        elif option.field:
            (producer if option.is_producers else values)[option.field] = value
    if stream_batch and len(stream_batch) < len(BATCH_OPTIONS):
        faults.append(f"{', '.join(BATCH_OPTIONS)} belong together: only BatchSink sets them")
    if SERVERS not in {key.lower() for key in options}:
        faults.append(MISSING_SERVERS)
    if values.get("delivery", EXACTLY_ONCE) == EXACTLY_ONCE:
        if producer.get("acks", "all") != "all":
            faults.append(
                f"kafka.acks={producer['acks']} conflicts with exactly-once delivery; use "
                f"kafka.acks=all, or delivery={AT_LEAST_ONCE}"
            )
        if not producer.get("enable_idempotence", True):
            faults.append(
                "kafka.enable.idempotence=false conflicts with exactly-once delivery; remove it, "
                f"or use delivery={AT_LEAST_ONCE}"
            )
    elif producer.get("acks", "all") != "all" and producer.setdefault("enable_idempotence", False):
        faults.append(
            f"kafka.enable.idempotence=true requires kafka.acks=all, not {producer['acks']}"
        )
    if faults:
        raise ConfigError("plog sink: " + "; ".join(faults))
    if stream_batch:
        values["stream_batch"] = StreamBatch(**stream_batch)
    return SinkOptions(**values, producer=producer)
