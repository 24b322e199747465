"""`plog consume`: print the records of topics."""

from __future__ import annotations

import click

from plog.cli.followed_topics import FollowedTopics
from plog.cli.offset_places import STARTS, check_place, complete_names
from plog.cli.output import bootstrap_option
from plog.cli.record_formats import (
    NULL,
    Format,
    column_format,
    json_format,
    template_format,
)
from plog.cli.topic_reader import Printer, read, read_in_group

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
    " means that a partition was not read: it has no leader, or its leader does not answer, or"
    " the coordinator of the group does not.",
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
    printer = Printer(_format(as_json, template, columns, null), most)
    if exit_at_end:
        until = "latest"
    if group is not None:
        if partitions or start not in STARTS or until not in (None, "latest"):
            raise click.UsageError(
                "--group conflicts with --partition, with --from other than earliest or latest,"
                " and with --until other than latest"
            )
        options = {"auto_offset_reset": start, "isolation_level": isolation_level}
        read_in_group(bootstrap, group, chosen, options, printer, exit_at_end=until is not None)
    else:
        check_place(start, "--from", STARTS)
        if until is not None:
            check_place(until, "--until", STARTS[1:])
        read(bootstrap, chosen, partitions, start, until, isolation_level, printer)


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
