"""Reports on the flights in a topic: a spark-submit job, also used by the demo.

    spark-submit spark/flights_report.py --bootstrap-server 127.0.0.1:9092 --topic flights

Reads the topic through `spark.read.format("plog")`, parses the JSON, and prints one row per
carrier: flights, cancellations, mean delays. `--plot` saves a plot; `--from` and `--until` limit
the time range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "carrier string, flight int, origin string, dest string, dep_time int, "
    "dep_delay double, arr_delay double, distance int, time_hour timestamp"
)
FEW = 100
"""Carriers with fewer flights have no meaningful mean: they are in the table, not in the plot."""
NO_MATPLOTLIB = "matplotlib is not installed (pip install matplotlib)"


class CarrierReport(NamedTuple):
    """One row of the report; mean delays in minutes, None without data."""

    carrier: str
    flights: int
    cancelled: int
    departure_delay: float | None
    arrival_delay: float | None


def report(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> list[CarrierReport]:
    """Read the topic and return the report, most flights first.

    Args:
        start_ms, end_ms: only events with a timestamp in [start_ms, end_ms), in ms since 1970.
    """
    from pyspark.sql import functions as F  # noqa: N812

    bounded = start_ms is not None or end_ms is not None
    reader = (
        spark.read.format("plog")
        # Only the columns that the report needs.
        .schema("value binary, timestamp timestamp" if bounded else "value binary")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
    )
    if start_ms is not None:
        # Skips the records before the first such record; a partition may have none.
        reader = reader.option("startingTimestamp", start_ms)
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    events = reader.load()
    # Flights are not strictly in the order of their timestamps, so each one is compared.
    # endingTimestamp would end at the first late one, before others in the range.
    if start_ms is not None:
        events = events.where(F.col("timestamp") >= F.timestamp_millis(F.lit(start_ms)))
    if end_ms is not None:
        events = events.where(F.col("timestamp") < F.timestamp_millis(F.lit(end_ms)))
    flights = events.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("flight"))
    by_carrier = (
        flights.select("flight.*")
        .groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count_if(F.col("dep_time").isNull()).alias("cancelled"),
            F.avg("dep_delay").alias("departure_delay"),
            F.avg("arr_delay").alias("arrival_delay"),
        )
        .orderBy(F.desc("flights"))
    )
    return [CarrierReport(*row) for row in by_carrier.collect()]


def print_table(rows: Sequence[CarrierReport], names: Mapping[str, str] | None = None) -> None:
    """Print the report as a table.

    Args:
        names: the carriers' names by code; without a name the code is printed.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Flights from New York City, by carrier", box=box.SIMPLE_HEAD)
    table.add_column("Carrier")
    for column in ("Flights", "Cancelled", "Delay at\ndeparture", "Delay at\narrival"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            f"{row.carrier}  {(names or {}).get(row.carrier, '')}".rstrip(),
            f"{row.flights:,}",
            _with_share(row.cancelled, row.flights),
            _minutes(row.departure_delay),
            _minutes(row.arrival_delay),
        )
    flights, cancelled = sum(r.flights for r in rows), sum(r.cancelled for r in rows)
    table.add_section()
    table.add_row("all", f"{flights:,}", _with_share(cancelled, flights))
    Console().print(table)


def _with_share(count: int, of: int) -> str:
    return f"{count:,}  {count / max(of, 1):5.1%}"


def _minutes(mean: float | None) -> str:
    return "" if mean is None else f"{mean:.1f} min"


def can_plot() -> bool:
    """Tell whether matplotlib is installed, without importing it, which takes a second."""
    return find_spec("matplotlib") is not None


def save_plot(
    rows: Sequence[CarrierReport], path: str, names: Mapping[str, str] | None = None
) -> None:
    """Plot flights, cancellations and delays by carrier into an image file.

    Args:
        names: as for `print_table`.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    shown = ([row for row in rows if row.flights >= FEW] or list(rows))[::-1]
    left_out = [row.carrier for row in rows if row not in shown]
    labels = [f"{(names or {}).get(row.carrier, '')}  {row.carrier}".strip() for row in shown]
    at = range(len(shown))
    figure, (flights, cancelled, delays) = plt.subplots(
        1, 3, sharey=True, figsize=(12, 0.36 * len(shown) + 1.8), layout="constrained",
        width_ratios=(3, 2, 3),
    )  # fmt: skip
    figure.suptitle("Flights from New York City, by carrier", x=0.01, ha="left", weight="bold")
    if left_out:
        figure.supxlabel(
            f"Not shown, with fewer than {FEW} flights: {', '.join(left_out)}",
            x=0.01, ha="left", fontsize=8, color="#666666",
        )  # fmt: skip

    flights.barh(at, [row.flights for row in shown], color="#3b6ea5")
    flights.set_title("flights", loc="left", fontsize=10)
    flights.set_yticks(at, labels)
    flights.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))

    cancelled.barh(at, [row.cancelled / row.flights for row in shown], color="#b5493f")
    cancelled.set_title("cancelled", loc="left", fontsize=10)
    cancelled.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))

    pairs = [(row.departure_delay or 0.0, row.arrival_delay or 0.0) for row in shown]
    for y, (departure, arrival) in zip(at, pairs, strict=True):
        delays.plot([departure, arrival], [y, y], color="#c8c8c8", linewidth=2, zorder=1)
    delays.scatter([d for d, _ in pairs], at, color="#e08a1e", label="at departure", zorder=2)
    delays.scatter([a for _, a in pairs], at, color="#2f8f6b", label="at arrival", zorder=2)
    delays.axvline(0, color="black", linewidth=0.8)
    delays.set_title("mean delay, min", loc="left", fontsize=10)
    delays.legend(
        frameon=False, loc="lower right", bbox_to_anchor=(1, 1.03), ncols=2, fontsize=9,
        columnspacing=1, handletextpad=0,
    )  # fmt: skip

    for axes in (flights, cancelled, delays):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="#e6e6e6")
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _ms(_ctx: Any, _param: Any, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError as fault:
        raise click.BadParameter(f"invalid time {text!r} ({fault}): use e.g. 2013-07-01") from fault
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


@click.command()
@click.option(
    "--bootstrap-server",
    default="127.0.0.1:9092",
    show_default=True,
    envvar="PLOG_BOOTSTRAP_SERVER",
    show_envvar=True,
    help="A broker's host:port.",
)
@click.option("--topic", default="flights", show_default=True, help="Topic with the flights.")
@click.option(
    "--from",
    "start",
    callback=_ms,
    metavar="TIME",
    help="Only flights of this time (UTC) and later, e.g. 2013-07-01.",
)
@click.option(
    "--until", "end", callback=_ms, metavar="TIME", help="Only flights before this time (UTC)."
)
@click.option("--plot", type=click.Path(dir_okay=False), help="Save a plot, e.g. report.png.")
def main(
    bootstrap_server: str, topic: str, start: int | None, end: int | None, plot: str | None
) -> None:
    """Report on the flights in a topic, by carrier."""
    from plog.spark.session import session

    if plot and not can_plot():
        raise click.ClickException(f"--plot: {NO_MATPLOTLIB}")
    spark = session("flights report")
    try:
        rows = report(spark, bootstrap_server, topic, start_ms=start, end_ms=end)
    finally:
        spark.stop()
    if not rows:
        raise click.ClickException(
            f"no flights in topic {topic} at {bootstrap_server}; `python spark/flights_events.py` "
            "fills it"
        )
    print_table(rows)
    if plot:
        save_plot(rows, plot)
        click.echo(f"Plot saved as {plot}")


if __name__ == "__main__":
    main()
