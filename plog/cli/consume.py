"""`plog consume`: print the records of topics."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from plog.cli.followed_topics import FollowedTopics, NewPartitions, led, refuse_unread
from plog.cli.offset_places import STARTS, LateStarts, check_place, complete_names, offsets_at
from plog.cli.output import bootstrap_option
from plog.cli.record_formats import (
    NULL,
    Format,
    column_format,
    json_format,
    template_format,
)

if TYPE_CHECKING:
    from plog.client.consumer import Consumer, ConsumerRecord
    from plog.types import TopicPartition

POLL_MS = 1000
TERMINATED = 128 + signal.SIGTERM
"""The exit status that a shell reports for a command ended by SIGTERM."""
TEMPLATES = r"""
Fields of --format:
  {topic} {partition} {offset}   where the record is
  {time} {timestamp}             its time in UTC; in milliseconds since 1970
  {timestamp_type}               CreateTime or LogAppendTime
  {headers} {key} {value}        its data
  {key_size} {value_size}        bytes; -1 for null
  \n \t \r \0 \\ \x1f {{ }}      control characters, any byte, and braces
A line feed follows each record, unless TEMPLATE ends with \n or \0.
"""


@click.command(epilog="\b" + TEMPLATES)
@click.argument("topics", nargs=-1, metavar="TOPIC...")
@bootstrap_option
@click.option(
    "--pattern",
    metavar="REGEX",
    help="Read all topics whose whole name matches, also those created later, instead of TOPIC.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Read only this partition of the one topic [default: all]. Repeatable.",
)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="earliest|latest|OFFSET|@TIME",
    shell_complete=complete_names(*STARTS),
    help="Where to start in each partition. OFFSET outside the log means the nearer end of the log;"
    " -5 means 5 offsets before its end."
    " @TIME means the first record at or after that time: @2013-07-04T12:00:00 (UTC unless it has"
    " a time zone), or @ and milliseconds since 1970.",
)
@click.option(
    "--until",
    metavar="latest|OFFSET|@TIME",
    shell_complete=complete_names("latest"),
    help="Exit before this offset or time in each partition, as for --from; do not wait for new"
    " records.",
)
@click.option(
    "--group",
    metavar="NAME",
    help="Join this consumer group: share the topics with its other members, continue at the"
    " group's committed offsets, and commit the printed records. --from then applies only to"
    " partitions without a committed offset.",
)
@click.option("--max", "most", type=click.IntRange(0), help="Maximum number of records to print.")
@click.option(
    "--exit-at-end",
    is_flag=True,
    help="Exit at the end instead of waiting for new records, as --until latest. Exit status 1"
    " means that a partition without a leader was not read.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print each record as a JSON object with all fields, one per line."
    " `plog produce --input json` reads them.",
)
@click.option("--topics", "show_topics", is_flag=True, help="Print the topic before each value.")
@click.option(
    "--offsets", is_flag=True, help="Print the partition and the offset before each value."
)
@click.option("--times", is_flag=True, help="Print the timestamp in UTC before each value.")
@click.option("--headers", is_flag=True, help="Print the headers as a=1,b=2 before each value.")
@click.option("--keys", is_flag=True, help="Print the key and a tab before each value.")
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    help="Print each record by a template of fields, such as '{partition}@{offset} {value}'."
    " The fields are listed below.",
)
@click.option(
    "--null",
    default=NULL,
    show_default=True,
    metavar="TEXT",
    help="Text for a null key, value or header value, except in JSON.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed skips records of open and aborted transactions.",
)
def command(
    topics: tuple[str, ...],
    bootstrap: str,
    pattern: str | None,
    partitions: tuple[int, ...],
    start: str,
    until: str | None,
    group: str | None,
    most: int | None,
    exit_at_end: bool,
    as_json: bool,
    show_topics: bool,
    offsets: bool,
    times: bool,
    headers: bool,
    keys: bool,
    template: str | None,
    null: str,
    isolation_level: str,
) -> None:
    """Print the records of each TOPIC, each value on a line, until Ctrl-C.

    Keys and values are printed unchanged. --topics, --offsets, --times, --headers and --keys add
    columns in this order, separated by tabs. With --json, bytes that are not UTF-8 print as
    {"base64": ...}.

    \b
      plog consume greetings --exit-at-end
      plog consume greetings --from @2013-07-04 --max 10 --json
      plog consume greetings alerts --topics --offsets
      plog consume --pattern 'flights-.*' --format '{time} {key}={value}'
      plog consume greetings --group readers
    """
    chosen = FollowedTopics(topics, pattern)
    if partitions and (chosen.pattern is not None or len(chosen.names) > 1):
        raise click.UsageError("--partition requires exactly one topic")
    if until is not None and exit_at_end:
        raise click.UsageError("--until conflicts with --exit-at-end")
    columns = {
        name
        for name, is_shown in [
            ("topic", show_topics),
            ("partition", offsets),
            ("offset", offsets),
            ("time", times),
            ("headers", headers),
            ("key", keys),
        ]
        if is_shown
    }
    printer = _Printer(_format(as_json, template, columns, null), most)
    if exit_at_end:
        until = "latest"
    if group is not None:
        if partitions or start not in STARTS or until not in (None, "latest"):
            raise click.UsageError(
                "--group conflicts with --partition, with --from other than earliest or latest,"
                " and with --until other than latest"
            )
        options = {"auto_offset_reset": start, "isolation_level": isolation_level}
        _consume_in_group(bootstrap, group, chosen, options, printer, exit_at_end=until is not None)
    else:
        check_place(start, "--from", STARTS)
        if until is not None:
            check_place(until, "--until", STARTS[1:])
        _consume(bootstrap, chosen, partitions, start, until, isolation_level, printer)


class _Printer:
    """Prints records, at most `most`, and counts them."""

    def __init__(self, form: Format, most: int | None) -> None:
        self._form, self._left = form, most

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def print(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Print records and return those that were printed."""
        if self._left is not None:
            records = records[: self._left]
            self._left -= len(records)
        if records:
            out = sys.stdout.buffer
            out.write(b"".join(map(self._form, records)))
            out.flush()
        return records


def _format(as_json: bool, template: str | None, columns: set[str], null: str) -> Format:
    if template is None:
        # JSON has all fields, so that columns change nothing.
        return json_format() if as_json else column_format(columns, null)
    if as_json or columns:
        raise click.UsageError("--format conflicts with --json and with columns such as --keys")
    try:
        return template_format(template, null)
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="--format") from fault


def _consume(
    bootstrap: str,
    topics: FollowedTopics,
    indexes: tuple[int, ...],
    start: str,
    until: str | None,
    isolation_level: str,
    printer: _Printer,
) -> None:
    from plog.client.consumer import Consumer
    from plog.client.metadata import Cluster

    with (
        Cluster(bootstrap) as cluster,
        Consumer(
            cluster,
            auto_offset_reset=start if start in STARTS else "earliest",
            isolation_level=isolation_level,
        ) as consumer,
    ):
        found = topics.require(cluster, indexes, waits=until is None)
        wanted = _partitions(consumer, found, indexes)
        # To the end, read the partitions that can be read. Otherwise wait for the others.
        assigned = wanted if until is None else led(cluster, wanted)
        consumer.assign(assigned)
        if until is None:
            late = None if start in STARTS else LateStarts(cluster, consumer, start)
            new = None if indexes else NewPartitions(topics, cluster, consumer)
            while not printer.is_done:
                if late is not None:
                    late.look_now_and_then()
                if new is not None:
                    new.look_now_and_then()
                printer.print(consumer.poll(POLL_MS))
            return
        for partition, offset in offsets_at(consumer, assigned, start).items():
            consumer.seek(partition, offset)
        ends = offsets_at(consumer, assigned, until)
        left = dict(ends)
        while not printer.is_done:
            ended = [at for at, end in left.items() if consumer.position(at) >= end]
            consumer.pause(ended)
            for at in ended:
                del left[at]
            if not left:
                refuse_unread([at for at in wanted if at not in ends])
                break
            records = consumer.poll(POLL_MS)
            if any(consumer.position(at) > end for at, end in left.items()):
                records = [one for one in records if one.offset < ends[_where(one)]]
            printer.print(records)


def _partitions(
    consumer: Consumer, topics: Sequence[str], indexes: tuple[int, ...]
) -> list[TopicPartition]:
    """Return the partitions to read.

    Raises:
        UnknownTopicOrPartition: the topic has no such partition.
    """
    from plog.errors import UnknownTopicOrPartition
    from plog.types import TopicPartition, counted

    known = [partition for topic in topics for partition in consumer.partitions_for(topic)]
    if not indexes:
        return known
    chosen = [TopicPartition(topics[0], index) for index in dict.fromkeys(indexes)]
    for partition in chosen:
        if partition not in known:
            raise UnknownTopicOrPartition(
                f"topic {partition.topic!r} has {counted(len(known), 'partition')}, "
                f"but no partition {partition.partition}"
            )
    return chosen


def _consume_in_group(
    bootstrap: str,
    group: str,
    topics: FollowedTopics,
    options: Mapping[str, Any],
    printer: _Printer,
    *,
    exit_at_end: bool,
) -> None:
    from plog.client.group_consumer import GroupConsumer, Listener, OffsetAndMetadata
    from plog.client.metadata import Cluster

    # A group waits for a missing topic, but here the user has probably mistyped its name.
    ends: dict[TopicPartition, int] = {}
    with (
        _ends_by_sigterm(),
        Cluster(bootstrap) as cluster,
        GroupConsumer(
            bootstrap,
            group,
            enable_auto_commit=False,
            metadata_max_age_ms=int(topics.look_s * 1000),
            **options,
        ) as consumer,
    ):
        topics.require(cluster, (), waits=not exit_at_end)

        def look_at_ends(come: list[TopicPartition]) -> None:
            cluster.refresh({at.topic for at in come})
            readable = led(cluster, come)
            consumer.pause(set(come).difference(readable))
            for at in come:
                ends.pop(at, None)
            ends.update(consumer.end_offsets(readable))

        listener = Listener(on_assigned=look_at_ends) if exit_at_end else None
        consumer.subscribe(topics.pattern or topics.names, listener)
        while not printer.is_done:
            # Commit only printed records; the next run of the group prints the others.
            printed = printer.print(consumer.poll(POLL_MS))
            consumer.commit(
                {
                    _where(one): OffsetAndMetadata(one.offset + 1, leader_epoch=one.leader_epoch)
                    for one in printed
                }
            )
            if not exit_at_end:
                continue
            assigned = consumer.assignment()
            readable = [at for at in assigned if at in ends]
            if assigned and all(consumer.position(at) >= ends[at] for at in readable):
                refuse_unread([at for at in assigned if at not in ends])
                break


@contextmanager
def _ends_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that a member leaves its group."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _where(record: ConsumerRecord) -> TopicPartition:
    from plog.types import TopicPartition

    return TopicPartition(record.topic, record.partition)
