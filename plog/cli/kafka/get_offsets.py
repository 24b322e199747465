"""kafka-get-offsets: print offsets of partitions by time."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping

from plog.cli.kafka.config import ADDRESS, Clients
from plog.cli.kafka.options import LONG_BITS, Given, OptionFault, Options, java_integer
from plog.cli.kafka.texts import reason
from plog.cli.kafka.topics import topic_pattern
from plog.client.admin import Admin
from plog.client.metadata import TopicInfo
from plog.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from plog.errors import PlogError
from plog.types import NO_OFFSET, TopicPartition

OPTIONS = Options(
    "Print the offsets of partitions by time.",
    """
    --bootstrap-server HOST:PORT  Address of a broker. Required.
    --broker-list HOST:PORT       The old name of --bootstrap-server.
    --command-config FILE         Properties of the client.
    --topic REGEX                 Topics whose names match; all by default.
    --partitions NUMBERS          Only these partitions, such as 0,1.
    --topic-partitions LIST       Topics with partitions, such as a:0,b:0-3,c:5-,d:-3,e.
    --exclude-internal-topics     Leave out internal topics.
    --time TIME                   latest, earliest, max-timestamp or ms since 1970.
    """,
)
EARLIEST_LOCAL, LATEST_TIERED = -4, -5
TIMES = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL,
    "latest-tiered": LATEST_TIERED,
}
TIMES_TEXT = " / ".join(f"{number} or {name}" for name, number in TIMES.items())
RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
Filter = Callable[[str, int], bool]


def run(given: Given) -> int:
    """Run the script; return its exit status."""
    try:
        server = "bootstrap-server" if given.has("bootstrap-server") else "broker-list"
        if not given.has(server):
            raise ValueError("Missing required option(s) [bootstrap-server]")
        if not all(map(ADDRESS.fullmatch, given.text(server).split(","))):
            sys.stderr.write("Please provide valid host:port like host1:9091,host2:9092\n")
            return 1
        wanted = _filter(given)
        time_ms = _time(given.text("time", "latest"))
        with Clients(given, server=server) as clients:
            topics = clients.admin.topics()
            partitions = _partitions(topics, wanted, internal=not _excludes_internal(given))
            if not partitions:
                raise ValueError("Could not match any topic-partitions with the specified filters")
            _print(clients.admin, dict.fromkeys(partitions, time_ms))
    except BrokenPipeError:
        raise
    except OSError as fault:
        sys.stderr.write(f"Error occurred: {fault.filename}: {fault.strerror}\n")
        return 1
    except (OptionFault, PlogError, ValueError) as fault:
        sys.stderr.write(f"Error occurred: {reason(fault)}\n")
        return 1
    return 0


def _excludes_internal(given: Given) -> bool:
    return given.has("exclude-internal-topics")


def _time(text: str) -> int:
    number = TIMES.get(text, java_integer(text, LONG_BITS))
    if number is None:
        raise ValueError(
            f"Malformed time argument {text}. Please use {TIMES_TEXT},"
            " or a specified long format timestamp"
        )
    return number


def _filter(given: Given) -> Filter:
    """Return the function that selects partitions."""
    if given.has("topic-partitions"):
        if given.has("topic") or given.has("partitions"):
            raise ValueError("--topic-partitions cannot be used with --topic or --partitions")
        rules = [_rule(rule) for rule in given.text("topic-partitions").split(",")]
        return lambda topic, number: any(rule(topic, number) for rule in rules)
    pattern = topic_pattern(given.text("topic", ".*"))
    text = given.value("partitions")
    numbers = None
    if text is not None:
        numbers = [java_integer(word) for word in text.split(",")]
        if None in numbers:
            raise ValueError(
                "--partitions expects a comma separated list of numeric partition ids,"
                f" but received: {text}"
            )
    return lambda topic, number: (
        pattern.fullmatch(topic) is not None and (numbers is None or number in numbers)
    )


def _rule(text: str) -> Filter:
    """Read TOPIC, TOPIC:1, TOPIC:1-3, TOPIC:1- or TOPIC:-3; the topic is a regular expression."""
    found = RULE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"org.apache.kafka.tools.TerseException: Invalid rule specification: {text}"
        )
    pattern = topic_pattern(found[1] or ".*")
    single, low, high = (int(group) if group else None for group in found.groups()[1:])

    def selects(topic: str, number: int) -> bool:
        if not pattern.fullmatch(topic):
            return False
        if single is not None:
            return number == single
        return (low is None or number >= low) and (high is None or number < high)

    return selects


def _partitions(
    topics: Mapping[str, TopicInfo], wanted: Filter, *, internal: bool
) -> list[TopicPartition]:
    return sorted(
        TopicPartition(name, number)
        for name, topic in topics.items()
        if internal or not topic.is_internal
        for number in topic.partitions
        if wanted(name, number)
    )


def _print(admin: Admin, times: Mapping[TopicPartition, int]) -> None:
    """Print the offset of each partition; on stderr the partitions whose leader does not answer."""
    found, faults = admin.offsets(times)
    for at in times:
        if at in faults:
            why = reason(faults[at])
            sys.stderr.write(f"Skip getting offsets for topic-partition {at} due to error: {why}\n")
        elif found[at].offset != NO_OFFSET:
            print(f"{at.topic}:{at.partition}:{found[at].offset}")
