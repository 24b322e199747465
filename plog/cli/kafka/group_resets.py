"""The new offsets that kafka-consumer-groups plans for a group."""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from plog.cli.kafka.config import Clients
from plog.cli.kafka.java_times import date_time_ms, duration_ms
from plog.cli.kafka.options import LONG_BITS, Given, UsageFault, java_integer, number_fault
from plog.types import NO_OFFSET, TopicPartition

SCENARIOS = (
    "to-offset",
    "to-datetime",
    "by-duration",
    "to-earliest",
    "to-latest",
    "to-current",
    "shift-by",
    "from-file",
)
SCENARIO_TEXT = (
    "[to-offset], [to-current], [to-datetime], [from-file],"
    " [by-duration], [to-earliest], [to-latest], [shift-by]"
)
Offsets = dict[TopicPartition, int]


def plan(given: Given, clients: Clients, group: str) -> Offsets:
    """Return a group's new offsets.

    Raises:
        UsageFault: no scope, or no scenario.
        ValueError: a value cannot be read.
        KafkaError: a topic does not exist, or a broker does not answer.
    """
    if given.has("from-file"):
        return _from_file(given, clients, group)
    partitions = _scope(given, clients, group)
    if given.has("to-offset"):
        offset = given.integer("to-offset", bits=LONG_BITS)
        assert offset is not None
        return _within(clients, dict.fromkeys(partitions, offset))
    if given.has("shift-by"):
        return _shifted(given, clients, group, partitions)
    if given.has("to-datetime"):
        return _at(clients, partitions, date_time_ms(given.text("to-datetime")))
    if given.has("by-duration"):
        back = duration_ms(given.text("by-duration"))
        return _at(clients, partitions, int(time.time() * 1000) - back)
    bounds = clients.groups.bounds(partitions)
    if given.has("to-earliest"):
        return {at: start for at, (start, _) in bounds.items()}
    if given.has("to-latest"):
        return {at: end for at, (_, end) in bounds.items()}
    if given.has("to-current"):
        committed = clients.groups.committed(group)
        return {at: committed.get(at, bounds[at][1]) for at in partitions}
    raise UsageFault(
        f"Option '[reset-offsets]' requires one of the following scenarios: [{SCENARIO_TEXT}]"
    )


def _scope(given: Given, clients: Clients, group: str) -> list[TopicPartition]:
    """Return the partitions whose offsets change."""
    if given.has("all-topics"):
        return sorted(clients.groups.committed(group))
    if not given.has("topic"):
        raise UsageFault("One of the reset scopes should be defined: --all-topics, --topic.")
    found: list[TopicPartition] = []
    for entry in given.values("topic"):
        topic, numbers = topic_entry(entry)
        if numbers:
            found += [TopicPartition(topic, number) for number in numbers]
        else:
            found += clients.groups.partitions_of(topic)
    return found


def topic_entry(entry: str) -> tuple[str, list[int]]:
    """Read TOPIC or TOPIC:0,1,2.

    Raises:
        ValueError: a partition is not a number.
    """
    topic, colon, text = entry.partition(":")
    if not colon:
        return topic, []
    numbers = []
    for word in text.split(","):
        number = java_integer(word)
        if number is None:
            number_fault(word)
        numbers.append(number)
    return topic, numbers


def _shifted(
    given: Given, clients: Clients, group: str, partitions: Iterable[TopicPartition]
) -> Offsets:
    shift = given.integer("shift-by", bits=LONG_BITS)
    assert shift is not None
    committed = clients.groups.committed(group)
    wanted = {}
    for at in partitions:
        if at not in committed:
            raise UsageFault(
                f"Cannot shift offset for partition {at} since there is no current committed offset"
            )
        wanted[at] = committed[at] + shift
    return _within(clients, wanted)


def _at(clients: Clients, partitions: list[TopicPartition], time_ms: int) -> Offsets:
    """Return the first offsets at or after a time; the ends where no record is that late."""
    found = clients.groups.offsets_at(partitions, max(time_ms, 0))
    late = [at for at, offset in found.items() if offset == NO_OFFSET]
    ends = clients.groups.bounds(late)
    for at in late:
        print(
            f"\nWarn: Partition {at.partition} from topic {at.topic} is empty."
            " Falling back to latest known offset."
        )
        found[at] = ends[at][1]
    return found


def _within(clients: Clients, wanted: Mapping[TopicPartition, int]) -> Offsets:
    """Return offsets within the bounds of their partitions; warn of those outside."""
    found = {}
    for at, (start, end) in clients.groups.bounds(wanted).items():
        offset = wanted[at]
        if offset > end:
            _warn(f"New offset ({offset}) is higher than latest offset", at, end)
        elif offset < start:
            _warn(f"New offset ({offset}) is lower than earliest offset", at, start)
        found[at] = min(max(offset, start), end)
    return found


def _warn(text: str, at: TopicPartition, offset: int) -> None:
    sys.stderr.write(f"WARN {text} for topic partition {at}. Value will be set to {offset}\n")


# -- CSV ---------------------------------------------------------------------------------------


def _from_file(given: Given, clients: Clients, group: str) -> Offsets:
    """Read offsets from rows of topic, partition and offset, with or without a group first."""
    path = given.text("from-file")
    try:
        text = Path(path).read_text("utf-8")
    except OSError as fault:
        raise ValueError(f"java.io.IOException: Unable to read file {path}") from fault
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    wanted = {}
    for row in rows:
        named = row if len(row) > 3 else [group, *row]
        if len(named) != 4 or None in (java_integer(named[2]), java_integer(named[3], LONG_BITS)):
            raise ValueError(
                f"{path}: expected topic,partition,offset or group,topic,partition,offset,"
                f" not {','.join(row)!r}"
            )
        if named[0] == group:
            wanted[TopicPartition(named[1], int(named[2]))] = int(named[3])
    return _within(clients, wanted)


def to_csv(planned: Mapping[str, Offsets]) -> str:
    """Return offsets as CSV; with the groups' names if there are several."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    for group, offsets in planned.items():
        first = [group] if len(planned) > 1 else []
        for at, offset in sorted(offsets.items()):
            rows.writerow([*first, at.topic, at.partition, offset])
    return written.getvalue()
