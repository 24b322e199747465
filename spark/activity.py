"""The activity stream as Spark reads it: which event is late, and of when each counts.

What the jobs over it have in common. `activity_events.py` makes such a stream, and says the same
without Spark.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any

import checkpoints
import click
import job
from job import AnyCommand, Options

from plog.errors import PlogError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "time bigint, user string, kind string, address string"
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DROPPED = "counts, of events that came in time and were read when their windows were over"
STATE = {
    # On disk: a first batch may have days of windows. A checkpoint keeps what it was begun with.
    "spark_sql_streaming_stateStore_providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark_sql_streaming_stateStore_rocksdb_boundedMemoryUsage": "true",
    # The count of rows in a query's progress: each change would be a read besides.
    "spark_sql_streaming_stateStore_rocksdb_trackTotalNumberOfRows": "false",
    # A batch writes down what it has changed, not whole files of what there is.
    "spark_sql_streaming_stateStore_rocksdb_changelogCheckpointing_enabled": "true",
}
"""Settings of Spark for what is counted and not written yet."""


class Duration(click.ParamType):
    """A time like 90s, 5m, 2h or 1d; gives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time in seconds."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+)([smhd])", str(value).strip())
        if found is None or not int(found[1]):
            self.fail(f"{value!r}; a duration is e.g. 90s, 5m, 2h or 1d", param, ctx)
        return int(found[1]) * UNITS_S[found[2]]


DURATION = Duration()


def duration_text(seconds: int) -> str:
    """Return a time in seconds as a Duration is written, in its largest whole unit."""
    unit = max((unit for unit in UNITS_S if not seconds % UNITS_S[unit]), key=UNITS_S.__getitem__)
    return f"{seconds // UNITS_S[unit]}{unit}"


class Dropped(PlogError):
    """Spark has left out what it was to count."""


def options(*, late_after: str) -> Callable[[AnyCommand], AnyCommand]:
    """Give a command the options that the jobs have in common, late after so long by default."""

    def add(command: AnyCommand) -> AnyCommand:
        for option in reversed(_options(late_after)):
            command = option(command)
        return command

    return add


def _options(late_after: str) -> tuple[Callable[[AnyCommand], AnyCommand], ...]:
    return (
        click.option(
            "--topic", default="activity", show_default=True, help="Where the events are."
        ),
        click.option(
            "--checkpoint",
            type=click.Path(file_okay=False),
            required=True,
            help="Directory in which the job keeps how far it is: a later run goes on there. "
            "One that counts otherwise needs another.",
        ),
        click.option(
            "--continuous/--no-continuous",
            help="Go on for ever, not only to what is there now.  [default: no-continuous]",
        ),
        click.option(
            "--every",
            "every_s",
            type=DURATION,
            default="10s",
            show_default=True,
            help="With --continuous: how often there is a batch.",
        ),
        click.option(
            "--late-after",
            "late_after_s",
            type=DURATION,
            default=late_after,
            show_default=True,
            help="Late is what arrives (by the records' timestamps) so long after it happened.",
        ),
        click.option(
            "--slack",
            "slack_s",
            type=DURATION,
            default="1m",
            show_default=True,
            help="By how much producers' clocks may differ: windows are kept so much longer.",
        ),
        click.option(
            "--parts",
            type=click.IntRange(1),
            default=4,
            show_default=True,
            help="In how many parts windows are counted; what the first run was given stays.",
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

    What is no JSON or has no time since 1970 is left out (see `left_out`); user, kind and address
    may be NULL.

    Columns: user, kind, address, late, and of when the event counts, `happened`. That is its own
    time, but not later than it arrived: else a client whose clock is ahead would close the windows
    of all others. What arrives more than `late_after_s` after its time is late, and counts of when
    it arrived, so that it can be counted at all. So what is late does not hang on how the stream
    is cut into batches, and a stream that is read again gives the same.

    A batch reads all that is there. The watermark is that of the newest event of any partition, and
    `maxOffsetsPerTrigger` shares a batch out by numbers of records, not by their times: with it, a
    partition that has the last hour alone would end windows of which others are still to be read.

    Args:
        options: further ones of the source.
        slack_s: for this longer windows stay open, as clocks differ.
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
    """Return rows but those of a condition in SQL, which `run` tells the number of.

    Args:
        condition: never NULL.
        name: no other of the query's is called so.
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
    """Write rows, of a key and a value, into a topic: each once.

    Args:
        options: further ones of the sink.
        trigger: when there are batches (see `trigger`).
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
    """Create a topic to write into, if there is none."""
    from plog.client.admin import Admin
    from plog.errors import TopicAlreadyExists

    with Admin(bootstrap) as admin, suppress(TopicAlreadyExists):
        admin.create_topic(topic)


def keep_settings(checkpoint: str, **settings: int | str) -> None:
    """Refuse a checkpoint that was begun with other settings (see `checkpoints.keep_settings`).

    Args:
        settings: by the names of main's arguments: those that end in `_s` are times in seconds.
    """
    kept = {
        name.removesuffix("_s").replace("_", "-"): (
            duration_text(value) if isinstance(value, int) else value
        )
        for name, value in settings.items()
    }
    checkpoints.keep_settings(checkpoint, kept)


def session(name: str, parts: int) -> AbstractContextManager[SparkSession]:
    """Return a session of a job, which counts in so many parts (see `job.session`)."""
    return job.session(name, spark_sql_shuffle_partitions=str(parts), **STATE)


def run(
    spark: SparkSession, starts: Sequence[Callable[[], StreamingQuery]], *, continuous: bool
) -> None:
    """Run queries that read what the one before writes, and tell of each what it has done.

    Each to its end; or all at once, until one ends or the job is told to stop.

    Raises:
        Dropped: some counts are too low.
    """
    queries: list[StreamingQuery] = []
    with job.told(spark, DROPPED) as dropped, ExitStack() as running:
        for start in starts:
            query = start()
            queries.append(query)
            running.callback(job.stop, query)
            if not continuous:
                query.awaitTermination()
        if continuous:
            click.echo("running; Ctrl-C ends it, and the next run goes on from there", err=True)
            _wait(queries)
    if dropped:
        raise Dropped(
            f"Spark has dropped {dropped.total():,} {DROPPED}: what was written is not complete, "
            "and a longer --slack keeps such"
        )


def _wait(queries: Sequence[StreamingQuery]) -> None:
    """Wait until one of the queries ends, with its exception, or Ctrl-C is pressed."""
    try:
        # Not in a call of the JVM: Ctrl-C there brings a page of traceback.
        while all(query.isActive for query in queries):
            time.sleep(0.5)
    except KeyboardInterrupt:
        return
    for query in queries:
        if not query.isActive:
            query.awaitTermination()
