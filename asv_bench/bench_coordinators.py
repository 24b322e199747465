"""What groups, transactions and idempotence cost a broker.

    bin/bench-coordinators --help

Contestants of a row take turns within each round, in another order each time, so that what else
the machine does meets all of them. Each has a broker of its own, on an empty directory. Cost is
the broker's CPU time, of all its threads; "foreign" are the processors that something
else kept busy meanwhile. Not part of asv: it starts processes.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench_coordinator_report as report
import bench_copying
import bench_costs
import bench_groups
import bench_offsets
import bench_shards
import click
from bench import FILE_COLUMNS, commit
from bench_clients import Clients
from bench_coordinator_report import Cell
from bench_coordinator_rows import (
    COPYING,
    COSTS,
    FAST,
    FULL,
    GROUPS,
    LOAD,
    REBALANCE,
    ROWS,
    SHORT,
    START,
    Row,
    Turn,
)
from rich.console import Console

from plog.errors import PlogError
from plog.ops.load import Figures

MEASURES: dict[str, Callable[[Turn, Row, str], Figures]] = {
    COSTS: bench_costs.measure_cost,
    FAST: bench_costs.measure_fast_share,
    COPYING: bench_copying.measure_copying,
    GROUPS: bench_groups.measure_groups,
    REBALANCE: bench_groups.measure_rebalance,
    START: bench_offsets.measure_start,
    LOAD: bench_shards.measure_load,
}


def chosen_rows(patterns: tuple[str, ...]) -> list[Row]:
    chosen = [
        row for row in ROWS if any(fnmatch.fnmatch(row.name, one) for one in patterns or ("*",))
    ]
    if not chosen:
        raise click.ClickException("no such rows; --list names them")
    return chosen


def in_turns(cells: list[Cell], number: int) -> Iterator[Cell]:
    """Yield the cells of a round, those of each row beginning with another one than last time."""
    for row in dict.fromkeys(cell.row for cell in cells):
        own = [cell for cell in cells if cell.row == row]
        first = number % len(own)
        yield from own[first:] + own[:first]


class Rounds:
    """The rounds of one run; what fails is noted, and the rest goes on.

    Args:
        on_figures: told whenever a cell has more of them.
    """

    def __init__(
        self, turn: Turn, cells: list[Cell], progress: Console, on_figures: Callable[[], None]
    ) -> None:
        self._turn, self._cells = turn, cells
        self._progress, self._on_figures = progress, on_figures
        self.failures: list[str] = []

    def run(self, rounds: int) -> None:
        # A JVM compiles what is hot while it runs.
        cold = [one for one in self._cells if (one.row.kind, one.row.client) == (COSTS, "java")]
        for _ in range(self._turn.extent.warm_up_rounds):
            for cell in {(one.contestant, one.row.server): one for one in cold}.values():
                self._measure(cell._replace(rounds=[]), "warming up")
        for number in range(1, rounds + 1):
            for cell in in_turns(self._cells, number):
                self._measure(cell, f"round {number}")

    def _measure(self, cell: Cell, when: str) -> None:
        what = f"{cell.row.name}, {cell.contestant}"
        self._progress.print(f"[dim]{when}: {what}")
        row = cell.row._replace(interval_s=cell.row.interval_s / self._turn.extent.faster)
        try:
            figures = MEASURES[row.kind](self._turn, row, cell.contestant)
        except (PlogError, OSError) as error:
            self.failures.append(f"{what}: {error}")
            self._progress.print(f"{what}: {error}", style="red", markup=False)
        else:
            cell.rounds.append(figures)
            self._on_figures()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--rows", "patterns", multiple=True, help="Patterns of rows, such as 'costs/*'; repeatable."
)
@click.option("--list", "only_list", is_flag=True, help="Print the rows, and what each is about.")
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(1))
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    help=f"Of each measurement of a producer; {FULL.seconds:g} by default.",
)
@click.option("--short", is_flag=True, help="Everything small, once: does it work?")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where directories are made (and removed): the file system to be measured. "
    "Without it, that of $TMPDIR or /tmp.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures.")
@click.option(
    "--docs",
    "docs_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Write the tables into a page, between its marks.",
)
@click.option(
    "--figures",
    "known_paths",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What --json has written: for --docs beside what is measured now, which without --rows "
    "is nothing; repeatable.",
)
def command(
    patterns: tuple[str, ...],
    only_list: bool,
    rounds: int,
    seconds: float | None,
    short: bool,
    directory: Path | None,
    json_path: Path | None,
    docs_path: Path | None,
    known_paths: tuple[Path, ...],
) -> None:
    """Measure what groups, transactions and idempotence cost a broker.

    \b
    costs/*      a producer without idempotence, with it, and in transactions
    fast/*       which share of Java's requests never reaches Python
    copying/*    the same of applications that consume, transform and produce
    groups*      10,000 groups of one member: memory and heartbeats
    rebalance/*  a member joins and leaves a group of 200; */consumer* by KIP-848
    start        a start on 1 GB of committed offsets, before and after compaction

    Each row is measured in every round; one round of all takes some nine minutes. --short
    takes two, and its figures mean nothing. Java's client is built by Maven the first time.
    Everything is measured on brokers that are started for it, in directories below --directory
    that are removed; the figures are only shown, unless --json or --docs names a file for them.

    Let the machine do nothing else meanwhile: the column "Foreign" tells what did, in processors.
    """
    if only_list:
        for row in ROWS:
            click.echo(f"{row.name}: {row.about}")
        return
    runs = [json.loads(path.read_text()) for path in known_paths]
    chosen = [] if runs and not patterns else chosen_rows(patterns)
    extent = SHORT if short else FULL
    if seconds is not None:
        extent = extent._replace(seconds=seconds)
    rounds = 1 if short else rounds
    # Ended from outside, it still ends what it started, and removes its directories.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cells = [Cell(row, name, []) for row in chosen for name in row.contestants]
    about: dict[str, Any] = {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg(),
        "seconds": extent.seconds,
    }

    def save() -> None:
        if json_path is not None:
            json_path.write_text(report.as_json(cells, about) + "\n")

    with (
        tempfile.TemporaryDirectory(dir=directory, prefix="plog-bench-") as made,
        Clients(Path(made), quick=short) as clients,
        bench_costs.SharedKafka(Path(made)) as kafka,
    ):
        turn = Turn(Path(made), extent, clients, kafka)
        turns = Rounds(turn, cells, Console(stderr=True), save)
        turns.run(rounds)
    cells = [cell for cell in cells if cell.rounds]
    if docs_path is not None:
        if cells:
            runs.append(json.loads(report.as_json(cells, about)))
        report.write_page(docs_path, runs)
    if cells:
        report.show(cells, Console(width=None if sys.stdout.isatty() else FILE_COLUMNS))
        click.echo(
            f"{about['commit']}: {rounds} rounds, producers for {extent.seconds:g} s each,"
            f" {os.cpu_count()} processors, load before {about['load_before'][0]:.1f},"
            f" after {os.getloadavg()[0]:.1f}"
        )
    if turns.failures:
        raise click.ClickException("\n".join(turns.failures))


if __name__ == "__main__":
    command(prog_name="bin/bench-coordinators")
