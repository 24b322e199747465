"""Writes the records of a time range of a topic into another topic, all of them or none.

    spark-submit spark/replay.py --topic flights --to flights-again --from 2013-07-01 --yes

It says first how many records that is, by partition, and writes when it is told to: by `--yes`, or
by an answer on the terminal. What it counted is what it writes: the offsets are fixed before, and
records that come meanwhile are left out.

The sink writes them in transactions that are committed together, within milliseconds, when all is
written; a run that dies before leaves nothing that readers of committed records see. Keys, values
and headers are kept, and the order of each partition's records. `--filter` takes some of them,
`--select` makes others of them. The sink has no timestamps: records get the time of their writing,
and their own in a header, if `--time-header` names one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import click
import job

from plog.cli.output import duration_ms, duration_text
from plog.errors import ConfigError, PlogError
from plog.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("key", "value", "headers")
"""What is written if nothing else is said."""
TIMEOUT_MS = 900_000
"""The most that brokers allow by default."""
TOO_LONG = ("kafka.transaction.timeout.ms", "ProducerFenced", "InvalidProducerEpoch")
"""What the sink says where a transaction was open for too long: its ids are of one run alone."""


class TimedOut(PlogError):
    """Writing took longer than its transactions may be open, or brokers allow none so long."""


@dataclass(frozen=True)
class Range:
    """What is to be read.

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
    """What there is to be written of a partition; times as text."""

    partition: int
    records: int
    first_offset: int
    last_offset: int
    first_time: str
    last_time: str


def records(spark: SparkSession, wanted: Range) -> DataFrame:
    """Return the records of a range, as they are now: later ones do not join.

    Raises:
        KafkaError: the topic does not exist, or its brokers do not answer.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from plog.spark import offsets
    from plog.spark.arrow import FULL_SCHEMA
    from plog.spark.options import parse

    client = {
        "kafka.bootstrap.servers": wanted.bootstrap,
        "kafka.isolation.level": wanted.isolation_level,
    }
    given: dict[str, str] = {"subscribe": wanted.topic}
    if wanted.start_ms is not None:
        given["startingTimestamp"] = str(max(wanted.start_ms, 0))
        given["startingOffsetsByTimestampStrategy"] = "latest"
    ranges = offsets.plan(parse(client | given))
    if not ranges:
        return spark.createDataFrame([], FULL_SCHEMA)
    fixed = {
        "assign": json.dumps({wanted.topic: [one.partition.partition for one in ranges]}),
        "startingOffsets": _offsets({one.partition: one.start for one in ranges}),
        "endingOffsets": _offsets({one.partition: one.end for one in ranges}),
    }
    rows = spark.read.format("plog").options(**client, **fixed, includeHeaders="true").load()
    # By the time of each: those that are late are behind others that are not.
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
    """Return how many records there are, by partition."""
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
    """Return the rows that are written for some records, each partition's in their order.

    Args:
        select: expressions in Spark's SQL that make the sink's columns; `value` at least.
        time_header: a header for the record's own time, in ms since 1970 as text.
        keep_partitions: whether records go to the partition of the number that they are in.
    """
    from pyspark.sql import functions as F  # noqa: N812

    # The source cuts partitions into tasks of equal size; one task each keeps their order.
    rows = rows.repartition("partition").sortWithinPartitions("partition", "offset")
    if time_header is not None:
        at = F.encode(F.unix_millis("timestamp").cast("string"), "utf-8")
        header = F.struct(F.lit(time_header).alias("key"), at.alias("value"))
        given = F.coalesce("headers", F.array().cast(rows.schema["headers"].dataType))
        rows = rows.withColumn("headers", F.concat(given, F.array(header)))
    return rows.selectExpr(*select, *(["partition"] if keep_partitions else []))


def write(
    rows: DataFrame, bootstrap: str, topic: str, *, transaction_timeout_ms: int = TIMEOUT_MS
) -> None:
    """Append rows to a topic, all or none.

    Raises:
        TimedOut: see there.
    """
    from pyspark.errors import PySparkException

    writer = rows.write.format("plog").mode("append").option("topic", topic)
    writer.option("kafka.bootstrap.servers", bootstrap)
    writer.option("kafka.transaction.timeout.ms", transaction_timeout_ms)
    option = f"--transaction-timeout={duration_text(transaction_timeout_ms)}"
    try:
        writer.save()
    except PySparkException as fault:
        if "InvalidTransactionTimeout" in str(fault):
            raise TimedOut(
                f"{option} is more than transaction.max.timeout.ms of the brokers"
            ) from fault
        if any(word in str(fault) for word in TOO_LONG):
            raise TimedOut(f"nothing was written, as it took longer than {option}") from fault
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
        confirm: told what there is to be written; nothing is, unless it agrees.

    Returns:
        what was counted, and written if that was confirmed.

    Raises:
        ConfigError: it cannot be written there.
        KafkaError: one of the topics does not exist, or the brokers do not answer.
        TimedOut: see there.
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
        target = admin.topic(topic)
    if source.topic_id == target.topic_id:
        raise ConfigError(f"topic {topic} cannot be replayed into itself")
    if keep_partitions and len(target.partitions) < len(source.partitions):
        raise ConfigError(
            f"topic {wanted.topic} has {len(source.partitions)} partitions, and {topic} only "
            f"{len(target.partitions)}: they cannot be kept"
        )


def _check_columns(rows: DataFrame) -> None:
    """Refuse what the sink would, before anything is counted."""
    from plog.spark import sink_rows

    sink_rows.check(rows.schema, "given")


def print_counted(wanted: Range, to: str, counted: Sequence[Counted]) -> None:
    """Print what there is to be written."""
    columns = ("Partition", "Records", "First offset", "Last offset", "First time", "Last time")
    total = sum(one.records for one in counted)
    job.print_table(f"{wanted.topic} to {to}: {total:,} records", columns, counted)


@click.command()
@job.config_option
@job.bootstrap_option
@click.option("--topic", required=True, help="The topic to read.")
@click.option("--to", required=True, help="The topic to write; it must exist.")
@click.option(
    "--to-bootstrap-server", help="A broker of the cluster to write to, if that is another one."
)
@click.option(
    "--from", "start_ms", type=job.UTC_TIME, help="Only records of this time (UTC) and later."
)
@click.option("--until", "end_ms", type=job.UTC_TIME, help="Only records before this time (UTC).")
@click.option(
    "--filter",
    "condition",
    metavar="SQL",
    help='Only records for which this is true, e.g. "get_json_object(cast(value AS string), '
    "'$.carrier') = 'UA'\".",
)
@click.option(
    "--select",
    multiple=True,
    metavar="SQL",
    default=COLUMNS,
    show_default=True,
    help="What to write: expressions named key, value, headers or partition, one each time, e.g. "
    '"upper(cast(value AS string)) AS value".',
)
@click.option("--time-header", metavar="NAME", help="Keep the records' times in such a header.")
@click.option(
    "--keep-partitions",
    is_flag=True,
    help="Write into partitions of the same number; otherwise keys decide.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
)
@click.option(
    "--transaction-timeout",
    "transaction_timeout_ms",
    type=duration_ms,
    default="15m",
    show_default=True,
    metavar="TIME",
    help="All must be written within this; transaction.max.timeout.ms of the brokers (15m if they "
    "say nothing else) bounds it.",
)
@click.option("--dry-run", is_flag=True, help="Only say how many records it would be.")
@click.option("--yes", is_flag=True, help="Write without asking; else it is asked on a terminal.")
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
            click.echo("Nothing is written without --yes")
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
        click.echo("There are no such records")
    elif agreed:
        click.echo(f"{sum(one.records for one in counted):,} records were written to {to}")


if __name__ == "__main__":
    main()
