"""Options and output that commands share: tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from plog.cli.advice import explain
from plog.cli.tables import plain_lines, terminal_table
from plog.printable import printable, printable_json

if TYPE_CHECKING:
    from plog.client.metadata import Cluster
    from plog.errors import KafkaError

F = TypeVar("F", bound=Callable[..., Any])
K = TypeVar("K")
T = TypeVar("T")

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "PLOG_BOOTSTRAP_SERVER"
ELECTION_S = 2.0
"""How long a partition may lack a leader before we say so; a new topic's do at first."""
MOST_NAMED = 3
MAX_LISTED = 10
"""How many names a question lists."""
MOST_DIGITS = len(str(2**63 - 1))
SECOND_MS = 1000
UNITS_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def bootstrap_option(function: F) -> F:
    """Add --bootstrap-server, shared by every command that talks to a cluster."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        default=BOOTSTRAP_DEFAULT,
        show_default=True,
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        help="Address of a broker; several addresses in case one is down.",
    )(function)


def json_option(function: F) -> F:
    """Add --json, shared by every command that prints."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def print_rows(
    rows: Iterable[Sequence[Any]],
    columns: Sequence[str],
    *,
    as_json: bool,
    title: str | None = None,
) -> None:
    """Print rows as a table, or as a JSON list of objects keyed by the columns' names.

    A title is a line above the table.
    """
    if as_json:
        keys = [column.lower().replace(" ", "_") for column in columns]
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    if title is not None:
        say(title)
    if not sys.stdout.isatty():
        for line in plain_lines(columns, rows):
            click.echo(line)
        return
    from rich.console import Console

    Console().print(terminal_table(columns, rows))


def print_columns(
    rows: Sequence[Sequence[Any]],
    columns: Sequence[str],
    *,
    optional: Sequence[str],
    title: str | None = None,
) -> None:
    """Print rows as a table; a terminal omits the optional columns that have no values.

    A terminal is narrow. In a pipe each column keeps its place.
    """
    shown = [
        at
        for at, column in enumerate(columns)
        if not sys.stdout.isatty()
        or column not in optional
        or any(row[at] not in (None, "") for row in rows)
    ]
    cells = [[row[at] for at in shown] for row in rows]
    print_rows(cells, [columns[at] for at in shown], as_json=False, title=title)


def print_json(value: Any) -> None:
    """Print one JSON value."""
    sys.stdout.write(printable_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def print_objects(objects: Sequence[Any], *, several: bool) -> None:
    """Print the JSON of a command that accepts several names.

    One name gives an object, or nothing after an error. Several give a list of such objects.
    """
    if several:
        print_json(objects)
    elif objects:
        print_json(objects[0])


def print_found(rows: Sequence[Any], found: Collection[Any], *, several: bool) -> None:
    """Print the JSON list of rows of the names that were found.

    One name that is not found prints nothing, as with `print_objects`.
    """
    if found or several:
        print_json(rows)


def say(text: str, *, err: bool = False) -> None:
    """Print one line of text, which may contain text from a client."""
    click.echo(printable(text), err=err)


def print_done(text: str | Iterable[str], outcome: dict[str, Any], *, as_json: bool) -> None:
    """Print the outcome of a command: a sentence or several, or a JSON object."""
    if as_json:
        print_json(outcome)
        return
    for line in [text] if isinstance(text, str) else text:
        say(line)


def yes_option(function: F) -> F:
    """Add --yes, shared by every command that destroys data; `confirm` reads its value."""
    return click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def execute_option(function: F) -> F:
    """Add --yes, and --execute as in Kafka's tools, to a command that shows its plan first."""
    return click.option(
        "--yes",
        "--execute",
        "yes",
        is_flag=True,
        help="Apply the change without confirmation. --execute is Kafka's name of this option.",
    )(function)


def confirm(question: str, declined: str, *, yes: bool) -> None:
    """Ask before a command destroys data; without a yes end the command with status 1.

    Every command that destroys data calls this before its first change.

    Args:
        question: names the data that is lost.
        declined: the first sentence after any other answer, such as "Not deleted."
        yes: the value of --yes, which skips the question.
    """
    if yes or agrees(question):
        return
    text = f"{declined} Pass --yes to skip this question."
    if click.get_current_context().params.get("as_json"):
        raise click.ClickException(text)
    say(text, err=True)
    sys.exit(1)


def agrees(question: str) -> bool:
    """Ask for confirmation; without an answer return False."""
    try:
        return click.confirm(printable(question), err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def names_text(names: Sequence[object], noun: str) -> str:
    """Return names as a question or a sentence lists them: `topics a, b, c and 4 more`."""
    named = ", ".join(str(name) for name in names[:MAX_LISTED])
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{noun if len(names) == 1 else f'{noun}s'} {named}{more}"


def each(names: Iterable[K], act: Callable[[K], T]) -> tuple[dict[K, T], list[KafkaError]]:
    """Call `act` with each name once; an error of one does not stop the others.

    Returns:
        The results by name, and the errors for `raise_all`. Equal errors count once: without a
        broker every name has the same.
    """
    from plog.errors import KafkaError

    results: dict[K, T] = {}
    faults: list[KafkaError] = []
    for name in dict.fromkeys(names):
        try:
            results[name] = act(name)
        except KafkaError as fault:
            faults.append(fault)
    return results, distinct(faults)


def distinct(faults: Iterable[KafkaError]) -> list[KafkaError]:
    """Return the errors with different texts, in their order."""
    return list({str(fault): fault for fault in faults}.values())


def raise_all(faults: Sequence[KafkaError], *, most: int | None = None) -> None:
    """Raise an error that names each fault on its own line; do nothing without faults.

    Args:
        most: name at most this number of faults, and count the others.
    """
    if len(faults) == 1:
        raise faults[0]
    if faults:
        lines = [explain(fault) for fault in faults[:most]]
        if len(lines) < len(faults):
            lines.append(f"and {len(faults) - len(lines)} more")
        raise click.ClickException("\n".join(lines))


def warn_of_leaderless(
    cluster: Cluster,
    topic: str,
    partitions: Iterable[int] = (),
    *,
    outcome: str = "waiting for it",
) -> None:
    """Warn of partitions without a leader, once an election has had its time.

    Args:
        partitions: the partitions that the command uses; all of them if empty.
        outcome: what the command does about such a partition.
    """
    from plog.client.metadata import no_leader
    from plog.types import TopicPartition

    begun = time.monotonic()
    wanted = set(partitions)
    while True:
        cluster.refresh([topic])
        known = cluster.topics.get(topic)
        if known is None:  # the command itself reports it, or creates the topic
            return
        at = [index for index in sorted(known.partitions) if not wanted or index in wanted]
        without = [index for index in at if known.partitions[index].leader_id < 0]
        if not without:
            return
        if time.monotonic() - begun > ELECTION_S:
            break
        time.sleep(ELECTION_S / 10)
    for index in without[:MOST_NAMED]:
        say(f"plog: {no_leader(TopicPartition(topic, index))}; {outcome}", err=True)
    if len(without) > MOST_NAMED:
        say(f"plog: and {len(without) - MOST_NAMED} more of {topic}", err=True)


def some_text(names: Sequence[object]) -> str:
    """Return the first names, and the number of the others."""
    named = ", ".join(str(name) for name in names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{named} and {more} more" if more > 0 else named


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp as ISO 8601 in UTC; "" for none, the number if it is out of range."""
    if timestamp_ms < 0:
        return ""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_number(text: str) -> bool:
    """Return whether text is decimal digits, at most as many as an int64 has."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def topic_partitions(entry: str, option: str) -> tuple[str, frozenset[int]]:
    """Read TOPIC or TOPIC:0,1,2; an empty set stands for all partitions.

    Raises:
        click.BadParameter: it is neither; the message names `option`.
    """
    topic, colon, numbers = entry.partition(":")
    listed = numbers.split(",") if colon else []
    if not topic or not all(map(is_number, listed)):
        raise click.BadParameter(f"{entry!r} is not TOPIC or TOPIC:0,1,2", param_hint=option)
    return topic, frozenset(map(int, listed))


def time_ms(text: str, option: str) -> int:
    """Read a time: ISO 8601 (UTC unless it has a time zone), or milliseconds since 1970.

    Raises:
        click.BadParameter: it is neither; the message names `option`.
    """
    if is_number(text):
        return min(int(text), 2**63 - 1)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as fault:
        text = (
            f"{text!r} is not a time: use ISO 8601 such as 2013-07-04T12:00, or milliseconds since"
            " 1970"
        )
        raise click.BadParameter(text, param_hint=option) from fault
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(int(when.timestamp() * 1000), 0)


def duration_ms(text: str) -> int:
    """Read a duration: milliseconds, or a number with one unit such as `850ms`, `20m`, `2d`.

    Raises:
        click.BadParameter: it is neither.
    """
    found = re.fullmatch(r"([0-9]+)(ms|[dhms])?", text, re.ASCII)
    if found is None or not is_number(found[1]):
        raise click.BadParameter(
            f"{text!r} is not a duration: use milliseconds, or a number with ms, s, m, h or d"
        )
    number, unit = int(found[1]), found[2] or "ms"
    return min(number if unit == "ms" else number * UNITS_S[unit] * SECOND_MS, 2**63 - 1)


def duration_text(duration_ms: int) -> str:
    """Return a duration in its two largest units: `850ms`, `3m 12s`, `2d 5h`."""
    if duration_ms < SECOND_MS:
        return f"{duration_ms}ms" if duration_ms else "0"
    left = duration_ms // SECOND_MS
    counts: list[tuple[int, str]] = []
    for unit, seconds in UNITS_S.items():
        count, left = divmod(left, seconds)
        if count or counts:
            counts.append((count, unit))
    return " ".join(f"{count}{unit}" for count, unit in counts[:2] if count)


def data_json(data: bytes | None) -> str | dict[str, str] | None:
    """Return UTF-8 bytes as text, and other bytes as {"base64": ...}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}
