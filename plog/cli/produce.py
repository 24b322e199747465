"""`plog produce`: write lines of text or JSON to a topic, each as one record."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

import click

from plog.cli.line_outcomes import LineOutcomes
from plog.cli.output import (
    ELECTION_S,
    bootstrap_option,
    print_json,
    say,
    warn_of_leaderless,
)
from plog.cli.record_formats import separator
from plog.cli.record_inputs import InvalidLine, Reader, json_reader, text_reader

if TYPE_CHECKING:
    from plog.client.producer import Header, Producer

MAX_RECORD_BYTES = 32 << 20
"""Above any sensible max.message.bytes, so that the broker decides which records are too large."""
MAX_PARTITIONS = 2**31 - 1


@click.command()
@click.argument("topic")
@click.argument("source", type=click.File("rb"), default="-")
@bootstrap_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the outcome as JSON; for a SOURCE of JSON use --input json.",
)
@click.option(
    "--input",
    "form",
    default="lines",
    type=click.Choice(["lines", "json"]),
    show_default=True,
    help="Form of SOURCE: lines of text, or the JSON that `plog consume --json` prints.",
)
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="Split each line into key and value at the first separator, such as ':' or '\\t'.",
)
@click.option(
    "--missing-key",
    default="error",
    type=click.Choice(["error", "null"]),
    show_default=True,
    help="A line without the key separator: stop, or write it without a key.",
)
@click.option(
    "--header-separator",
    metavar="TEXT",
    help="Read headers such as a=1,b=2 before the first separator of each line.",
)
@click.option(
    "--null",
    metavar="TEXT",
    help="Read a key, value or header value that equals TEXT as null. A null value is a tombstone:"
    " compaction removes the key.",
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="Write to this partition [default: that of a JSON line, or chosen by the key, or spread"
    " over all].",
)
@click.option(
    "--repartition",
    is_flag=True,
    help="Choose partitions by the keys, whatever partitions the JSON lines name.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Add this header to every record. Repeatable.",
)
@click.option(
    "--compression",
    default="none",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    show_default=True,
    help="Compression codec of the batches.",
)
@click.option(
    "--acks",
    default="all",
    type=click.Choice(["all", "1", "0"]),
    show_default=True,
    help="Replicas that must have a record: all in-sync replicas, the leader (1), or none (0).",
)
@click.option(
    "--linger-ms",
    default=5,
    show_default=True,
    help="Milliseconds that a batch waits for more records.",
)
@click.option(
    "--batch-size",
    default=65536,
    show_default=True,
    help="Bytes at which a batch is sent without waiting.",
)
def command(
    topic: str,
    source: IO[bytes],
    bootstrap: str,
    as_json: bool,
    form: str,
    key_separator: str | None,
    missing_key: str,
    header_separator: str | None,
    null: str | None,
    partition: int | None,
    repartition: bool,
    headers: tuple[str, ...],
    compression: str,
    acks: str,
    linger_ms: int,
    batch_size: int,
) -> None:
    """Write each line of SOURCE (a file, or standard input) to TOPIC as one record.

    A line is a value; separators put headers and a key before it. With --input json, each line has
    the fields of `plog consume --json`. Keys, values, headers, timestamps and partitions are kept.
    The topic, the offset and the timestamp type have no effect; only "value" is required.

    An invalid line ends the command: the lines before it are written, and none after it. A line
    that the broker refuses also ends it, with the other lines of its batch; lines of other batches
    after it may be written.

    \b
      echo hello | plog produce greetings
      plog produce users users.tsv --key-separator '\\t' --null '\\N'
      plog consume users --exit-at-end --json | plog produce copy --input json
    """
    from plog.client.metadata import Cluster
    from plog.client.producer import Producer
    from plog.types import counted

    pairs = [_header(header) for header in headers]
    if form == "json":
        if key_separator or header_separator or null is not None or missing_key != "error":
            raise click.UsageError(
                "--input json conflicts with separators, --missing-key and --null"
            )
        read = json_reader(keep_partitions=partition is None and not repartition)
    else:
        if repartition:
            raise click.UsageError("--repartition requires --input json")
        if missing_key != "error" and key_separator is None:
            raise click.UsageError("--missing-key requires --key-separator")
        read = text_reader(
            key_separator=separator(key_separator, "--key-separator"),
            header_separator=separator(header_separator, "--header-separator"),
            null=None if null is None else os.fsencode(null),
            require_key=missing_key == "error",
        )
    with Cluster(bootstrap) as cluster:
        # The producer would wait silently for a missing leader; tell the user.
        warn_of_leaderless(cluster, topic, () if partition is None else [partition])
    outcomes, place = LineOutcomes(), _place(source)
    target = _Target(bootstrap, topic, partition, pairs)
    with (
        suppress(_Refused),
        Producer(
            bootstrap,
            acks=acks,
            enable_idempotence=acks == "all",
            linger_ms=linger_ms,
            batch_size=batch_size,
            compression_type=compression,
            max_request_size=MAX_RECORD_BYTES,
        ) as producer,
        _progress(source) as lines,
    ):
        # After any other error the producer drops the waiting records.
        count = _send(producer, target, place, lines, read, outcomes)
    if outcomes.has_failed:
        raise outcomes.fault(place)
    if as_json:
        print_json({"topic": topic, "records": count})
    else:
        say(f"Wrote {counted(count, 'record')} to {topic}.", err=True)


class _Target:
    """The topic that is written to, and the options that hold for every record."""

    def __init__(
        self, bootstrap: str, topic: str, partition: int | None, headers: list[Header]
    ) -> None:
        self.topic, self.partition, self.headers = topic, partition, headers
        self._bootstrap = bootstrap
        self.partitions = 0

    def require(self) -> None:
        """Wait until the topic exists, and count its partitions. Raises as `_require_topic`."""
        self.partitions = _require_topic(self._bootstrap, self.topic)

    def check(self, partition: int) -> None:
        """Refuse a partition that the topic has not, also after another look.

        Raises:
            InvalidLine: the topic has fewer partitions.
        """
        from plog.types import counted

        if partition >= self.partitions:
            self.require()
        if partition >= self.partitions:
            has = counted(self.partitions, "partition")
            raise InvalidLine(
                f"partition {partition}, but topic {self.topic!r} has {has}:"
                " add partitions, or use --repartition"
            )


class _Refused(Exception):
    """A line was not written; its outcome says why."""


def _send(
    producer: Producer,
    target: _Target,
    place: str,
    lines: Iterator[bytes],
    read: Reader,
    outcomes: LineOutcomes,
) -> int:
    """Write the record of each line; return their number.

    Args:
        place: where the lines are, for messages.

    Raises:
        click.ClickException: a line is invalid; the records before it are written.
        _Refused: a record was not written.
    """
    from plog.errors import MessageTooLarge
    from plog.types import counted

    topic, fixed, pairs = target.topic, target.partition, target.headers
    count = 0
    invalid: str | None = None
    for number, line in enumerate(lines, 1):
        try:
            found = read(line)
            if found is None:
                continue
            value, key, headers, partition, timestamp_ms = found
            if not count:
                target.require()
            if partition is None:
                partition = fixed
            else:
                target.check(partition)
            producer.send(
                topic,
                value,
                key=key,
                headers=[*headers, *pairs] if headers else pairs,
                partition=partition,
                timestamp_ms=timestamp_ms,
                on_delivery=outcomes.of(number),
            )
        except (InvalidLine, MessageTooLarge) as fault:
            invalid = f"line {number}{place}: {fault}"
            break
        count += 1
        if outcomes.has_failed:
            break
    # Also after a refusal: a record that was dropped in flight may be written, and is not counted.
    producer.flush()
    if outcomes.has_failed:
        raise _Refused
    if invalid is not None:
        wrote = f"wrote {counted(count, 'record')} before it" if count else "wrote nothing"
        raise click.ClickException(f"{invalid} ({wrote})")
    return count


def _place(source: IO[bytes]) -> str:
    """Return " of FILE", or "" for standard input."""
    name = getattr(source, "name", None)
    return f" of {name}" if isinstance(name, str) and name not in ("-", "<stdin>") else ""


def _require_topic(bootstrap: str, topic: str) -> int:
    """Wait a moment until the topic exists; the broker may create it. Return its partitions.

    Says so if the broker creates it, since its name may be a typing error.

    The producer itself would wait a minute, silently.

    Raises:
        UnknownTopicOrPartition: the topic does not exist.
        NetworkException: no broker responds.
    """
    from plog.client.metadata import Cluster

    deadline = time.monotonic() + ELECTION_S
    with Cluster(bootstrap) as cluster:
        cluster.refresh([topic])
        is_missing = topic not in cluster.topics and topic not in cluster.errors
        while time.monotonic() < deadline:
            cluster.refresh([topic], create=True)
            if topic in cluster.topics:
                if is_missing:
                    # click would write into the progress bar, which replaces sys.stderr.
                    sys.stderr.write(f"Created topic {topic}.\n")
                break
            if topic in cluster.errors:
                return MAX_PARTITIONS  # the producer reports a refused name
            time.sleep(ELECTION_S / 10)
        return len(cluster.topic(topic).partitions)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    try:
        name.encode()
    except UnicodeEncodeError as fault:
        raise click.BadParameter(f"name {name!r} is not UTF-8", param_hint="--header") from fault
    return name, os.fsencode(value)


@contextmanager
def _progress(source: IO[bytes]) -> Iterator[Iterator[bytes]]:
    """Yield the lines of a file; on a terminal show a progress bar, except for typed lines."""
    if not sys.stderr.isatty() or source.isatty():
        yield iter(source)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    about = os.fstat(source.fileno())
    total = about.st_size if stat.S_ISREG(about.st_mode) else None
    with Progress(
        TextColumn("{task.fields[count]:,} records"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("", total=total, count=0)

        def lines() -> Iterator[bytes]:
            count = size = 0
            for line in source:
                yield line
                count += 1
                size += len(line)
                if count % 1000 == 0:
                    progress.update(task, completed=size, count=count)
            progress.update(task, completed=size, count=count)

        yield lines()
