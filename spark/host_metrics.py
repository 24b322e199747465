"""Reports on what `plog host-metrics` publishes: averages by window, alerts, a plot.

    spark-submit spark/host_metrics.py --checkpoint DIR --plot hosts.png

Reads the hosts' JSON through `readStream.format("plog")`, and writes an alert into a topic for each
window in which a figure is beyond its limit: exactly once, even if the job is killed and restarted.
Then it reads the topic as a batch for the table and the plot. Any figure that an agent publishes
has averages and can have a limit.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import job
from checkpoints import keep_settings
from flights_report import NO_MATPLOTLIB, can_plot

from plog.cli.output import duration_ms
from plog.errors import PlogError, TopicAlreadyExists, UnknownTopicOrPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from plog.client.consumer import Consumer
    from plog.types import TopicPartition

SCHEMA = "host string, figures map<string, double>"
STATISTICS = ("mean", "min", "max")
SHOWN = ("cpu_used_share", "memory_used_share", "disk_used_share", "network_received_bytes_per_s")
RULES = (
    "cpu_used_share > 0.9",
    "memory_used_share > 0.9",
    "max disk_used_share > 0.85",
    "min broker_up < 1",
    "max broker_offline_partitions > 0",
)
KNOWN_WITHIN_S = 10
"""A broker hears of a topic that another one created, or does not answer."""
TIME = "yyyy-MM-dd'T'HH:mm:ss'Z'"
UNITS = ("B", "KB", "MB", "GB", "TB")
DROPPED = "averages: their records arrived after their windows had closed, and are in no alert"


class Window(NamedTuple):
    """One figure of one host in one window; times in ms since 1970."""

    start_ms: int
    host: str
    figure: str
    records: int
    mean: float
    min: float
    max: float


class Alert(NamedTuple):
    """A window in which a figure is beyond its limit."""

    start_ms: int
    host: str
    rule: str
    value: float


class Rule(NamedTuple):
    """A limit for the mean, minimum or maximum of a figure in a window."""

    statistic: str
    figure: str
    is_above: bool
    limit: float

    def __str__(self) -> str:
        """Return the limit as options take it."""
        before = "" if self.statistic == "mean" else f"{self.statistic} "
        return f"{before}{self.figure} {'>' if self.is_above else '<'} {self.limit:g}"

    def is_broken(self, window: Window) -> bool:
        """Tell whether a window of this figure is beyond the limit."""
        value: float = getattr(window, self.statistic)
        return value > self.limit if self.is_above else value < self.limit


class RuleType(click.ParamType):
    """A limit in an option: `cpu_used_share > 0.9`, `min broker_up < 1`."""

    name = "rule"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Rule:
        """Read the limit."""
        if isinstance(value, Rule):
            return value
        number = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
        pattern = rf"(?:({'|'.join(STATISTICS)}) +)?(\w+) *([<>]) *({number})"
        found = re.fullmatch(pattern, str(value).strip(), re.ASCII)
        if found is None:
            self.fail(
                f"invalid limit {value!r}: use e.g. 'cpu_used_share > 0.9', 'min broker_up < 1'"
            )
        statistic, figure, sign, limit = found.groups()
        return Rule(statistic or "mean", figure, sign == ">", float(limit))


# -- in Spark ----------------------------------------------------------------------------------


def measured(records: DataFrame) -> DataFrame:
    """Return a row for each figure of each record: timestamp, host, figure, value."""
    from pyspark.sql import functions as F  # noqa: N812

    parsed = F.from_json(F.col("value").cast("string"), SCHEMA)
    return (
        records.select("timestamp", parsed.alias("record"))
        .where("record.host IS NOT NULL")
        .select(
            "timestamp",
            F.col("record.host").alias("host"),
            F.explode("record.figures").alias("figure", "value"),
        )
        .where("value IS NOT NULL")
    )


def by_window(rows: DataFrame, window_ms: int) -> DataFrame:
    """Return the statistics of each figure of each host in each window."""
    from pyspark.sql import functions as F  # noqa: N812

    window = F.window("timestamp", f"{window_ms} milliseconds")
    return rows.groupBy(window, "host", "figure").agg(
        F.count("value").alias("records"),
        F.avg("value").alias("mean"),
        F.min("value").alias("min"),
        F.max("value").alias("max"),
    )


def beyond(windows: DataFrame, rules: Sequence[Rule]) -> DataFrame:
    """Return a record for each window and broken rule: the host as key, JSON as value."""
    from pyspark.sql import functions as F  # noqa: N812

    # Literals in the plan: a few comparisons per window, and no join.
    broken = []
    for rule in rules:
        value, limit = F.col(rule.statistic), F.lit(rule.limit)
        is_beyond = value > limit if rule.is_above else value < limit
        alert = F.struct(F.lit(str(rule)).alias("rule"), value.alias("value"), limit.alias("limit"))
        broken.append(F.when((F.col("figure") == rule.figure) & is_beyond, alert))
    alerts = windows.where(F.col("figure").isin(sorted({rule.figure for rule in rules}))).select(
        "window", "host", "figure", F.explode(F.array_compact(F.array(*broken))).alias("alert")
    )
    return alerts.select(
        F.col("host").alias("key"),
        F.to_json(
            F.struct(
                "host",
                "figure",
                "alert.*",
                F.date_format("window.start", TIME).alias("window_start"),
                F.date_format("window.end", TIME).alias("window_end"),
            )
        ).alias("value"),
    )


def start_alerts(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    alerts_topic: str,
    rules: Sequence[Rule],
    checkpoint: str,
    *,
    window_ms: int,
    late_ms: int,
    every_ms: int | None = None,
    source_options: job.Options = (),
    sink_options: job.Options = (),
) -> StreamingQuery:
    """Start the query that writes each alert once, when its window is over.

    Records have the timestamps of their hosts' clocks. A timestamp ahead of the driver's clock
    counts as the time of reading: otherwise one host whose clock is ahead would close the windows
    of all others. A repeated batch uses the time of its first run.

    Args:
        late_ms: a window is over when some host has published this much later than its end;
            records for it that arrive after that are in no alert.
        every_ms: the interval between batches; None reads the present records and ends.
        source_options, sink_options: further options.
    """
    from pyspark.sql import functions as F  # noqa: N812

    stream = (
        spark.readStream.format("plog")
        .schema("value binary, timestamp timestamp")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .options(**dict(source_options))
        .load()
        .withColumn("timestamp", F.least("timestamp", F.current_timestamp()))
        .withWatermark("timestamp", f"{late_ms} milliseconds")
    )
    writer = (
        beyond(by_window(measured(stream), window_ms), rules)
        .writeStream.format("plog")
        .queryName("alerts")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", alerts_topic)
        .option("checkpointLocation", checkpoint)
        .options(**dict(sink_options))
        .outputMode("append")
    )
    if every_ms is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_ms} milliseconds").start()


def report(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    figures: Sequence[str],
    *,
    window_ms: int,
    start_ms: int | None = None,
    options: job.Options = (),
) -> list[Window]:
    """Read the topic and return the windows of these figures, the oldest first.

    Args:
        start_ms: only records of this time and later.
        options: further options of the source.
    """
    from pyspark.sql import functions as F  # noqa: N812

    reader = (
        spark.read.format("plog")
        .schema("value binary, timestamp timestamp")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("kafka.isolation.level", "read_committed")
        .options(**dict(options))
    )
    if start_ms is not None:
        reader = reader.option("startingTimestamp", start_ms)
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    records = reader.load()
    if start_ms is not None:
        # Records that an agent held back are behind later ones.
        records = records.where(F.col("timestamp") >= F.timestamp_millis(F.lit(start_ms)))
    rows = measured(records).where(F.col("figure").isin(sorted(set(figures))))
    windows = by_window(rows, window_ms).select(
        F.unix_millis("window.start"), "host", "figure", "records", *STATISTICS
    )
    return sorted(Window(*row) for row in windows.collect())


# -- the topic of alerts -----------------------------------------------------------------------


def await_partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    """Return the partitions of a topic that was just created. Other brokers hear of it later.

    Raises:
        UnknownTopicOrPartition: no broker that was asked knows it in time.
    """
    deadline = time.monotonic() + KNOWN_WITHIN_S
    while True:
        try:
            return consumer.partitions_for(topic)
        except UnknownTopicOrPartition:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


class Alerts:
    """Reads the alerts that are written to a topic from now on."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        """Start at the topic's end.

        Args:
            consumer: reads committed records only.
        """
        self._consumer = consumer
        self._partitions = await_partitions(consumer, topic)
        consumer.assign(self._partitions)
        for partition, end in consumer.end_offsets(self._partitions).items():
            consumer.seek(partition, end)

    def new(self) -> list[Alert]:
        """Return the alerts since the last call."""
        found = []
        ends = self._consumer.end_offsets(self._partitions)
        while any(self._consumer.position(at) < end for at, end in ends.items()):
            for record in self._consumer.poll():
                alert = json.loads(record.value or b"{}")
                start_ms = job.utc_ms(alert["window_start"])
                found.append(Alert(start_ms, alert["host"], alert["rule"], alert["value"]))
        return sorted(found)


# -- tables and the plot -----------------------------------------------------------------------


def figure_text(figure: str, value: float) -> str:
    """Return a figure as readable text, with the unit that its name ends in."""
    if figure.endswith("_share"):
        return f"{value:.1%}"
    if figure.endswith(("_bytes", "_bytes_per_s")):
        unit = 0
        while value >= 1000 and unit < len(UNITS) - 1:
            value, unit = value / 1000, unit + 1
        text = f"{value:.1f} {UNITS[unit]}"
        return f"{text}/s" if figure.endswith("_per_s") else text
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def figure_name(figure: str) -> str:
    """Return a figure's name without the unit."""
    return re.sub("_(share|bytes|bytes_per_s)$", "", figure).replace("_", " ")


def print_alerts(alerts: Sequence[Alert]) -> None:
    """Print alerts as a table."""
    if not alerts:
        click.echo("No alerts.")
        return
    rows = [
        (job.utc_text(one.start_ms), one.host, one.rule, figure_text(_figure(one.rule), one.value))
        for one in alerts
    ]
    job.print_table("Alerts", ("Window (UTC)", "Host", "Limit", "Measured"), rows)


def _figure(rule: str) -> str:
    return rule.split()[-3]


def print_windows(
    windows: Sequence[Window], shown: Sequence[str], rules: Sequence[Rule], most: int
) -> None:
    """Print the last windows as a table: each figure's mean, with its maximum in brackets."""
    rows: dict[tuple[int, str], dict[str, Window]] = defaultdict(dict)
    for window in windows:
        rows[window.start_ms, window.host][window.figure] = window
    starts = sorted({start_ms for start_ms, _ in rows})[-most:]
    table = [
        (
            job.utc_text(start_ms),
            host,
            *(_cell(found.get(figure)) for figure in shown),
            ", ".join(str(rule) for rule in rules if _is_broken(rule, found)),
        )
        for (start_ms, host), found in sorted(rows.items())
        if start_ms in starts
    ]
    names = map(figure_name, shown)
    job.print_table("Hosts", ("Window (UTC)", "Host", *names, "Beyond"), table)


def _cell(window: Window | None) -> str:
    if window is None:
        return ""
    mean, largest = (figure_text(window.figure, value) for value in (window.mean, window.max))
    return f"{mean} ({largest})"


def _is_broken(rule: Rule, found: dict[str, Window]) -> bool:
    return rule.figure in found and rule.is_broken(found[rule.figure])


def save_plot(
    windows: Sequence[Window], shown: Sequence[str], rules: Sequence[Rule], path: str
) -> None:
    """Draw a panel per figure: mean, minimum and maximum by host, limits, and broken limits."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.dates as dates
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    hosts = sorted({window.host for window in windows})
    colours = {host: f"C{number % 10}" for number, host in enumerate(hosts)}
    figure, panels = plt.subplots(
        len(shown), 1, sharex=True, squeeze=False, figsize=(11, 2.1 * len(shown) + 0.9),
        layout="constrained",
    )  # fmt: skip
    figure.suptitle("Hosts", x=0.01, ha="left", weight="bold")
    for axes, name in zip(panels[:, 0], shown, strict=True):
        for host in hosts:
            some = [one for one in windows if (one.host, one.figure) == (host, name)]
            at = [datetime.fromtimestamp(one.start_ms / 1000, UTC) for one in some]
            axes.plot(at, [one.mean for one in some], color=colours[host], label=host, marker=".")
            axes.fill_between(
                at, [one.min for one in some], [one.max for one in some],
                color=colours[host], alpha=0.15, linewidth=0,
            )  # fmt: skip
            for rule in rules:
                red = [
                    (when, getattr(one, rule.statistic))
                    for when, one in zip(at, some, strict=True)
                    if rule.figure == name and rule.is_broken(one)
                ]
                if red:
                    axes.scatter(*zip(*red, strict=True), color="#c0392b", s=36, zorder=3)
        for rule in rules:
            if rule.figure == name:
                axes.axhline(rule.limit, color="#c0392b", linestyle="--", linewidth=0.8)
        axes.set_title(figure_name(name), loc="left", fontsize=10)
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _, name=name: figure_text(name, value))
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6")
        axes.set_axisbelow(True)
    last = panels[-1, 0].xaxis
    last.set_major_formatter(dates.ConciseDateFormatter(last.get_major_locator(), tz=UTC))
    panels[0, 0].legend(
        frameon=False, loc="lower right", bbox_to_anchor=(1, 1.02), ncols=6, fontsize=9
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)


# -- the job -----------------------------------------------------------------------------------


@click.command()
@job.config_option
@job.bootstrap_option
@click.option("--topic", default="host-metrics", show_default=True, help="Topic with the figures.")
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False),
    required=True,
    help="Directory for the position of the alerts: the next run resumes there. "
    "Another window or other topics need another one.",
)
@click.option(
    "--alerts-topic", default="host-alerts", show_default=True, help="Topic for the alerts."
)
@click.option(
    "--alert",
    "rules",
    type=RuleType(),
    multiple=True,
    default=RULES,
    show_default="; ".join(RULES),
    metavar="LIMIT",
    help="Limit for the mean (or `min`, `max`) of a figure in a window. Repeatable.",
)
@click.option(
    "--window",
    "window_ms",
    type=duration_ms,
    default="1m",
    show_default=True,
    metavar="TIME",
    help="Length of a window.",
)
@click.option(
    "--late",
    "late_ms",
    type=duration_ms,
    default="1m",
    show_default=True,
    metavar="TIME",
    help="How long to wait for hosts that publish late, or whose clocks are behind, before a "
    "window's alerts are written. Later records are in no alert: the job reports their number and "
    "ends with status 1. Timestamps ahead of this host's clock count as the time of reading.",
)
@click.option(
    "--continuous/--no-continuous",
    help="Run until stopped, and print alerts only. Ctrl-C ends it with status 0 (130 from "
    "spark-submit).  [default: no-continuous]",
)
@click.option(
    "--every",
    "every_ms",
    type=duration_ms,
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Interval between batches (with --continuous).",
)
@click.option(
    "--from",
    "start_ms",
    type=job.UTC_TIME,
    help="Start of the table and the plot (UTC).",
)
@click.option(
    "--show",
    "shown",
    multiple=True,
    default=SHOWN,
    show_default=", ".join(SHOWN),
    metavar="FIGURE",
    help="Figure for the table and the plot. Repeatable.",
)
@click.option(
    "--rows", type=click.IntRange(1), default=15, show_default=True, help="Windows in the table."
)
@click.option("--plot", type=click.Path(dir_okay=False), help="Save a plot, e.g. hosts.png.")
@job.source_option
@job.sink_option
def main(
    bootstrap_server: str,
    topic: str,
    checkpoint: str,
    alerts_topic: str,
    rules: tuple[Rule, ...],
    window_ms: int,
    late_ms: int,
    continuous: bool,
    every_ms: int,
    start_ms: int | None,
    shown: tuple[str, ...],
    rows: int,
    plot: str | None,
    source_options: job.Options,
    sink_options: job.Options,
) -> None:
    """Average the figures of hosts (`plog host-metrics`) by window, and alert on limits."""
    from plog.client.consumer import Consumer

    if not window_ms:
        raise click.BadParameter("must be above 0, e.g. 1m", param_hint="--window")
    if plot and continuous:
        raise click.UsageError("--plot needs a run that ends; remove --continuous")
    if plot and not can_plot():
        raise click.ClickException(f"--plot: {NO_MATPLOTLIB}")
    _check_topics(bootstrap_server, topic, alerts_topic)
    with (
        # A state of some thousand windows does not need Spark's 200 tasks per batch.
        job.session("host metrics", spark_sql_shuffle_partitions="4") as spark,
        Consumer(bootstrap_server, isolation_level="read_committed") as consumer,
    ):
        # Without --late, which may change: it applies from this run on.
        settings = {
            "topic": topic,
            "window": job.duration_option(window_ms),
            "alerts-topic": alerts_topic,
        }
        keep_settings(checkpoint, settings)
        alerts = Alerts(consumer, alerts_topic)
        with job.report_queries(spark, DROPPED) as dropped:
            query = start_alerts(
                spark,
                bootstrap_server,
                topic,
                alerts_topic,
                rules,
                checkpoint,
                window_ms=window_ms,
                late_ms=late_ms,
                every_ms=every_ms if continuous else None,
                source_options=source_options,
                sink_options=sink_options,
            )
            try:
                _follow(query, alerts, continuous=continuous)
            finally:
                job.stop(query)
        if continuous:
            _check(dropped)
            return
        figures = [*shown, *(rule.figure for rule in rules)]
        windows = report(
            spark,
            bootstrap_server,
            topic,
            figures,
            window_ms=window_ms,
            start_ms=start_ms,
            options=_of_batches(source_options),
        )
    if not windows:
        raise click.ClickException(
            f"no figures of hosts in topic {topic} at {bootstrap_server}; `plog host-metrics` "
            "publishes them"
        )
    print_windows(windows, shown, rules, rows)
    if plot:
        save_plot(windows, shown, rules, plot)
        click.echo(f"Plot saved as {plot}")
    _check(dropped)


def _check(dropped: Counter[str]) -> None:
    """End the job with an error if alerts may be missing."""
    if dropped:
        raise click.ClickException(
            f"{dropped.total():,} averages arrived after their windows had closed, and are in no "
            "alert. Set a longer --late, or synchronise the hosts' clocks"
        )


def _of_batches(options: job.Options) -> list[tuple[str, str]]:
    """Return the options of a stream's source that a batch has too, without starting offsets."""
    from plog.spark.options import OPTIONS

    known = {name.lower() for name in OPTIONS if not name.startswith("starting")}
    return [(name, value) for name, value in options if name.lower() in known]


def _check_topics(bootstrap: str, topic: str, alerts_topic: str) -> None:
    """Create the topic of alerts; errors about topics end the job before Spark starts."""
    from plog.client.admin import Admin

    try:
        with Admin(bootstrap) as admin:
            admin.topic(topic)
            with suppress(TopicAlreadyExists):
                admin.create_topic(alerts_topic, partitions=1)
    except PlogError as fault:
        raise click.ClickException(str(fault)) from fault


def _follow(query: StreamingQuery, alerts: Alerts, *, continuous: bool) -> None:
    """Print the alerts at the query's end, or as they are written until Ctrl-C."""

    def report() -> None:
        if continuous and (found := alerts.new()):
            print_alerts(found)

    if continuous:
        click.echo(job.CTRL_C_ENDS, err=True)
    if job.wait_for_end(lambda: query.isActive, report):
        query.awaitTermination()
    elif not continuous:
        raise click.Abort
    if not continuous:
        print_alerts(alerts.new())


if __name__ == "__main__":
    main()
