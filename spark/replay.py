"""Writes the records of a time range of a topic into another topic, all of them or none.

    spark-submit spark/replay.py --topic flights --to flights-again --from 2013-07-01 --yes

It first counts the records by partition, and writes after a confirmation: `--yes`, or an answer on
the terminal. It writes exactly the records that it counted: the offsets are fixed before, and later
records are left out. If an open transaction holds back records of the range, it writes nothing.

The sink writes in transactions that are committed together, within milliseconds, at the end. A run
that dies before that leaves nothing visible to readers of committed records. Keys, values, headers
and each partition's order are kept. Records without a key may change their order, unless
`--keep-partitions` is given. `--filter` selects records, `--select` changes them. The sink has no
timestamp column: records get the time of writing, and `--time-header` keeps their own in a header.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import click
import job

from plog.cli.output import duration_ms
from plog.errors import ConfigError, PlogError, UnknownTopicOrPartition
from plog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from plog.spark.offsets import OffsetRange

COLUMNS = ("key", "value", "headers")
"""The columns written by default."""
TIMEOUT_MS = 900_000
"""The brokers' default maximum."""
WAIT_S, POLL_INTERVAL_S = 10.0, 0.5
"""How long to wait for open transactions in the range, and how often to check."""
TOO_LONG = ("kafka.transaction.timeout.ms", "ProducerFenced", "InvalidProducerEpoch")
"""Errors of the sink after a transaction timeout; its ids belong to this run only."""


class TimedOut(PlogError):
    """Writing took longer than the transaction timeout, or the brokers refuse that timeout."""


@dataclass(frozen=True)
class Range:
    """The records to read.

    Attributes:
        start_ms, end_ms: timestamps within [start_ms, end_ms), in ms since 1970; None for no bound.
        condition: a condition in Spark's SQL, on the columns of the source.
    """

    bootstrap: str
    topic: str
    start_ms: int | None = None
    end_ms: int | None = None
    condition: str | None = None
    isolation_level: str = "read_committed"


class Counted(NamedTuple):
    """The records of one partition; times as text."""

    partition: int
    records: int
    first_offset: int
    last_offset: int
    first_time: str
    last_time: str


def records(spark: SparkSession, wanted: Range) -> DataFrame:
    """Return the present records of a range, without later ones.

    Raises:
        ConfigError: an open transaction holds back some of them (see `_plan`).
        KafkaError: the topic does not exist, or its brokers do not respond.
    """
    from plog.spark.arrow import FULL_SCHEMA

    ranges = _plan(spark, wanted)
    if not ranges:
        return spark.createDataFrame([], FULL_SCHEMA)
    return _within(spark, wanted, {one.partition: (one.start, one.end) for one in ranges})


def _plan(spark: SparkSession, wanted: Range) -> list[OffsetRange]:
    """Return the offsets of a range.

    Readers of committed records stop at the first open transaction. Records after it may be
    committed, and would be missing from the range. Most transactions are short, so this function
    waits for some time.

    Raises:
        ConfigError: an open transaction still holds back records of the range.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from plog.spark import offsets
    from plog.spark.bounds import LATEST
    from plog.spark.options import parse

    given = {**_client(wanted), "subscribe": wanted.topic}
    if wanted.start_ms is not None:
        given["startingTimestamp"] = str(max(wanted.start_ms, 0))
        given["startingOffsetsByTimestampStrategy"] = "latest"
    options = parse(given)

    def log_ends() -> dict[TopicPartition, int]:
        with offsets.open_cluster(options) as cluster:
            partitions = offsets.find_partitions(cluster, options)
            return offsets.log_ends(cluster, options, partitions)

    def stable() -> tuple[dict[TopicPartition, int], list[OffsetRange]]:
        with offsets.open_cluster(options) as cluster:
            partitions = offsets.find_partitions(cluster, options)
            ends = offsets.offsets_at(cluster, options, partitions, LATEST)
            return ends, offsets.resolve(cluster, options, partitions)

    # Read before the stable ends: records written between the two requests are not waited for.
    written, deadline = offsets.with_attempts(options, log_ends), time.monotonic() + WAIT_S
    while True:
        ends, ranges = offsets.with_attempts(options, stable)
        behind = {at: (end, written[at]) for at, end in ends.items() if end < written.get(at, 0)}
        if not behind:
            return ranges
        asked = _within(spark, replace(wanted, isolation_level="read_uncommitted"), behind)
        kept_back = asked.groupBy("partition").agg(F.min("offset"), F.max("offset")).collect()
        if not kept_back:
            return ranges
        if time.monotonic() >= deadline:
            which = ", ".join(
                f"offsets {first} to {last} of {TopicPartition(wanted.topic, partition)}"
                for partition, first, last in sorted(kept_back)
            )
            raise ConfigError(
                f"{which} wait for the end of an open transaction. Try again when it has ended "
                "(`plog transactions list` shows open ones, `plog transactions find-hanging` "
                "those that will never end), choose a shorter range (--until), or read "
                "uncommitted records, too (--isolation-level=read_uncommitted)"
            )
        time.sleep(POLL_INTERVAL_S)


def _client(wanted: Range) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": wanted.bootstrap,
        "kafka.isolation.level": wanted.isolation_level,
    }


def _within(
    spark: SparkSession, wanted: Range, offsets: Mapping[TopicPartition, tuple[int, int]]
) -> DataFrame:
    """Return the range's records between these offsets, start <= offset < end."""
    from pyspark.sql import functions as F  # noqa: N812

    fixed = {
        "assign": json.dumps({wanted.topic: [at.partition for at in offsets]}),
        "startingOffsets": _offsets({at: start for at, (start, _) in offsets.items()}),
        "endingOffsets": _offsets({at: end for at, (_, end) in offsets.items()}),
    }
    options = {**_client(wanted), **fixed, "includeHeaders": "true"}
    rows = spark.read.format("plog").options(**options).load()
    # Filter each record by its timestamp: late records are behind others.
    at = F.col("timestamp")
    if wanted.start_ms is not None:
        rows = rows.where(at >= F.timestamp_millis(F.lit(wanted.start_ms)))
    if wanted.end_ms is not None:
        rows = rows.where(at < F.timestamp_millis(F.lit(wanted.end_ms)))
    return rows if wanted.condition is None else rows.where(wanted.condition)


def _offsets(by_partition: Mapping[TopicPartition, int]) -> str:
    (topic,) = {at.topic for at in by_partition}
    return json.dumps({topic: {str(at.partition): to for at, to in by_partition.items()}})


def count(rows: DataFrame) -> list[Counted]:
    """Count the records by partition."""
    from pyspark.sql import functions as F  # noqa: N812

    parts = rows.groupBy("partition").agg(
        F.count(F.lit(1)),
        F.min("offset"),
        F.max("offset"),
        F.unix_millis(F.min("timestamp")),
        F.unix_millis(F.max("timestamp")),
    )
    return [
        Counted(partition, records, start, end, job.utc_text(first), job.utc_text(last))
        for partition, records, start, end, first, last in sorted(parts.collect())
    ]


def replayed(
    rows: DataFrame,
    *,
    select: Sequence[str] = COLUMNS,
    time_header: str | None = None,
    keep_partitions: bool = False,
) -> DataFrame:
    """Return the rows to write for these records, each partition's in order.

    Args:
        select: expressions in Spark's SQL for the sink's columns; at least `value`.
        time_header: a header for the record's own timestamp, in ms since 1970 as text.
        keep_partitions: write each record to the partition with the same number.

    Raises:
        ConfigError: `time_header` is set, but `select` has no column headers.
    """
    from pyspark.sql import functions as F  # noqa: N812

    # The source cuts partitions into tasks of equal size; one task per partition keeps its order.
    rows = rows.repartition("partition").sortWithinPartitions("partition", "offset")
    if time_header is not None:
        at = F.encode(F.unix_millis("timestamp").cast("string"), "utf-8")
        header = F.struct(F.lit(time_header).alias("key"), at.alias("value"))
        given = F.coalesce("headers", F.array().cast(rows.schema["headers"].dataType))
        rows = rows.withColumn("headers", F.concat(given, F.array(header)))
    made = rows.selectExpr(*select, *(["partition"] if keep_partitions else []))
    if time_header is not None and "headers" not in made.columns:
        raise ConfigError(
            f"--time-header={time_header} needs a column headers, which --select leaves out: "
            "add --select=headers"
        )
    return made


def write(
    rows: DataFrame, bootstrap: str, topic: str, *, transaction_timeout_ms: int = TIMEOUT_MS
) -> None:
    """Append rows to a topic, all or none.

    Raises:
        TimedOut: the transaction timeout is too short, or the brokers refuse it.
    """
    from pyspark.errors import PySparkException

    writer = rows.write.format("plog").mode("append").option("topic", topic)
    writer.option("kafka.bootstrap.servers", bootstrap)
    writer.option("kafka.transaction.timeout.ms", transaction_timeout_ms)
    option = f"--transaction-timeout={job.duration_option(transaction_timeout_ms)}"
    try:
        writer.save()
    except PySparkException as fault:
        if "InvalidTransactionTimeout" in str(fault):
            raise TimedOut(
                f"{option} is above the brokers' transaction.max.timeout.ms; use a shorter one"
            ) from fault
        if any(word in str(fault) for word in TOO_LONG):
            raise TimedOut(
                f"nothing was written: it took longer than {option}. Set a longer one, or choose "
                "a shorter range"
            ) from fault
        raise


def replay(
    spark: SparkSession,
    wanted: Range,
    to: str,
    *,
    to_bootstrap: str | None = None,
    select: Sequence[str] = COLUMNS,
    time_header: str | None = None,
    keep_partitions: bool = False,
    transaction_timeout_ms: int = TIMEOUT_MS,
    confirm: Callable[[list[Counted]], bool] = lambda _: True,
) -> list[Counted]:
    """Write the records of a range into a topic; see `replayed` for the arguments.

    Args:
        confirm: called with the counts; nothing is written unless it returns True.

    Returns:
        The counts of the records, which were written if confirmed.

    Raises:
        ConfigError: the target is not suitable, or an open transaction holds back records.
        KafkaError: one of the topics does not exist, or the brokers do not respond.
        TimedOut: see `write`.
    """
    target = to_bootstrap or wanted.bootstrap
    _check_target(wanted, target, to, keep_partitions=keep_partitions)
    rows = records(spark, wanted)
    made = replayed(rows, select=select, time_header=time_header, keep_partitions=keep_partitions)
    _check_columns(made)
    with job.progress(spark, "counting"):
        counted = count(rows)
    if counted and confirm(counted):
        with job.progress(spark, "writing"):
            write(made, target, to, transaction_timeout_ms=transaction_timeout_ms)
    return counted


def _check_target(wanted: Range, bootstrap: str, topic: str, *, keep_partitions: bool) -> None:
    from plog.client.admin import Admin

    with Admin(wanted.bootstrap) as admin:
        source = admin.topic(wanted.topic)
    with Admin(bootstrap) as admin:
        try:
            target = admin.topic(topic)
        except UnknownTopicOrPartition as fault:
            raise UnknownTopicOrPartition(
                f"{fault}; create it: `plog topics create {topic} --partitions "
                f"{len(source.partitions)}`"
            ) from fault
    if source.topic_id == target.topic_id:
        raise ConfigError(f"topic {topic} cannot be replayed into itself")
    if keep_partitions and len(target.partitions) < len(source.partitions):
        raise ConfigError(
            f"--keep-partitions: topic {wanted.topic} has {len(source.partitions)} partitions, "
            f"but {topic} only {len(target.partitions)}; add partitions to it"
        )


def _check_columns(rows: DataFrame) -> None:
    """Refuse columns that the sink would refuse, before counting."""
    from plog.spark import sink_rows

    sink_rows.check(rows.schema, "given")


def print_counted(wanted: Range, to: str, counted: Sequence[Counted]) -> None:
    """Print the records to write, by partition."""
    columns = ("Partition", "Records", "First offset", "Last offset", "First time", "Last time")
    total = sum(one.records for one in counted)
    job.print_table(f"{wanted.topic} to {to}: {total:,} records", columns, counted)


@click.command()
@job.config_option
@job.bootstrap_option
@click.option("--topic", required=True, help="The topic to read.")
@click.option("--to", required=True, help="The topic to write; it must exist.")
@click.option("--to-bootstrap-server", help="A broker of the target cluster, if it is another one.")
@click.option(
    "--from", "start_ms", type=job.UTC_TIME, help="Only records of this time (UTC) and later."
)
@click.option("--until", "end_ms", type=job.UTC_TIME, help="Only records before this time (UTC).")
@click.option(
    "--filter",
    "condition",
    metavar="SQL",
    help='Only records that meet this condition, e.g. "get_json_object(cast(value AS string), '
    "'$.carrier') = 'UA'\".",
)
@click.option(
    "--select",
    multiple=True,
    metavar="SQL",
    default=COLUMNS,
    show_default=True,
    help="Expression named key, value, headers or partition, e.g. "
    '"upper(cast(value AS string)) AS value". Repeatable. Replaces all three defaults: without '
    "key and headers here, records have none.",
)
@click.option("--time-header", metavar="NAME", help="Header for the records' own timestamps.")
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="Write each record to the partition with the same number, in order. Otherwise keys "
    "select the partition, and records without a key may change their order.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Records to read: committed ones, or all.",
)
@click.option(
    "--transaction-timeout",
    "transaction_timeout_ms",
    type=duration_ms,
    default="15m",
    show_default=True,
    metavar="TIME",
    help="Time to write everything; at most the brokers' transaction.max.timeout.ms (default 15m).",
)
@click.option("--dry-run", is_flag=True, help="Count the records, and write nothing.")
@click.option("--yes", is_flag=True, help="Write without asking for confirmation.")
def main(
    bootstrap_server: str,
    topic: str,
    to: str,
    to_bootstrap_server: str | None,
    start_ms: int | None,
    end_ms: int | None,
    condition: str | None,
    select: tuple[str, ...],
    time_header: str | None,
    keep_partitions: bool,
    isolation_level: str,
    transaction_timeout_ms: int,
    dry_run: bool,
    yes: bool,
) -> None:
    """Write the records of a time range of a topic into another topic, all or none."""
    wanted = Range(bootstrap_server, topic, start_ms, end_ms, condition, isolation_level)
    agreed = False

    def confirm(counted: list[Counted]) -> bool:
        nonlocal agreed
        print_counted(wanted, to, counted)
        if dry_run:
            return False
        if not yes and not sys.stdin.isatty():
            click.echo("Nothing written. Pass --yes to write without a terminal.")
            return False
        agreed = yes or click.confirm(f"Write them to {to}?")
        return agreed

    with job.session("replay") as spark:
        counted = replay(
            spark, wanted, to,
            to_bootstrap=to_bootstrap_server, select=select, time_header=time_header,
            keep_partitions=keep_partitions, transaction_timeout_ms=transaction_timeout_ms,
            confirm=confirm,
        )  # fmt: skip
    if not counted:
        click.echo("No records in this range.")
    elif agreed:
        click.echo(f"{sum(one.records for one in counted):,} records written to {to}")


if __name__ == "__main__":
    main()
