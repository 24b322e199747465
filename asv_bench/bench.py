"""Produce, fetch and latency of a broker beside C loops that do no more than must be done.

    bin/bench --help

Contestants take turns within each round, so that what else the machine does meets all
of them. Each starts on an empty directory, on the file system to be measured; a Kafka
has its turn at the round's end, for all rows at once, as it takes long to warm up. Cost is
the server's CPU time, of all its threads, from /proc/PID/task/*/schedstat; "foreign" are
the processors that something else kept busy meanwhile, the kernel's threads that write
files back among it. Not part of asv: it starts processes.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import bench_kafka
import bench_load
import bench_report
import click
from bench_report import Cell
from bench_rounds import Rounds
from bench_rows import SHORT, Row, rows
from rich.console import Console

WARMUP_S = 0.5
FILE_COLUMNS = 240
"""Of tables that go into a file."""


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
        known = [row for row in known if row.records is None]
        patterns = SHORT if short else ("*",)
    chosen = [row for row in known if any(fnmatch.fnmatch(row.name, one) for one in patterns)]
    if not chosen:
        raise click.ClickException("no such rows; --list names them")
    return chosen


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--rows", "patterns", multiple=True, help="Patterns of rows, such as 'fetch/*'; repeatable."
)
@click.option("--list", "only_list", is_flag=True, help="Print the rows, each with its servers.")
@click.option("--seconds", default=3.0, show_default=True, help="Of each measurement.")
@click.option("--records", type=click.IntRange(1), help="Of rows that go by records: fewer.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option(
    "--servers", default="*", show_default=True, help="Pattern of servers, such as 'plog*'."
)
@click.option(
    "--kafka",
    "kafkas",
    multiple=True,
    type=click.Choice([*bench_kafka.KINDS, "all"]),
    help="Apache Kafka as well, by Maven: a release, with the heap of Java's choice or 1 GB; "
    "repeatable.",
)
@click.option("--kafka-rounds", type=click.IntRange(1), help="Fewer (or more) than --rounds.")
@click.option("--short", is_flag=True, help="A few rows, once, briefly: does everything work?")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where directories are made (and removed): the file system to be measured. "
    "Without it, that of $TMPDIR or /tmp.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all figures.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw the medians.")
@click.option(
    "--docs",
    "docs_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Write tables and plot into a page, between its marks.",
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
    seconds: float,
    records: int | None,
    rounds: int,
    servers: str,
    kafkas: tuple[str, ...],
    kafka_rounds: int | None,
    short: bool,
    directory: Path | None,
    json_path: Path | None,
    plot_path: Path | None,
    docs_path: Path | None,
    known_paths: tuple[Path, ...],
) -> None:
    """Measure produce, fetch and latency beside C loops, in turns.

    Rates are medians of the rounds, with the least and the most. Other work on the machine shows:
    see the column "foreign", in processors.

    Without options every row but linkedin-50M is measured three times, which takes between one and
    two hours; --short takes half a minute. What is measured is written below --directory and
    removed; the figures are only shown, unless --json, --plot or --docs names a file for them.
    """
    if only_list:
        for row in rows():
            click.echo(f"{row.name}: {', '.join(row.against)}")
        return
    runs = [json.loads(path.read_text()) for path in known_paths]
    chosen = [] if runs and not patterns else chosen_rows(patterns, short)
    if records is not None:
        chosen = [row._replace(records=row.records and records) for row in chosen]
    kinds = [bench_kafka.KINDS[key] for key in (bench_kafka.KINDS if "all" in kafkas else kafkas)]
    chosen = [row.with_others(kind.name for kind in kinds) for row in chosen]
    warmup_s = WARMUP_S
    if short:
        seconds, rounds, warmup_s = min(seconds, 0.5), 1, 0.2
    # Ended from outside, it still ends what it started, and removes its directories.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cells = [
        Cell(row, name, [])
        for row in chosen
        for name in row.against
        if fnmatch.fnmatch(name, servers)
    ]
    if chosen and not cells:
        names = ", ".join(dict.fromkeys(repr(name) for row in chosen for name in row.against))
        raise click.ClickException(f"no server is called {servers!r} in these rows, only {names}")
    about: dict[str, Any] = {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg(),
        "seconds": seconds,
    }

    def save() -> None:
        if json_path is not None:
            json_path.write_text(bench_report.as_json(cells, about) + "\n")

    with tempfile.TemporaryDirectory(dir=directory, prefix="plog-bench-") as made:
        turns = Rounds(
            Path(made),
            cells,
            seconds=seconds,
            warmup_s=warmup_s,
            progress=Console(stderr=True),
            on_figures=save,
        )
        turns.run(rounds, kinds, kafka_rounds or rounds)
    cells = [cell for cell in cells if cell.rounds]
    if docs_path is not None:
        if cells:
            runs.append(json.loads(bench_report.as_json(cells, about)))
        bench_report.write_page(docs_path, runs)
    if plot_path is not None:
        bench_report.plot(cells, plot_path)
    if cells:
        bench_report.show(cells, Console(width=None if sys.stdout.isatty() else FILE_COLUMNS))
        click.echo(
            f"{about['commit']}: {rounds} rounds of {seconds:g} s, {os.cpu_count()} processors, "
            f"load before {about['load_before'][0]:.1f}, after {os.getloadavg()[0]:.1f}"
        )
    if turns.failures:
        raise click.ClickException("\n".join(turns.failures))


if __name__ == "__main__":
    command(prog_name="bin/bench")
