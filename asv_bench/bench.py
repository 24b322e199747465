"""Produce, fetch and latency of a broker beside C loops that do no more than must be done.

    bin/bench --help

Contestants take turns within each round, so that what else the machine does meets all
of them. Each starts on an empty directory, on the file system to be measured. Cost is
the server's CPU time, of all its threads, from /proc/PID/task/*/schedstat; "foreign" are
the processors that something else kept busy meanwhile, the kernel's threads that write
files back among it. Not part of asv: it starts processes.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import bench_kafka
import bench_load
import click
from bench_rows import CONTESTANTS, HOT_BYTES, KAFKAS, KB, SHORT, Row, rows
from rich.console import Console
from rich.table import Table

from plog.errors import PlogError
from plog.ops import load
from plog.ops.load import Batch, Figures

WARMUP_S = 0.5
MOST_MB = 2_000
"""What one measurement may write: more would be paced by the disk's writing back."""
OTHER_REQUESTS = "other API or version"
"""Those that make the topic, say; the load's own are the others."""
NEW_PRODUCERS = "unusual append"
COST_GOAL_S_PER_GB = 0.15
"""So much more CPU time than the C loop, at most."""


class Cell(NamedTuple):
    """One contestant's figures in one row, a value for each round."""

    row: Row
    contestant: str
    rounds: list[Figures]

    def values(self, key: str) -> list[float]:
        return [figures[key] for figures in self.rounds if figures.get(key) is not None]


# --- one measurement ------------------------------------------------------------------------------


def batch_of(where: Path, row: Row) -> Batch:
    """Return the row's batch; made once, so that every contestant gets the same bytes."""
    path = where / f"batch-{row.batch_bytes}-{row.codec}-{row.value_bytes}"
    known = path.with_suffix(".json")
    if known.exists():
        size_bytes, records = json.loads(known.read_text())
        return Batch(path, size_bytes, records)
    made = load.make_batch(path, row.batch_bytes, codec=row.codec, value_bytes=row.value_bytes)
    known.write_text(json.dumps([made.size_bytes, made.records]))
    return made


def touch_pages(where: Path) -> None:
    """Write as much into a file as a measurement may, and delete it: its pages are used next.

    A virtual machine's host takes memory away that is free for long, and giving it back costs more
    than a write to it. Without this, whoever comes second finds the pages that the first has left.
    """
    block = bytes(64 * KB)
    with tempfile.TemporaryFile(dir=where, buffering=0) as file:
        for _ in range(MOST_MB * 1_000_000 // len(block)):
            file.write(block)


def measure(
    where: Path, row: Row, contestant: str, batch: Batch, seconds: float, warmup_s: float
) -> Figures:
    """Run one load against one contestant; its directory is removed afterwards."""
    directory = Path(tempfile.mkdtemp(dir=where, prefix="server-"))
    server = CONTESTANTS[contestant](directory, batch)
    try:
        topic = server.create_topic(row.partitions)
        common: dict[str, object] = {
            "port": server.port,
            "topic": topic.name,
            "topic_id": topic.id,
            "leader_epoch": topic.leader_epoch,
            "partitions": row.partitions,
        }
        if row.mode == "fetch" and not contestant.startswith("C "):
            at_once = min(row.partitions, 64)
            load.run(
                "produce",
                batch_file=batch.path,
                acks=1,
                per_request=at_once,
                requests=max(HOT_BYTES // (at_once * batch.size_bytes), 1),
                **common,
            )
        common |= {"batch_file": batch.path, "seconds": seconds, "warmup": warmup_s}
        most_bytes = MOST_MB * 1_000_000 if row.mode == "produce" and not row.beside else None
        touch_pages(where)
        with ThreadPoolExecutor(1) as beside:
            meanwhile = row.beside and beside.submit(
                load.run, row.beside[0], **common, **row.beside[1]
            )
            figures = load.run(row.mode, bytes=most_bytes, watch=server.pid, **common, **row.load)
            figures["beside"] = meanwhile and meanwhile.result()
        counted = server.stop()
    finally:
        server.kill()
        shutil.rmtree(directory)
    figures["rss_mb"] = counted.most_rss_mb
    figures["by_python"] = counted.by_python
    if counted.by_python is not None:
        figures["fast_share"] = fast_share(row, figures, counted.by_python)
    return with_costs(figures)


def fast_share(row: Row, figures: Figures, by_python: dict[str, int]) -> float:
    """Return the share of the load's requests that were answered without Python.

    Left out are the first requests of each producer, up to its first batch for every partition:
    Python makes it known to the partition, however long the load then is.
    """
    both = [figures, figures["beside"]] if figures["beside"] else [figures]
    requests = sum(one["total"]["requests"] for one in both)
    slow = sum(count for reason, count in by_python.items() if reason != OTHER_REQUESTS)
    if row.load.get("idempotent"):
        producers = int(str(row.load["connections"]))
        first = producers * math.ceil(row.partitions / int(str(row.load.get("per_request", 1))))
        first = min(first, by_python.get(NEW_PRODUCERS, 0), requests - 1)
        slow, requests = slow - first, requests - first
    return 1 - slow / requests


def with_costs(figures: Figures) -> Figures:
    seconds, requests, volume = (figures[key] for key in ("seconds", "requests", "bytes"))
    latency = figures["latency_us"]
    return {
        **figures,
        "MB/s": figures["mb_per_s"],
        "req/s": figures["requests_per_s"],
        "us": latency["p99"],
        **{f"{name}_us": latency[name] for name in ("p50", "p99", "p999")},
        "cpu_s_per_gb": 1e9 * figures["server_cpu_s"] / volume if volume else None,
        "cpu_us_per_request": 1e6 * figures["server_cpu_s"] / requests if requests else None,
        "client_cores": figures["cpu_s"] / seconds,
    }


# --- what is shown --------------------------------------------------------------------------------


def _spread(values: list[float], digits: int) -> str:
    if not values:
        return ""
    text = f"{statistics.median(values):,.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
    return text


def ratio(cell: Cell, base: Cell, key: str) -> float | None:
    """Return the median over the rounds of this one's figure beside the other's."""
    pairs = zip(cell.values(key), base.values(key), strict=False)
    found = [mine / its for mine, its in pairs if its]
    return statistics.median(found) if found else None


def verdict(cell: Cell, base: Cell | None) -> tuple[str, str]:
    """Return how a cell stands to what it is held against, and the goal, as texts."""
    if base is None or cell.row.goal is None:
        return "", ""
    row = cell.row
    if row.unit == "us":
        found = [ratio(cell, base, key) for key in ("p50_us", "p99_us", "p999_us")]
        shown = " / ".join("-" if one is None else f"{one:.1f}" for one in found)
        met = all(one is not None and one <= row.goal for one in found)
        return _coloured(f"{shown} x {base.contestant}", met), f"<= {row.goal:g} x"
    share = ratio(cell, base, row.unit)
    if share is None:
        return "", ""
    text = _coloured(f"{share:.0%} of {base.contestant}", share >= row.goal)
    goal = f">= {row.goal:.0%}"
    if row.unit == "MB/s" and base.contestant.startswith("C"):
        more = statistics.median(cell.values("cpu_s_per_gb")) - statistics.median(
            base.values("cpu_s_per_gb")
        )
        text += "; " + _coloured(f"{more:+.2f} s/GB", more <= COST_GOAL_S_PER_GB)
        goal += f"; +{COST_GOAL_S_PER_GB} s/GB"
    return text, goal


def beside_kafka(cell: Cell, by_place: dict[tuple[str, str], Cell]) -> str:
    """Return the rate (or p99) and the cost beside each Kafka's."""
    if cell.contestant in KAFKAS or cell.contestant.startswith("C"):
        return ""
    cost = "cpu_s_per_gb" if cell.row.unit == "MB/s" else "cpu_us_per_request"
    found = []
    for name in KAFKAS:
        its = by_place.get((cell.row.name, name))
        if its is None:
            continue
        rate, paid = ratio(cell, its, cell.row.unit), ratio(cell, its, cost)
        if rate is not None and paid is not None:
            found.append(f"{name}: {rate:.1f} x, CPU {paid:.2f} x")
    return "\n".join(found)


def _coloured(text: str, good: bool) -> str:
    return f"[{'green' if good else 'red'}]{text}[/]"


def show(cells: list[Cell], console: Console) -> None:
    by_place = {(cell.row.name, cell.contestant): cell for cell in cells}
    for unit in ("MB/s", "req/s", "us"):
        chosen = [cell for cell in cells if cell.row.unit == unit]
        if not chosen:
            continue
        paced = unit == "us"
        table = Table(title={"MB/s": "volume", "req/s": "requests", "us": "latency"}[unit])
        table.add_column("row")
        table.add_column("server")
        columns = ["p50 us", "p99 us", "p99.9 us"] if paced else [unit, "p99 us"]
        columns += ["CPU s/GB" if unit == "MB/s" else "CPU us/req"]
        columns += ["client", "foreign", "fast", "RSS MB"]
        for column in columns:
            table.add_column(column, justify="right")
        table.add_column("held against")
        table.add_column("goal")
        if any(cell.contestant in KAFKAS for cell in chosen):
            table.add_column("beside Kafka")
        last = len(columns) + 4
        before = ""
        for cell in chosen:
            base = by_place.get((cell.row.name, cell.row.against[cell.contestant] or ""))
            numbers = (
                [_spread(cell.values(key), 0) for key in ("p50_us", "p99_us", "p999_us")]
                if paced
                else [_spread(cell.values(unit), 0), _spread(cell.values("p99_us"), 0)]
            )
            cost = ("cpu_s_per_gb", 3) if unit == "MB/s" else ("cpu_us_per_request", 2)
            shares = cell.values("fast_share")
            table.add_row(
                "" if cell.row.name == before else cell.row.name,
                cell.contestant,
                *numbers,
                _spread(cell.values(cost[0]), cost[1]),
                f"{statistics.median(cell.values('client_cores')):.2f}",
                f"{statistics.median(cell.values('foreign_cores')):.2f}",
                f"{statistics.median(shares):.1%}" if shares else "",
                f"{max(cell.values('rss_mb')):.0f}",
                *verdict(cell, base),
                *([beside_kafka(cell, by_place)] if len(table.columns) > last else []),
            )
            before = cell.row.name
        console.print(table)
    show_handed_over(cells, console)
    for cell in cells:
        if cell.row.beside and cell.rounds:
            rates = [figures["beside"]["mb_per_s"] for figures in cell.rounds]
            console.print(
                f"{cell.row.name}, {cell.contestant}: {cell.row.beside[0]} meanwhile: "
                f"{_spread(rates, 0)} MB/s"
            )


def show_handed_over(cells: list[Cell], console: Console) -> None:
    slow = [cell for cell in cells if any(share < 0.99 for share in cell.values("fast_share"))]
    for cell in slow:
        counts = cell.rounds[-1]["by_python"]
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
        console.print(f"{cell.row.name}, {cell.contestant}: by Python: {reasons}")


def plot(cells: list[Cell], path: Path) -> None:
    """Draw bars of every row's figure, one colour for each contestant."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    units = [unit for unit in ("MB/s", "req/s", "us") if any(c.row.unit == unit for c in cells)]
    contestants = list(dict.fromkeys(cell.contestant for cell in cells))
    colours = {name: plt.get_cmap("tab10")(at % 10) for at, name in enumerate(contestants)}
    figure, all_axes = plt.subplots(
        len(units), 1, figsize=(11, 1 + 0.22 * len(cells) + len(units)), squeeze=False
    )
    for axes, unit in zip(all_axes[:, 0], units, strict=True):
        chosen = [cell for cell in cells if cell.row.unit == unit]
        for at, cell in enumerate(chosen):
            values = cell.values(unit)
            middle = statistics.median(values)
            reach = [[middle - min(values)], [max(values) - middle]]
            axes.barh(at, middle, xerr=reach, color=colours[cell.contestant], ecolor="grey")
        labels = [f"{cell.row.name}  {cell.contestant}" for cell in chosen]
        axes.set_yticks(range(len(chosen)), labels, fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel("p99, us (log)" if unit == "us" else unit)
        if unit == "us":
            axes.set_xscale("log")
    figure.tight_layout()
    figure.savefig(path)


# --- the command ----------------------------------------------------------------------------------


def commit() -> str:
    if shutil.which("git") is None:
        return "unknown"
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=bench_load.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"


def chosen_rows(patterns: tuple[str, ...], short: bool) -> list[Row]:
    known = rows()
    if not patterns:
        patterns = SHORT if short else ("*",)
    chosen = [row for row in known if any(fnmatch.fnmatch(row.name, one) for one in patterns)]
    if not chosen:
        raise click.ClickException("no such rows; --list names them")
    return chosen


def as_json(cells: list[Cell], about: dict[str, Any]) -> str:
    found = [
        {
            "row": cell.row.name,
            "server": cell.contestant,
            "unit": cell.row.unit,
            "rounds": cell.rounds,
        }
        for cell in cells
    ]
    return json.dumps({**about, "cells": found}, indent=1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--rows", "patterns", multiple=True, help="Patterns of rows, such as 'fetch/*'; repeatable."
)
@click.option("--list", "only_list", is_flag=True, help="Print the rows' names.")
@click.option("--seconds", default=3.0, show_default=True, help="Of each measurement.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option(
    "--kafka", is_flag=True, help="Apache Kafka as well, by Maven: 3.9 and 4.1, with two heaps."
)
@click.option("--short", is_flag=True, help="A few rows, once, briefly: does everything work?")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where directories are made (and removed): the file system to be measured.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw the medians.")
def command(
    patterns: tuple[str, ...],
    only_list: bool,
    seconds: float,
    rounds: int,
    kafka: bool,
    short: bool,
    directory: Path | None,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Measure produce, fetch and latency beside C loops, in turns.

    Rates are medians of the rounds, with the least and the most. Other work on the machine shows:
    see the column "foreign", in processors.
    """
    if only_list:
        for row in rows():
            click.echo(row.name)
        return
    chosen = chosen_rows(patterns, short)
    if kafka:
        chosen = [row.with_kafka() for row in chosen]
    warmup_s = WARMUP_S
    if short:
        seconds, rounds, warmup_s = min(seconds, 0.5), 1, 0.2
    # Ended from outside, it still ends what it started, and removes its directories.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    progress = Console(stderr=True)
    cells = [Cell(row, name, []) for row in chosen for name in row.against]
    failures = []
    about: dict[str, Any] = {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg(),
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory(dir=directory, prefix="plog-bench-") as made:
        for number in range(rounds):
            for cell in cells:
                progress.print(f"[dim]round {number + 1}: {cell.row.name}, {cell.contestant}")
                batch = batch_of(Path(made), cell.row)
                warmup = bench_kafka.WARMUP_S if cell.contestant in KAFKAS else warmup_s
                try:
                    figures = measure(Path(made), cell.row, cell.contestant, batch, seconds, warmup)
                except (load.LoadError, PlogError) as error:
                    failures.append(f"{cell.row.name}, {cell.contestant}: {error}")
                    progress.print(f"[red]{failures[-1]}")
                else:
                    cell.rounds.append(figures)
                    if json_path is not None:
                        json_path.write_text(as_json(cells, about) + "\n")
    cells = [cell for cell in cells if cell.rounds]
    if plot_path is not None:
        plot(cells, plot_path)
    show(cells, Console())
    click.echo(
        f"{about['commit']}: {rounds} rounds of {seconds:g} s, {os.cpu_count()} processors, "
        f"load before {about['load_before'][0]:.1f}, after {os.getloadavg()[0]:.1f}"
    )
    if failures:
        raise click.ClickException("\n".join(failures))


if __name__ == "__main__":
    command()
