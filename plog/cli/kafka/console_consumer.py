"""kafka-console-consumer: print the records of topics."""

from __future__ import annotations

import random
import sys
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

from plog.cli.kafka.config import ClientFault, ClientProperties, pairs, read_file
from plog.cli.kafka.options import LONG_BITS, Given, OptionFault, Options, UsageFault, java_integer
from plog.cli.kafka.record_formats import DEFAULT_CLASS, Formatter, formatter
from plog.cli.kafka.topics import topic_pattern
from plog.client.consumer import Consumer, ConsumerRecord
from plog.client.group_consumer import GroupConsumer
from plog.errors import PlogError, UnknownTopicOrPartition
from plog.types import TopicPartition

OPTIONS = Options(
    "Print the records of topics.",
    """
    --bootstrap-server HOST:PORT  Address of a broker. Required.
    --topic TOPIC                 The topic.
    --include REGEX               Topics whose names match. In place of --topic.
    --whitelist REGEX             The old name of --include.
    --partition NUMBER            Read only this partition.
    --offset OFFSET               Start there: an offset, earliest or latest. With --partition.
    --from-beginning              Start at the first record, unless the group has offsets.
    --max-messages NUMBER         Stop after this number of records.
    --timeout-ms MS               Stop when no record has come for this time.
    --group GROUP                 The consumer group.
    --isolation-level LEVEL       read_committed or read_uncommitted.
    --property NAME=VALUE         Property of the formatter, such as print.key=true. Repeatable.
    --formatter CLASS             Class of the formatter.
    --formatter-config FILE       Properties of the formatter.
    --key-deserializer CLASS      Class that decodes keys.
    --value-deserializer CLASS    Class that decodes values.
    --skip-message-on-error       Skip records that the formatter cannot print.
    --consumer-property NAME=VALUE  Property of the consumer. Repeatable.
    --consumer.config FILE        Properties of the consumer.
    --enable-systest-events       Report the end on stdout.
    """,
)
POLL_MS = 1000
ENDS = ("earliest", "latest")


class Source(Protocol):
    """The reader of the records: a member of a group, or a consumer of one partition."""

    def poll(self, timeout_ms: int) -> list[ConsumerRecord]:
        """Return records as soon as there are any."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position of the next poll."""


def run(given: Given) -> int:
    """Run the script; return its exit status."""
    _check(given)
    properties = _consumer_properties(given)
    shown = _formatter(given)
    arguments = properties.group_arguments()
    printing = _Printing(shown, skips=given.has("skip-message-on-error"))
    fault: Exception | None = None
    try:
        timeout_ms = given.integer("timeout-ms", bits=LONG_BITS)
        with _open(given, properties, arguments) as source:
            printing.run(source, given.integer("max-messages"), timeout_ms)
    except (OptionFault, PlogError, ValueError) as error:
        fault = error
    finally:
        sys.stdout.flush()
        sys.stderr.write(f"Processed a total of {printing.count} messages\n")
        if given.has("enable-systest-events"):
            print("shutdown_complete")
    if isinstance(fault, ClientFault):
        raise fault
    if fault is not None:
        sys.stderr.write(f"{fault}\n")
    return 0 if fault is None else 1


def _check(given: Given) -> None:
    """Raise UsageFault if the options do not fit together."""
    patterns = [one for one in ("include", "whitelist") if given.has(one)]
    if given.has("topic") == bool(patterns):
        raise UsageFault("Exactly one of --include/--topic is required. ")
    if given.has("partition"):
        if patterns:
            raise UsageFault("The topic is required when partition is specified.")
        if given.has("group"):
            raise UsageFault("Options group and partition cannot be specified together.")
    if given.has("offset"):
        if not given.has("partition"):
            raise UsageFault("The partition is required when offset is specified.")
        if given.has("from-beginning"):
            raise UsageFault("Options from-beginning and offset cannot be specified together.")
        offset = given.text("offset")
        number = java_integer(offset, LONG_BITS)
        if offset.lower() not in ENDS and (number is None or number < 0):
            raise UsageFault(
                f"The provided offset value '{offset}' is incorrect."
                " Valid values are 'earliest', 'latest', or a non-negative long."
            )
    given.require("bootstrap-server")


# -- the consumer ------------------------------------------------------------------------------


def _consumer_properties(given: Given) -> ClientProperties:
    path = given.value("consumer.config")
    in_file = {} if path is None else read_file(path)
    on_line = pairs(given.values("consumer-property"))
    option = given.value("group")
    groups = {
        group
        for group in (option, on_line.get("group.id"), in_file.get("group.id"))
        if group is not None
    }
    if len(groups) > 1:
        named = ", ".join(f"'{group}'" for group in sorted(groups))
        raise UsageFault(
            "The group ids provided in different places (directly using '--group',"
            " via '--consumer-property', or via '--consumer.config') do not match."
            f" Detected group ids: {named}"
        )
    properties = {**in_file, **on_line}
    properties["bootstrap.servers"] = given.text("bootstrap-server")
    if given.has("isolation-level"):
        properties["isolation.level"] = given.text("isolation-level")
    properties.setdefault("client.id", "console-consumer")
    for group in groups:
        properties["group.id"] = group
    reset = properties.get("auto.offset.reset")
    if given.has("from-beginning"):
        if reset not in (None, "earliest"):
            raise UsageFault(
                "Can't simultaneously specify --from-beginning and"
                f" 'auto.offset.reset={reset}', please remove one option"
            )
        properties["auto.offset.reset"] = "earliest"
    return ClientProperties(properties, "Failed to construct kafka consumer")


def _open(
    given: Given, properties: ClientProperties, arguments: dict[str, Any]
) -> AbstractContextManager[Source]:
    if given.has("partition"):
        return _Partition(given, properties)
    group = properties.text("group.id", "")
    if not group:
        # A group of its own, which nothing is committed for.
        group = f"console-consumer-{random.randrange(100_000)}"
        arguments["enable_auto_commit"] = False
    consumer = GroupConsumer(properties.servers, group, **arguments)
    topic = given.value("topic")
    pattern = given.text("include", given.text("whitelist"))
    consumer.subscribe([topic] if topic is not None else topic_pattern(pattern))
    return consumer


class _Partition:
    """Reads one partition from an offset. Waits for a partition that does not exist yet."""

    def __init__(self, given: Given, properties: ClientProperties) -> None:
        number = given.integer("partition")
        assert number is not None
        self._at = TopicPartition(given.text("topic"), number)
        start = "earliest" if given.has("from-beginning") else given.text("offset", "latest")
        self._offset = java_integer(start, LONG_BITS)
        arguments: dict[str, Any] = properties.reader_arguments()
        if self._offset is None:
            arguments["auto_offset_reset"] = start.lower()
        self._consumer = Consumer(properties.servers, **arguments)
        self._consumer.assign([self._at])
        if self._offset is not None:
            self._consumer.seek(self._at, self._offset)

    def __enter__(self) -> _Partition:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def poll(self, timeout_ms: int) -> list[ConsumerRecord]:
        begun = time.monotonic()
        try:
            return self._consumer.poll(timeout_ms)
        except UnknownTopicOrPartition:
            left_s = timeout_ms / 1000 - (time.monotonic() - begun)
            time.sleep(max(min(left_s, 0.1), 0))
            return []

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(partition, offset)


# -- output ------------------------------------------------------------------------------------


def _formatter(given: Given) -> Formatter:
    path = given.value("formatter-config")
    properties = {} if path is None else read_file(path)
    properties.update(pairs(given.values("property")))
    for name in ("key", "value"):
        if given.has(f"{name}-deserializer"):
            properties[f"{name}.deserializer"] = given.text(f"{name}-deserializer")
    return formatter(given.text("formatter", DEFAULT_CLASS), properties)


class _Printing:
    """Prints records up to a number, or until none comes; `count` is the number of them."""

    def __init__(self, shown: Formatter, *, skips: bool) -> None:
        self._formatter = shown
        self._skips = skips
        self.count = 0

    def run(self, source: Source, most: int | None, timeout_ms: int | None) -> None:
        """Print the records of a source.

        Args:
            most: maximum number of records; None for all.
            timeout_ms: how long to wait for a record; None for ever.

        Raises:
            ValueError: a record cannot be printed.
        """
        limit = most if most is not None and most >= 0 else None
        while limit is None or self.count < limit:
            found = _poll(source, timeout_ms)
            if not found:
                sys.stderr.write(
                    "ERROR Error processing message, terminating consumer process:"
                    f" no record for {timeout_ms} ms\n"
                )
                break
            for number, record in enumerate(found):
                if self.count == limit:
                    # The next run of the group prints the others.
                    _go_back(source, found[number:])
                    break
                self._print(source, record, found[number + 1 :])
            sys.stdout.buffer.flush()

    def _print(self, source: Source, record: ConsumerRecord, after: list[ConsumerRecord]) -> None:
        self.count += 1
        try:
            sys.stdout.buffer.write(self._formatter.format(record))
        except ValueError as fault:
            if not self._skips:
                _go_back(source, after)
                raise
            at = f"{record.topic}-{record.partition} at offset {record.offset}"
            sys.stderr.write(f"ERROR Error processing message, skipping {at}: {fault}\n")


def _poll(source: Source, timeout_ms: int | None) -> list[ConsumerRecord]:
    """Return records, or [] after the timeout."""
    has_timeout = timeout_ms is not None and timeout_ms >= 0
    deadline = time.monotonic() + (timeout_ms or 0) / 1000
    while True:
        left_ms = int((deadline - time.monotonic()) * 1000)
        found = source.poll(min(POLL_MS, max(left_ms, 0)) if has_timeout else POLL_MS)
        if found or (has_timeout and time.monotonic() >= deadline):
            return found


def _go_back(source: Source, records: list[ConsumerRecord]) -> None:
    """Set the positions to the first of these records in each partition."""
    first: dict[TopicPartition, int] = {}
    for record in records:
        first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    for partition, offset in first.items():
        source.seek(partition, offset)
