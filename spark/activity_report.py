"""Reports on an activity stream: events, visitors and late events by window.

    spark-submit spark/activity_report.py --checkpoint DIR --parquet DIR

Reads JSON events (`activity_events.py` generates some) through `readStream.format("plog")`. Writes
one row per window and kind of event when the window has closed: into a topic, exactly once, and
from there to Parquet, which therefore has the same rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import activity
import click
import job
from checkpoints import below, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = (
    "window_start timestamp, window_end timestamp, kind string, "
    "events bigint, visitors bigint, late bigint"
)


def report(events: DataFrame, *, window_s: int, slide_s: int) -> DataFrame:
    """Return a row per window and kind, with the columns of SCHEMA.

    `visitors` are counted exactly: first events by user, then users. An event that is too late for
    its own windows counts only as `late`, in the windows of its arrival.
    """
    from pyspark.sql import functions as F  # noqa: N812

    window = F.window("happened", f"{window_s} seconds", f"{slide_s} seconds")
    events = activity.left_out(
        events, "user IS NULL OR kind IS NULL", "events without user or kind"
    )
    by_user = events.groupBy(window, "kind", "user").agg(
        F.count_if(~F.col("late")).alias("events"), F.count_if("late").alias("late")
    )
    by_kind = by_user.groupBy("window", "kind").agg(
        F.sum("events").alias("events"),
        F.count_if(F.col("events") > 0).alias("visitors"),
        F.sum("late").alias("late"),
    )
    return by_kind.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *("kind", "events", "visitors", "late"),
    )


def start_report(
    rows: DataFrame, bootstrap: str, topic: str, checkpoint: str, **how: Any
) -> StreamingQuery:
    """Write the rows of a report into a topic, as JSON; the key is window and kind.

    Args:
        how: further arguments of `activity.to_topic`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    start = F.date_format("window_start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    records = rows.select(
        F.concat_ws(" ", start, "kind").alias("key"), F.to_json(F.struct("*")).alias("value")
    )
    return activity.to_topic(records, bootstrap, topic, checkpoint, "report", **how)


def start_parquet(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    target: str,
    checkpoint: str,
    options: job.Options = (),
    **trigger: Any,
) -> StreamingQuery:
    """Write the topic of a report to Parquet, partitioned by the start date of windows.

    Args:
        options: further options of the source.
    """
    from pyspark.sql import functions as F  # noqa: N812

    records = (
        spark.readStream.format("plog")
        .schema("value binary")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .options(**dict(options))
        .load()
    )
    rows = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row"))
    return (
        rows.select("row.*", F.to_date("row.window_start").alias("date"))
        .writeStream.format("parquet")
        .queryName("parquet")
        .option("path", target)
        .option("checkpointLocation", checkpoint)
        .partitionBy("date")
        .trigger(**trigger)
        .start()
    )


def _check_target(target: str, checkpoint: str) -> None:
    """Refuse a directory of another checkpoint's query, if both are on this host's disks.

    Spark records the numbers of the batches in such a directory, and silently skips batches with
    these numbers: all the first ones of a new query. And if an old query gets a new directory, its
    earlier batches are missing there.
    """
    files, query = local_path(target), local_path(checkpoint)
    if files is None or query is None:
        return
    is_written = any((files / "_spark_metadata").glob("[0-9]*"))
    if is_written and not (query / "offsets").exists():
        raise click.UsageError(
            f"{target} was written with another --checkpoint; "
            "a new checkpoint needs a new --parquet"
        )
    if not is_written and any((query / "commits").glob("[0-9]*")):
        raise click.UsageError(
            f"{target} has no files of earlier runs with this --checkpoint; "
            "an old checkpoint needs its old --parquet"
        )


def totals(spark: SparkSession, target: str) -> list[tuple[str, int, int, int, int]]:
    """Return per kind: windows, events, maximum visitors in a window, and late events."""
    from pyspark.sql import functions as F  # noqa: N812

    by_kind = spark.read.schema(SCHEMA).parquet(target).groupBy("kind")
    rows = by_kind.agg(F.count("*"), F.sum("events"), F.max("visitors"), F.sum("late"))
    return [tuple(row) for row in rows.orderBy("kind").collect()]


@click.command()
@job.config_option
@job.bootstrap_option
@activity.options(late_after="10m")
@click.option(
    "--window",
    "window_s",
    type=activity.DURATION,
    default="5m",
    show_default=True,
    help="Length of a window.",
)
@click.option(
    "--slide",
    "slide_s",
    type=activity.DURATION,
    show_default="--window, without overlap",
    help="Interval between the starts of windows; --window must be a multiple of it.",
)
@click.option(
    "--report-topic", default="activity-report", show_default=True, help="Topic for the report."
)
@click.option(
    "--parquet",
    type=click.Path(file_okay=False),
    required=True,
    help="Directory for the report as Parquet files.",
)
def main(
    bootstrap_server: str,
    topic: str,
    checkpoint: str,
    continuous: bool,
    every_s: int,
    late_after_s: int,
    slack_s: int,
    parts: int,
    window_s: int,
    slide_s: int | None,
    source_options: job.Options,
    sink_options: job.Options,
    report_topic: str,
    parquet: str,
) -> None:
    """Count events and visitors of an activity stream by window and kind.

    Records that are not JSON, or have no time, user or kind, are left out; the job reports their
    number at its end.
    """
    slide_s = slide_s or window_s
    if window_s % slide_s:
        raise click.UsageError(
            f"--window {job.duration_option(window_s * 1000)} is not a multiple of "
            f"--slide {job.duration_option(slide_s * 1000)}"
        )
    trigger = activity.trigger(continuous=continuous, every_s=every_s)
    into_topic, into_parquet = below(checkpoint, "report"), below(checkpoint, "parquet")
    with activity.session("activity report", parts) as spark:
        _check_target(parquet, into_parquet)
        activity.keep_settings(
            checkpoint,
            topic=topic,
            window_s=window_s,
            slide_s=slide_s,
            late_after_s=late_after_s,
            report_topic=report_topic,
        )
        activity.create(bootstrap_server, report_topic)
        events = activity.events(
            spark,
            bootstrap_server,
            topic,
            source_options,
            late_after_s=late_after_s,
            slack_s=slack_s,
        )
        rows = report(events, window_s=window_s, slide_s=slide_s)
        activity.run(
            spark,
            [
                partial(
                    start_report,
                    *(rows, bootstrap_server, report_topic, into_topic),
                    options=sink_options,
                    **trigger,
                ),
                partial(
                    start_parquet,
                    *(spark, bootstrap_server, report_topic, parquet, into_parquet),
                    # Starting offsets may name partitions that only the activity topic has.
                    [one for one in source_options if not one[0].lower().startswith("starting")],
                    **trigger,
                ),
            ],
            continuous=continuous,
        )
        if not continuous:
            columns = ("Kind", "Windows", "Events", "Most visitors", "Late")
            job.print_table(f"Activity in {report_topic}", columns, totals(spark, parquet))
            click.echo("Windows that are still open are not included")
            if slide_s < window_s:
                click.echo(f"Windows overlap: each event is in {window_s // slide_s} of them")


if __name__ == "__main__":
    main()
