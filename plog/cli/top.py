"""`plog top`: live statistics of a broker."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from plog.cli.output import json_option, print_json
from plog.printable import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from plog.ops.watch import Watch

DEFAULT_ADDRESS = "127.0.0.1:9095"
MOST_TOPICS = 10
NOTHING_FOLDS = 10_000
"""Columns."""


@click.command()
@click.option(
    "--metrics",
    "address",
    default=DEFAULT_ADDRESS,
    show_default=True,
    envvar="PLOG_METRICS",
    metavar="HOST:PORT",
    help="Address of the broker's metrics page (its `metrics.listener`).",
)
@click.option(
    "--every",
    "seconds",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two readings; rates and percentiles cover this interval.",
)
@click.option("--count", type=click.IntRange(1), help="Exit after this number of readings.")
@json_option
def command(address: str, seconds: float, count: int | None, as_json: bool) -> None:
    """Show live statistics of a broker: requests, latencies, disk problems, largest topics.

    The broker must serve a metrics page. The shipped properties have its address:

    \b
      metrics.listener=127.0.0.1:9095

    A request's latency is the time from reading it to having its response ready, including waits
    for records and for the disk. "fast" is the share of requests that the broker answered without
    Python. The next table counts the others by reason; docs/OPERATIONS.md explains the reasons.
    "offsets/s" is the growth of a topic's log end offsets. Ctrl-C exits. In a pipe or a file the
    readings are printed one after another.
    """
    from plog.ops import watch

    def reading() -> watch.Reading:
        try:
            return watch.read(address, time.monotonic())
        except (OSError, ValueError) as error:
            raise click.ClickException(
                f"no metrics page at {address}: {error} (set `metrics.listener` in the broker's"
                " properties, and pass its address with --metrics)"
            ) from error

    before = reading()
    shown = 0

    def next_watch() -> watch.Watch:
        nonlocal before
        time.sleep(seconds)
        after = reading()
        seen, before = watch.Watch(before, after), after
        return seen

    if as_json:
        while count is None or shown < count:
            print_json(_figures(next_watch()))
            sys.stdout.flush()
            shown += 1
        return
    if not sys.stdout.isatty():
        while count is None or shown < count:
            _print(_screen(next_watch(), address))
            shown += 1
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        while count is None or shown < count:
            live.update(_screen(next_watch(), address), refresh=True)
            shown += 1


def _print(screen: RenderableType) -> None:
    """Print one reading without a terminal: unfolded, and flushed."""
    from rich.console import Console

    console = Console(width=NOTHING_FOLDS)
    for line in console.render_lines(screen, pad=False):
        print("".join(segment.text for segment in line).rstrip())
    print(flush=True)


def _figures(seen: Watch) -> dict[str, Any]:
    return {
        "seconds": seen.seconds,
        "connections": int(seen.after.value("plog_connections")),
        "received_bytes_per_s": seen.rate("plog_received_bytes_total"),
        "sent_bytes_per_s": seen.rate("plog_sent_bytes_total"),
        "appended_records_per_s": seen.rate("plog_appended_records_total"),
        "appended_bytes_per_s": seen.rate("plog_appended_bytes_total"),
        "resident_memory_bytes": int(seen.after.value("process_resident_memory_bytes")),
        "cpu_share": seen.rate("process_cpu_seconds_total"),
        "open_descriptors": int(seen.after.value("process_open_fds")),
        "offline_partitions": int(seen.after.value("plog_offline_partitions")),
        "missing_log_dirs": int(seen.after.value("plog_missing_log_dirs")),
        "slow_log_dirs": seen.after.having("plog_log_dir_slow", "log_dir"),
        "flush_p99_s": seen.percentiles("plog_flush_duration_seconds")[1],
        "apis": [one._asdict() for one in seen.apis()],
        "handed_over_per_s": {
            reason: rate
            for reason in seen.after.labels("plog_handed_over_total", "reason")
            if (rate := seen.rate("plog_handed_over_total", reason=reason))
        },
        "topics": [
            {
                "topic": topic,
                "partitions": int(seen.after.value("plog_partitions", topic=topic)),
                "bytes": int(seen.after.value("plog_log_bytes", topic=topic)),
                "offsets_per_s": seen.rate("plog_log_end_offsets", topic=topic),
            }
            for topic in _largest_topics(seen)
        ],
    }


def _largest_topics(seen: Watch) -> list[str]:
    def rank(topic: str) -> tuple[float, float]:
        return (
            -seen.rate("plog_log_end_offsets", topic=topic),
            -seen.after.value("plog_log_bytes", topic=topic),
        )

    return sorted(seen.after.labels("plog_log_bytes", "topic"), key=rank)[:MOST_TOPICS]


def _screen(seen: Watch, address: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    figures = _figures(seen)
    head = (
        f"plog at {address}   {figures['connections']} connections   in"
        f" {_bytes(figures['received_bytes_per_s'])}/s"
        f"   out {_bytes(figures['sent_bytes_per_s'])}/s"
        f"   appended {figures['appended_records_per_s']:,.0f} records/s"
        f" ({_bytes(figures['appended_bytes_per_s'])}/s)"
        f"   memory {_bytes(figures['resident_memory_bytes'])}   CPU {figures['cpu_share']:.0%}"
        f"   flush p99 {_time(figures['flush_p99_s'])}"
    )
    if figures["offline_partitions"]:
        head += f"   {figures['offline_partitions']} partitions OFFLINE"
    if figures["missing_log_dirs"]:
        head += f"   {figures['missing_log_dirs']} log directories MISSING"
    if figures["slow_log_dirs"]:
        head += f"   slow disk, or not measured yet: {', '.join(figures['slow_log_dirs'])}"
    apis = Table("requests", "per second", "fast", "p50", "p99", "p99.9", box=None)
    for one in seen.apis():
        times = [_time(seconds) for seconds in one.percentiles]
        apis.add_row(Text(printable(one.api)), f"{one.per_s:,.1f}", f"{one.fast_share:.1%}", *times)
    topics = Table("topic", "partitions", "size", "offsets/s", box=None)
    for one in figures["topics"]:
        topics.add_row(
            Text(printable(one["topic"])),
            str(one["partitions"]),
            _bytes(one["bytes"]),
            f"{one['offsets_per_s']:,.0f}",
        )
    handed_over = Table("answered in Python because", "per second", box=None)
    for reason, rate in figures["handed_over_per_s"].items():
        handed_over.add_row(Text(printable(reason)), f"{rate:,.1f}")
    tables = [apis, handed_over, topics] if handed_over.rows else [apis, topics]
    screen: list[RenderableType] = [Text(printable(head))]
    for table in tables:
        for column in table.columns[1:]:
            column.justify = "right"
        screen += [Text(""), table]
    return Group(*screen)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
