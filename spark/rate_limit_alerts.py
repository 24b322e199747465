"""Detects crawlers and abusers in an activity stream, with one alert per burst.

    spark-submit spark/rate_limit_alerts.py --checkpoint DIR

Reads JSON events (`activity_events.py` generates some) through `readStream.format("plog")`, counts
the events of each user or address over sliding windows, and writes one alert into a topic when a
window is the first over a limit for some time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import activity
import click
import job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

CRAWLER, ABUSE = "crawler", "abuse"
SCHEMA = "key string, reason string, window_start timestamp, window_end timestamp, events bigint"


def alerts(
    events: DataFrame,
    *,
    by: str,
    window_s: int,
    slide_s: int,
    quiet_s: int,
    limit: int,
    crawl_limit: int,
) -> DataFrame:
    """Return an alert per burst, with the columns of SCHEMA, when its first window has closed.

    Uses two built-in aggregates. The first counts each key's events by sliding window and keeps the
    few windows over a limit. The second looks back from each slide at the windows that ended within
    `quiet_s`: if the earliest of them ends at that slide, a burst begins. So an alert does not wait
    for the burst's end. Neither rows nor state pass through Python, as they would with
    transformWithState, and no timers are needed.

    Args:
        by: the key column: user or address.
        quiet_s: a burst ends when no window was over a limit for this long.
        limit: this many events in a window are abuse.
        crawl_limit: this many views in a window without a click are a crawler.
    """
    from pyspark.sql import functions as F  # noqa: N812

    window, slide = f"{window_s} seconds", f"{slide_s} seconds"
    counted = (
        events.where(~F.col("late") & F.col(by).isNotNull())
        .groupBy(F.window("happened", window, slide), F.col(by).alias("key"))
        .agg(
            F.count("*").alias("events"),
            F.count_if(F.col("kind") == "view").alias("views"),
            F.count_if(F.col("kind") == "click").alias("clicks"),
        )
    )
    crawls = (F.col("views") >= crawl_limit) & (F.col("clicks") == 0)
    over = counted.where(crawls | (F.col("events") >= limit)).select(
        "window",
        "key",
        F.struct(
            F.col("window.end").alias("window_end"),
            F.col("window.start").alias("window_start"),
            F.when(crawls, CRAWLER).otherwise(ABUSE).alias("reason"),
            "events",
        ).alias("found"),
    )
    looking_back = F.window("window", f"{quiet_s + slide_s} seconds", slide).alias("back")
    # The minimum struct is that of the window that ended first.
    firsts = over.groupBy(looking_back, "key").agg(F.min("found").alias("first"))
    return firsts.where(F.col("first.window_end") == F.col("back.end")).select(
        "key", "first.reason", "first.window_start", "first.window_end", "first.events"
    )


def start_alerts(
    rows: DataFrame, bootstrap: str, topic: str, checkpoint: str, **how: Any
) -> StreamingQuery:
    """Write alerts into a topic, as JSON with the alert's key.

    Args:
        how: further arguments of `activity.to_topic`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    records = rows.select("key", F.to_json(F.struct("*")).alias("value"))
    return activity.to_topic(records, bootstrap, topic, checkpoint, "alerts", **how)


@click.command()
@job.config_option
@job.bootstrap_option
@activity.options(late_after="1m")
@click.option(
    "--by",
    type=click.Choice(["user", "address"]),
    default="user",
    show_default=True,
    help="Key whose events are counted together.",
)
@click.option(
    "--window",
    "window_s",
    type=activity.DURATION,
    default="1m",
    show_default=True,
    help="Length of a window.",
)
@click.option(
    "--slide",
    "slide_s",
    type=activity.DURATION,
    default="10s",
    show_default=True,
    help="Interval between the starts of windows; --window and --quiet must be multiples of it.",
)
@click.option(
    "--quiet",
    "quiet_s",
    type=activity.DURATION,
    default="2m",
    show_default=True,
    help="A burst ends when no window was over a limit for this long.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Number of events in a window that counts as abuse.",
)
@click.option(
    "--crawl-limit",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="Number of views in a window, without a click, that counts as a crawler.",
)
@click.option(
    "--alert-topic", default="activity-alerts", show_default=True, help="Topic for the alerts."
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
    source_options: job.Options,
    sink_options: job.Options,
    alert_topic: str,
    **rules: Any,
) -> None:
    """Find crawlers and abusers in an activity stream, and write an alert for each burst.

    An alert is written when its window has closed: --late-after and --slack after its end, by the
    stream's own clock. If events arrive promptly, a short --late-after makes alerts faster. Late
    events, and events without the key of --by, are not counted. Records that are not JSON, or have
    no time, are left out; the job reports their number at its end.
    """
    for name in ("window", "quiet"):
        if rules[f"{name}_s"] % rules["slide_s"]:
            raise click.UsageError(
                f"--{name} {job.duration_option(rules[f'{name}_s'] * 1000)} is not a multiple of "
                f"--slide {job.duration_option(rules['slide_s'] * 1000)}"
            )
    trigger = activity.trigger(continuous=continuous, every_s=every_s)
    with activity.session("rate limit alerts", parts) as spark:
        # Without the limits, which apply to windows that are already counted, and may change.
        windows = {name: rules[name] for name in ("by", "window_s", "slide_s", "quiet_s")}
        activity.keep_settings(
            checkpoint,
            topic=topic,
            late_after_s=late_after_s,
            alert_topic=alert_topic,
            **windows,
        )
        activity.create(bootstrap_server, alert_topic)
        events = activity.events(
            spark,
            bootstrap_server,
            topic,
            source_options,
            late_after_s=late_after_s,
            slack_s=slack_s,
        )
        rows = alerts(events, **rules)
        start = partial(
            start_alerts,
            *(rows, bootstrap_server, alert_topic, checkpoint),
            options=sink_options,
            **trigger,
        )
        activity.run(spark, [start], continuous=continuous)
    if not continuous:
        click.echo(
            f"Alerts are in topic {alert_topic}: plog consume {alert_topic} --bootstrap-server "
            f"{bootstrap_server} --isolation-level read_committed --exit-at-end"
        )


if __name__ == "__main__":
    main()
