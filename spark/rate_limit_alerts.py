"""Tells crawlers and abusers of an activity stream from people, with an alert for each burst.

    spark-submit spark/rate_limit_alerts.py --checkpoint DIR

Reads JSON events (`activity_events.py` makes some) through `readStream.format("plog")`, counts
those of each user or address over sliding windows, and writes an alert into a topic, once, when a
window is the first over the limit for some time.
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
    """Return an alert for each burst, of the columns of SCHEMA, when its first window has closed.

    Two aggregates that Spark has built in. The first counts each key's events by sliding window and
    keeps the windows over a limit, which are few. The second looks back from each moment at those
    that ended within `quiet_s`: where the earliest of them ends right then, a burst begins. So an
    alert does not wait for a burst to end, and neither rows nor state go through Python, as they
    would with a processor of transformWithState, whose timers this does without.

    Args:
        by: the column that is the key: user or address.
        quiet_s: a burst ends when for so long no window was over a limit.
        limit: so many events in a window are abuse;
        crawl_limit: so many views in a window without a click, as people click, are a crawler.
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
    # The least struct is the one of the window that ended first.
    firsts = over.groupBy(looking_back, "key").agg(F.min("found").alias("first"))
    return firsts.where(F.col("first.window_end") == F.col("back.end")).select(
        "key", "first.reason", "first.window_start", "first.window_end", "first.events"
    )


def start_alerts(
    rows: DataFrame, bootstrap: str, topic: str, checkpoint: str, **how: Any
) -> StreamingQuery:
    """Write alerts into a topic, as JSON, by their keys.

    Args:
        how: see `activity.to_topic`.
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
    help="Whose events are counted together.",
)
@click.option("--window", "window_s", type=activity.DURATION, default="1m", show_default=True)
@click.option(
    "--slide",
    "slide_s",
    type=activity.DURATION,
    default="10s",
    show_default=True,
    help="A window begins so often; --window and --quiet are multiples of it.",
)
@click.option(
    "--quiet",
    "quiet_s",
    type=activity.DURATION,
    default="2m",
    show_default=True,
    help="A burst is over when no window that ends within this time is over a limit.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="So many events in a window are abuse.",
)
@click.option(
    "--crawl-limit",
    type=click.IntRange(1),
    default=60,
    show_default=True,
    help="So many views in a window, and no click, are a crawler.",
)
@click.option(
    "--alert-topic", default="activity-alerts", show_default=True, help="Where the alerts go."
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
    """Find crawlers and abusers in an activity stream; an alert for each of their bursts.

    An alert comes when its window can get no more events: --late-after and --slack after it by the
    stream's own clock. Where events come at once, a short --late-after makes alerts prompt. Late
    events are not counted, nor those without what --by names. Records that are no JSON, or have no
    time, are left out; at its end the job says how many those were.
    """
    for name in ("window", "quiet"):
        if rules[f"{name}_s"] % rules["slide_s"]:
            raise click.BadParameter(f"--{name} must be a multiple of --slide")
    trigger = activity.trigger(continuous=continuous, every_s=every_s)
    with activity.session("rate limit alerts", parts) as spark:
        # Not the limits: they are asked of windows that have been counted.
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
