"""`plog top`: live statistics of a broker."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from plog.cli.output import duration_text, json_option, print_json
from plog.cli.tables import GAP, cell_text, plain_lines, terminal_table
from plog.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from plog.ops.watch import Watch

DEFAULT_ADDRESS = "127.0.0.1:9095"
MOST_TOPICS = 10
MAX_GROUPS = 10
TABLE_HEAD = 2
"""Lines of a table besides its rows, on a terminal."""
MIN_NAME = 8
"""Columns of a name on a terminal that is too narrow."""
LAG_RECORDS, LAG_SECONDS = "plog_group_lag_records", "plog_group_lag_seconds"
FOLLOWER_RECORDS, FOLLOWER_SECONDS = "plog_follower_lag_records", "plog_follower_lag_seconds"
LED = "plog_led_partitions"


class Table(NamedTuple):
    """Some of a reading's figures; every column but the first has numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @property
    def numbers(self) -> range:
        """Return the indexes of the columns with numbers."""
        return range(1, len(self.columns))


class Screen(NamedTuple):
    """The text of one reading."""

    head: str
    tables: Sequence[Table]


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
    """Show live statistics of a broker: requests, latencies, disk problems, topics and groups.

    The broker must serve a metrics page. The shipped properties have its address:

    \b
      metrics.listener=127.0.0.1:9095

    A request's latency is the time from reading it to having its response ready, including waits
    for records and for the disk. "fast" is the share of requests that the broker answered without
    Python. The next table counts the others by reason; docs/OPERATIONS.md explains the reasons.
    "offsets/s" is the growth of a topic's log end offsets. One of several brokers also shows how
    many partitions it leads, how many of these lack replicas in sync, and the follower that is
    furthest behind. The last table has the groups with the
    largest lag: records that are not read yet, and the age of the oldest. A low terminal shows
    fewer rows of each table. Ctrl-C exits. In a pipe or a file the readings are printed one after
    another.
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
            screen = _screen(next_watch(), address)
            live.update(_draw(screen, live.console), refresh=True)
            shown += 1


def _print(screen: Screen) -> None:
    """Print one reading without a terminal: unfolded, and flushed."""
    print(screen.head)
    for table in screen.tables:
        print("", *plain_lines(table.columns, table.rows, right=table.numbers), sep="\n")
    print(flush=True)


def _draw(screen: Screen, console: Console) -> RenderableType:
    """Return one reading for a terminal: cut to its height, with names cut to its width."""
    from rich.console import Group
    from rich.text import Text

    head = Text(screen.head)
    # Each table has an empty line and its names above it; the cursor needs the last line.
    used = len(head.wrap(console, console.width)) + TABLE_HEAD * len(screen.tables) + 1
    counts = _shares(console.height - used, [len(table.rows) for table in screen.tables])
    parts: list[RenderableType] = [head]
    for table, count in zip(screen.tables, counts, strict=True):
        rows = _narrowed(table, table.rows[:count], console.width)
        parts += [Text(""), terminal_table(table.columns, rows, right=table.numbers)]
    return Group(*parts)


def _shares(lines: int, wanted: Sequence[int]) -> list[int]:
    """Return how many rows each table gets: in turns, until the lines or the rows end."""
    shares = [0] * len(wanted)
    while lines > 0 and shares != list(wanted):
        for index, count in enumerate(wanted):
            if lines > 0 and shares[index] < count:
                shares[index] += 1
                lines -= 1
    return shares


def _narrowed(table: Table, rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return rows with names that leave room for the numbers beside them."""
    from rich.text import Text

    numbers = plain_lines(table.columns[1:], [row[1:] for row in rows], right=table.numbers)
    room = max(width - len(GAP) - max(map(len, numbers)), MIN_NAME)
    narrowed = []
    for name, *figures in rows:
        text = Text(cell_text(name))
        text.truncate(room, overflow="ellipsis")
        narrowed.append([text.plain, *figures])
    return narrowed


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
        "callouts_per_s": {
            reason: rate
            for reason in seen.after.labels("plog_callouts_total", "reason")
            if (rate := seen.rate("plog_callouts_total", reason=reason))
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
        "groups": _largest_lags(seen),
        "replicas": _replicas(seen),
    }


def _largest_topics(seen: Watch) -> list[str]:
    def rank(topic: str) -> tuple[float, float]:
        return (
            -seen.rate("plog_log_end_offsets", topic=topic),
            -seen.after.value("plog_log_bytes", topic=topic),
        )

    return sorted(seen.after.labels("plog_log_bytes", "topic"), key=rank)[:MOST_TOPICS]


def _largest_lags(seen: Watch) -> list[dict[str, Any]]:
    """Return the groups with the largest lag; none where the page does not have it."""
    groups: list[dict[str, Any]] = [
        {
            "group": group,
            "lag_records": int(seen.after.value(LAG_RECORDS, group=group)),
            "lag_seconds": seen.after.largest(LAG_SECONDS, group=group),
        }
        for group in seen.after.labels(LAG_RECORDS, "group")
    ]
    groups.sort(key=lambda one: (-one["lag_records"], -one["lag_seconds"], one["group"]))
    return groups[:MAX_GROUPS]


def _replicas(seen: Watch) -> dict[str, Any] | None:
    """Return the state of the partitions that the broker leads; None if it runs alone."""
    now = seen.after
    if LED not in now.samples:
        return None
    followers: list[dict[str, Any]] = [
        {
            "broker": int(broker),
            "lag_records": int(now.value(FOLLOWER_RECORDS, broker=broker)),
            "lag_seconds": now.value(FOLLOWER_SECONDS, broker=broker),
        }
        for broker in now.labels(FOLLOWER_SECONDS, "broker")
    ]
    followers.sort(key=lambda one: (-one["lag_seconds"], -one["lag_records"], one["broker"]))
    return {
        "led_partitions": int(now.value(LED)),
        "under_replicated": int(now.value("plog_under_replicated_partitions")),
        "under_min_isr": int(now.value("plog_under_min_isr_partitions")),
        "slowest_follower": followers[0] if followers else None,
    }


def _replica_line(replicas: dict[str, Any]) -> str:
    from plog.types import counted

    line = f"leads {counted(replicas['led_partitions'], 'partition')}"
    lacking, under_min = replicas["under_replicated"], replicas["under_min_isr"]
    line += f"   {lacking} {'UNDER-REPLICATED' if lacking else 'under-replicated'}"
    line += f"   {under_min} {'BELOW' if under_min else 'below'} min.insync.replicas"
    if (follower := replicas["slowest_follower"]) is not None:
        behind = duration_text(int(follower["lag_seconds"] * 1000))
        line += (
            f"   slowest follower: broker {follower['broker']},"
            f" {counted(follower['lag_records'], 'record')} and {behind} behind"
        )
    return line


def _screen(seen: Watch, address: str) -> Screen:
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
    apis = Table(
        ("requests", "per second", "fast", "p50", "p99", "p99.9"),
        [
            (
                one.api,
                f"{one.per_s:,.1f}",
                f"{one.fast_share:.1%}",
                *(_time(seconds) for seconds in one.percentiles),
            )
            for one in seen.apis()
        ],
    )
    callouts = Table(
        ("answered in Python because", "per second"),
        [(reason, f"{rate:,.1f}") for reason, rate in figures["callouts_per_s"].items()],
    )
    topics = Table(
        ("topic", "partitions", "size", "offsets/s"),
        [
            (one["topic"], one["partitions"], _bytes(one["bytes"]), f"{one['offsets_per_s']:,.0f}")
            for one in figures["topics"]
        ],
    )
    groups = Table(
        ("group", "lag", "behind"),
        [
            (one["group"], f"{one['lag_records']:,}", duration_text(int(one["lag_seconds"] * 1000)))
            for one in figures["groups"]
        ],
    )
    tables = [apis, topics, *(table for table in (callouts, groups) if table.rows)]
    lines = [head] if figures["replicas"] is None else [head, _replica_line(figures["replicas"])]
    return Screen("\n".join(map(printable, lines)), tables)


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
