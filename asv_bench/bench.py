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
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import bench_kafka
import bench_load
import bench_report
import click
from bench_report import Cell
from bench_rows import CONTESTANTS, HOT_BYTES, KAFKAS, KB, SHORT, Row, rows
from rich.console import Console

from plog.errors import PlogError
from plog.ops import load
from plog.ops.load import Batch, Figures

WARMUP_S = 0.5
MOST_MB = 2_000
"""What one measurement may write: more would be paced by the disk's writing back."""
OTHER_REQUESTS = "other API or version"
"""Those that make the topic, say; the load's own are the others."""
NEW_PRODUCERS = "unusual append"


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
        if row.mode == "produce" and row.batch_bytes > 0:
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
    rounds: int,
    kafka: bool,
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
    """
    if only_list:
        for row in rows():
            click.echo(row.name)
        return
    runs = [json.loads(path.read_text()) for path in known_paths]
    chosen = [] if runs and not patterns else chosen_rows(patterns, short)
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
                        json_path.write_text(bench_report.as_json(cells, about) + "\n")
    cells = [cell for cell in cells if cell.rounds]
    if docs_path is not None:
        if cells:
            runs.append(json.loads(bench_report.as_json(cells, about)))
        bench_report.write_page(docs_path, runs)
    if plot_path is not None:
        bench_report.plot(cells, plot_path)
    if cells:
        bench_report.show(cells, Console())
        click.echo(
            f"{about['commit']}: {rounds} rounds of {seconds:g} s, {os.cpu_count()} processors, "
            f"load before {about['load_before'][0]:.1f}, after {os.getloadavg()[0]:.1f}"
        )
    if failures:
        raise click.ClickException("\n".join(failures))


if __name__ == "__main__":
    command()
