"""`plog topics describe` and `plog topics offsets`: partitions, settings and offsets of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from plog.cli.offset_places import EARLIEST, LATEST, MAX_TIMESTAMP, complete_names
from plog.cli.output import (
    MAX_LISTED,
    MOST_NAMED,
    bootstrap_option,
    distinct,
    each,
    json_option,
    print_columns,
    print_found,
    print_objects,
    print_rows,
    raise_all,
    say,
    time_ms,
    time_text,
    topic_partitions,
)
from plog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from plog.client.admin import Admin, ConfigEntry
    from plog.client.metadata import TopicInfo
    from plog.errors import KafkaError

PARTITION_COLUMNS = ["Partition", "Leader", "Epoch", "Replicas", "ISR", "Start", "End", "Bytes"]
SETTING_COLUMNS = ["Setting", "Value", "Source"]
OFFSET_COLUMNS = ["Topic", "Partition", "Earliest", "Latest", "Offset", "Timestamp"]
OFFSET_KEYS = (EARLIEST, LATEST, "offset")


class _Topic(NamedTuple):
    """A topic and its settings that are not at their defaults."""

    info: TopicInfo
    settings: list[ConfigEntry]

    def settings_json(self) -> list[dict[str, Any]]:
        """Return the settings as --json prints them."""
        return [
            {"key": entry.name, "value": entry.value, "source": entry.source}
            for entry in self.settings
        ]


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@json_option
def describe(topics: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Show the partitions of topics with offsets and size, and the topics' settings.

    Start is the first offset and End the offset after the last record. Bytes is the size of the
    leader's log on disk. Clients cannot write or read a partition while it has no leader.

    Settings at their defaults are left out; `plog configs describe topic TOPIC --all` shows them.

    With --json, one TOPIC gives an object; several give a list of such objects.
    """
    from plog.client.admin import TOPIC, Admin
    from plog.types import uuid_to_text

    with Admin(bootstrap) as admin:

        def look(name: str) -> _Topic:
            info = admin.topic(name)
            entries = admin.describe_configs(TOPIC, name)
            return _Topic(info, [entry for entry in entries if entry.source != "default"])

        found, faults = each(topics, look)
        rows, more = _partition_rows(admin, [topic.info for topic in found.values()])
        faults += more
    if as_json:
        keys = [column.lower() for column in PARTITION_COLUMNS]
        objects = [
            {
                "topic": name,
                "topic_id": uuid_to_text(topic.info.topic_id),
                "partitions": [dict(zip(keys, row, strict=True)) for row in rows[name]],
                "settings": topic.settings_json(),
            }
            for name, topic in found.items()
        ]
        print_objects(objects, several=len(topics) > 1)
    else:
        for number, (name, topic) in enumerate(found.items()):
            if number:
                say("")
            title = f"{name}, topic id {uuid_to_text(topic.info.topic_id)}"
            print_rows(rows[name], PARTITION_COLUMNS, as_json=False, title=title)
            settings = [tuple(entry.values()) for entry in topic.settings_json()]
            if settings:
                print_rows(settings, SETTING_COLUMNS, as_json=False)
            else:
                say("All settings are at their defaults.")
    raise_all(faults, most=max(len(topics), MAX_LISTED))


def _partition_rows(
    admin: Admin, topics: list[TopicInfo]
) -> tuple[dict[str, list[tuple[Any, ...]]], list[KafkaError]]:
    """Return the rows of each topic's table, and the errors of brokers.

    The offsets are None without a leader, or if it gives no answer.
    """
    from plog.client import offsets as times
    from plog.types import TopicPartition

    names = [topic.name for topic in topics]
    leaders = {part.leader_id for topic in topics for part in topic.partitions.values()}
    found, faults = each(
        sorted(one for one in leaders if one >= 0), lambda one: admin.log_dirs(names, [one])
    )
    sizes = {
        (entry.node_id, entry.partition): entry.size_bytes
        for entries in found.values()
        for entry in entries
        if not entry.is_future
    }
    led = [
        TopicPartition(topic.name, index)
        for topic in topics
        for index, part in topic.partitions.items()
        if part.leader_id >= 0
    ]
    starts = admin.offsets(dict.fromkeys(led, times.EARLIEST))
    ends = admin.offsets(dict.fromkeys(led, times.LATEST))
    faults += [*starts.faults.values(), *ends.faults.values()]
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for topic in topics:
        rows[topic.name] = []
        for index, part in sorted(topic.partitions.items()):
            at = TopicPartition(topic.name, index)
            rows[topic.name].append(
                (
                    index,
                    part.leader_id if part.leader_id >= 0 else None,
                    part.leader_epoch,
                    part.replicas,
                    part.isr,
                    starts.offsets[at].offset if at in starts.offsets else None,
                    ends.offsets[at].offset if at in ends.offsets else None,
                    sizes.get((part.leader_id, at)),
                )
            )
    return rows, distinct(faults)


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:0,1,2]...")
@bootstrap_option
@json_option
@click.option(
    "--at",
    "moment",
    metavar="TIME",
    shell_complete=complete_names(EARLIEST, LATEST, MAX_TIMESTAMP),
    help="Also show the offset at a time: ISO 8601 such as 2013-07-04T12:00 (UTC unless it has a"
    f" time zone), milliseconds since 1970, {EARLIEST}, {LATEST} or {MAX_TIMESTAMP}.",
)
def offsets(topics: tuple[str, ...], bootstrap: str, as_json: bool, moment: str | None) -> None:
    """Show the offsets of topics, or of some of their partitions.

    Earliest is the first offset, and Latest the offset after the last record. With --at, Offset is
    the first offset at or after TIME, and Timestamp is that record's. They are empty if no record
    is that late. max-timestamp selects the record with the highest timestamp.

    \b
      plog topics offsets flights
      plog topics offsets flights:0,2 --at 2013-07-04T12:00
    """
    from plog.client.admin import Admin
    from plog.client.offsets import EARLIEST as START
    from plog.client.offsets import LATEST as END

    asked = [topic_partitions(entry, "TOPIC") for entry in topics]
    time = None if moment is None else _time(moment)
    with Admin(bootstrap) as admin:
        found, faults = each(asked, lambda one: admin.partitions_of(*one))
        partitions = sorted({at for some in found.values() for at in some})
        results = [
            admin.offsets(dict.fromkeys(partitions, when))
            for when in (START, END, time)
            if when is not None
        ]
    rows: list[dict[str, Any]] = []
    for at in partitions:
        row: dict[str, Any] = {"topic": at.topic, "partition": at.partition}
        for name, result in zip(OFFSET_KEYS, results, strict=False):
            found_at = result.offsets.get(at)
            row[name] = None if found_at is None or found_at.offset < 0 else found_at.offset
        if time is not None:
            found_at = results[-1].offsets.get(at)
            timestamp = NO_TIMESTAMP if found_at is None else found_at.timestamp
            row["timestamp"] = None if timestamp < 0 else timestamp
        rows.append(row)
    if as_json:
        print_found(rows, found, several=len(topics) > 1)
    elif rows:
        cells = [[*row.values()] for row in rows]
        if time is not None:
            for line in cells:
                line[-1] = None if line[-1] is None else time_text(line[-1])
        columns = OFFSET_COLUMNS[: len(cells[0])]
        print_columns(cells, columns, optional=["Timestamp"])
    lost = [fault for result in results for _, fault in sorted(result.faults.items())]
    raise_all(distinct([*faults, *lost]), most=MOST_NAMED)


def _time(text: str) -> int:
    """Read --at as a time of ListOffsets."""
    from plog.client import offsets as times

    named = {EARLIEST: times.EARLIEST, LATEST: times.LATEST, MAX_TIMESTAMP: times.MAX_TIMESTAMP}
    return named[text] if text in named else time_ms(text, "--at")
