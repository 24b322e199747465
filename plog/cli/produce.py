"""`plog produce`: write lines of text to a topic."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import click

from plog.cli.output import (
    ELECTION_S,
    bootstrap_option,
    json_option,
    print_json,
    say,
    warn_of_leaderless,
)


@click.command()
@click.argument("topic")
@click.argument("source", type=click.File("rb"), default="-")
@bootstrap_option
@json_option
@click.option("--key-separator", help="Split each line into key and value at the first separator.")
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="Write to this partition [default: chosen by the key, or spread over all].",
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
    key_separator: str | None,
    partition: int | None,
    headers: tuple[str, ...],
    compression: str,
    acks: str,
    linger_ms: int,
    batch_size: int,
) -> None:
    """Write each line of SOURCE (a file, or standard input) to TOPIC as one record.

    \b
      echo hello | plog produce greetings
      plog produce users users.tsv --key-separator $'\\t'
    """
    from plog.client.metadata import Cluster
    from plog.client.producer import Producer, RecordMetadata
    from plog.errors import PlogError
    from plog.types import counted

    pairs = [_header(header) for header in headers]
    if key_separator == "":
        raise click.BadParameter("the separator is empty", param_hint="--key-separator")
    separator = None if key_separator is None else key_separator.encode()
    failures: list[PlogError] = []

    def delivered(_metadata: RecordMetadata | None, error: PlogError | None) -> None:
        if error is not None:
            failures.append(error)

    with Cluster(bootstrap) as cluster:
        # The producer would wait silently for a missing leader; tell the user.
        warn_of_leaderless(cluster, topic, () if partition is None else [partition])
    count = 0
    with (
        Producer(
            bootstrap,
            acks=acks,
            enable_idempotence=acks == "all",
            linger_ms=linger_ms,
            batch_size=batch_size,
            compression_type=compression,
        ) as producer,
        _progress(source) as lines,
    ):
        for line in lines:
            if not count:
                _require_topic(bootstrap, topic)
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            key: bytes | None = None
            if separator is not None and separator in text:
                key, _, text = text.partition(separator)
            producer.send(
                topic, text, key=key, headers=pairs, partition=partition, on_delivery=delivered
            )
            count += 1
            if failures:
                break
        if not failures:
            producer.flush()
        if failures:
            # Raised inside the block, so that the producer drops the waiting records.
            raise failures[0]
    if as_json:
        print_json({"topic": topic, "records": count})
    else:
        say(f"Wrote {counted(count, 'record')} to {topic}.", err=True)


def _require_topic(bootstrap: str, topic: str) -> None:
    """Wait a moment until the topic exists; the broker may create it.

    The producer itself would wait a minute, silently.

    Raises:
        UnknownTopicOrPartition: the topic does not exist.
        NetworkException: no broker responds.
    """
    from plog.client.metadata import Cluster

    deadline = time.monotonic() + ELECTION_S
    with Cluster(bootstrap) as cluster:
        while time.monotonic() < deadline:
            cluster.refresh([topic], create=True)
            if topic in cluster.topics or topic in cluster.errors:
                return  # the producer reports a refused name
            time.sleep(ELECTION_S / 10)
        cluster.topic(topic)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode()


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
