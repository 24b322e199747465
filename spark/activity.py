"""Reads the activity stream with Spark: the time at which each event counts, and late events.

The common part of the jobs over this stream. `activity_events.py` generates such a stream, and
computes the same results without Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import checkpoints
import click
import job
from job import AnyCommand, Options

from plog.cli.output import UNITS_S
from plog.errors import PlogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "time bigint, user string, kind string, address string"
DROPPED = "counts: their events arrived in time, but were read after their windows had closed"
STATE = {
    # On disk: a first batch may have days of windows. A checkpoint keeps its first provider.
    "spark_sql_streaming_stateStore_providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark_sql_streaming_stateStore_rocksdb_boundedMemoryUsage": "true",
    # Counting rows for the query's progress would add a read to each change.
    "spark_sql_streaming_stateStore_rocksdb_trackTotalNumberOfRows": "false",
    # A batch writes its changes, not whole state files.
    "spark_sql_streaming_stateStore_rocksdb_changelogCheckpointing_enabled": "true",
}
"""Spark's settings for the state: counts that are not written yet."""


class Duration(click.ParamType):
    """A duration like 90s, 5m, 2h or 1d; converted to seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in seconds."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+)([smhd])", str(value).strip())
        if found is None or not int(found[1]):
            self.fail(f"invalid duration {value!r}: use e.g. 90s, 5m, 2h or 1d", param, ctx)
        return int(found[1]) * UNITS_S[found[2]]


DURATION = Duration()


class Dropped(PlogError):
    """Spark has dropped rows that it should have counted."""


def options(*, late_after: str) -> Callable[[AnyCommand], AnyCommand]:
    """Add the jobs' common options to a command; `late_after` is a default."""

    def add(command: AnyCommand) -> AnyCommand:
        for option in reversed(_options(late_after)):
            command = option(command)
        return command

    return add


def _options(late_after: str) -> tuple[Callable[[AnyCommand], AnyCommand], ...]:
    return (
        click.option(
            "--topic", default="activity", show_default=True, help="Topic with the events."
        ),
        click.option(
            "--checkpoint",
            type=click.Path(file_okay=False),
            required=True,
            help="Directory for the job's position: the next run resumes there. "
            "Other windows or topics need another one.",
        ),
        click.option(
            "--continuous/--no-continuous",
            help="Run until stopped, or end after the present records.  [default: no-continuous]",
        ),
        click.option(
            "--every",
            "every_s",
            type=DURATION,
            default="10s",
            show_default=True,
            help="Interval between batches (with --continuous).",
        ),
        click.option(
            "--late-after",
            "late_after_s",
            type=DURATION,
            default=late_after,
            show_default=True,
            help="Events count as late if they arrive (record timestamp) this long after their "
            "own time.",
        ),
        click.option(
            "--slack",
            "slack_s",
            type=DURATION,
            default="1m",
            show_default=True,
            help="Maximum difference between producers' clocks; windows stay open longer by it.",
        ),
        click.option(
            "--parts",
            type=click.IntRange(1),
            default=4,
            show_default=True,
            help="Number of shuffle partitions. A checkpoint keeps that of its first run.",
        ),
        job.source_option,
        job.sink_option,
    )


def events(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    options: Options = (),
    *,
    late_after_s: int,
    slack_s: int,
) -> DataFrame:
    """Return the events of a stream, with a watermark on `happened`.

    Records that are not JSON, or have no time since 1970, are left out (see `left_out`); user, kind
    and address may be NULL.

    Columns: user, kind, address, late, and `happened`, the time at which the event counts. That is
    the event's own time, but at most its arrival: otherwise a client whose clock is ahead would
    close the windows of all others. An event that arrives more than `late_after_s` after its own
    time is late, and counts at its arrival, when its window is still open. So lateness does not
    depend on how the stream is cut into batches, and reading a stream again gives the same result.

    A batch reads all present records. The watermark follows the newest event of any partition, but
    `maxOffsetsPerTrigger` divides a batch by number of records, not by time. With it, a partition
    with the last hour only would close windows that other partitions still have events for.

    Args:
        options: further options of the source.
        slack_s: how much longer windows stay open, because clocks differ.
    """
    from pyspark.sql import functions as F  # noqa: N812

    records = (
        spark.readStream.format("plog")
        .schema("value binary, timestamp timestamp")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .options(**dict(options))
        .load()
    )
    parsed = records.select(
        F.from_json(F.col("value").cast("string"), SCHEMA).alias("event"),
        F.unix_millis("timestamp").alias("arrived"),
    )
    parsed = left_out(parsed, "event.time IS NULL OR event.time < 0", "events")
    late = F.col("arrived") - F.col("event.time") > late_after_s * 1000
    happened = F.when(late, F.col("arrived")).otherwise(F.least("event.time", "arrived"))
    return parsed.select(
        "event.user",
        "event.kind",
        "event.address",
        late.alias("late"),
        F.timestamp_millis(happened).alias("happened"),
    ).withWatermark("happened", f"{late_after_s + slack_s} seconds")


def left_out(rows: DataFrame, condition: str, name: str) -> DataFrame:
    """Return the rows that do not meet a condition in SQL; `run` reports the number of others.

    Args:
        condition: never NULL.
        name: unique in the query.
    """
    from pyspark.sql import functions as F  # noqa: N812

    is_out = F.expr(condition)
    return rows.observe(name, F.count_if(is_out).alias(job.LEFT_OUT)).where(~is_out)


def trigger(*, continuous: bool, every_s: int) -> dict[str, Any]:
    """Return the arguments of DataStreamWriter.trigger."""
    return {"processingTime": f"{every_s} seconds"} if continuous else {"availableNow": True}


def to_topic(
    rows: DataFrame,
    bootstrap: str,
    topic: str,
    checkpoint: str,
    name: str,
    options: Options = (),
    **trigger: Any,
) -> StreamingQuery:
    """Write rows with a key and a value into a topic, exactly once.

    Args:
        options: further options of the sink.
        trigger: arguments of the trigger (see `trigger`).
    """
    return (
        rows.writeStream.format("plog")
        .queryName(name)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .options(**dict(options))
        .outputMode("append")
        .trigger(**trigger)
        .start()
    )


def create(bootstrap: str, topic: str) -> None:
    """Create the output topic if it does not exist."""
    from plog.client.admin import Admin
    from plog.errors import TopicAlreadyExists

    with Admin(bootstrap) as admin, suppress(TopicAlreadyExists):
        admin.create_topic(topic)


def keep_settings(checkpoint: str, **settings: int | str) -> None:
    """Refuse a checkpoint with other settings (see `checkpoints.keep_settings`).

    Args:
        settings: by the names of main's arguments; names that end in `_s` are in seconds.
    """
    kept = {
        name.removesuffix("_s").replace("_", "-"): (
            job.duration_option(value * 1000) if isinstance(value, int) else value
        )
        for name, value in settings.items()
    }
    checkpoints.keep_settings(checkpoint, kept)


def session(name: str, parts: int) -> AbstractContextManager[SparkSession]:
    """Return a session with `parts` shuffle partitions (see `job.session`)."""
    return job.session(name, spark_sql_shuffle_partitions=str(parts), **STATE)


def run(
    spark: SparkSession, starts: Sequence[Callable[[], StreamingQuery]], *, continuous: bool
) -> None:
    """Run a chain of queries, each reading the output of the one before, and report their work.

    Runs them one after the other; if continuous all at once, until one ends or Ctrl-C is pressed.

    Raises:
        Dropped: some counts are too low.
    """
    queries: list[StreamingQuery] = []
    with job.report_queries(spark, DROPPED) as dropped, ExitStack() as running:
        for start in starts:
            query = start()
            queries.append(query)
            running.callback(job.stop, query)
            if not continuous:
                if not job.wait_for_end(partial(_is_active, query)):
                    raise click.Abort
                query.awaitTermination()
        if continuous:
            click.echo(job.CTRL_C_ENDS, err=True)
            _wait(queries)
    if dropped:
        raise Dropped(
            f"Spark has dropped {dropped.total():,} {DROPPED}. The output is incomplete; set a "
            "longer --slack for the next run"
        )


def _is_active(query: StreamingQuery) -> bool:
    return query.isActive


def _wait(queries: Sequence[StreamingQuery]) -> None:
    """Wait until one of the queries ends, with its exception, or Ctrl-C is pressed."""
    if not job.wait_for_end(lambda: all(query.isActive for query in queries)):
        return
    for query in queries:
        if not query.isActive:
            query.awaitTermination()
