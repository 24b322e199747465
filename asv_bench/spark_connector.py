"""How fast Spark reads and writes topics by `plog`, beside its own Kafka connector.

    python asv_bench/spark_connector.py --help

Both formats are in one session, and ask the same brokers. Whoever takes part in a row has its turn
within each round, beginning with another one each time, so that what else the machine does meets
all of them. Not part of asv: it takes long, and starts brokers and a JVM.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
import spark_connector_report as report  # noqa: E402
from bench import FILE_COLUMNS, commit  # noqa: E402
from spark_connector_loads import Asked, Loads  # noqa: E402
from spark_connector_report import Cell  # noqa: E402
from spark_connector_rows import DISK, PAGE_CACHE, SCALES, Row, rows  # noqa: E402

from tests.servers import BrokerProcess, free_port  # noqa: E402
from tests.spark.jvm_connector import RELEASE, connector_jars  # noqa: E402


def scales_of(_context: Any, _option: Any, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(one) for one in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(f"{text!r} is no list of numbers, such as 1,2,4")
    return found


@contextmanager
def running(
    directory: Path, jars: str, cores: int, memory: str
) -> Iterator[tuple[Any, dict[str, Asked]]]:
    """Start a session and its brokers, and end them."""
    from plog.spark.session import session

    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with ExitStack() as stack:
        brokers = {}
        for name in (DISK, PAGE_CACHE):
            place, page = directory / name.replace(" ", "-"), free_port()
            place.mkdir()
            overrides: dict[str, object] = {"metrics.listener": f"127.0.0.1:{page}"}
            if name == PAGE_CACHE:
                overrides["flush.before.ack"] = "false"
            brokers[name] = Asked(BrokerProcess(place, overrides=overrides).start(), page)
            stack.callback(brokers[name].process.kill)
        spark = session(
            "plog and kafka",
            spark_master=f"local[{cores}]",
            spark_driver_memory=memory,
            spark_jars=jars,
            spark_ui_enabled="false",
            spark_ui_showConsoleProgress="false",
            spark_sql_streaming_numRecentProgressUpdates="10000",
        )
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        yield spark, brokers


def measured(
    directory: Path,
    chosen: list[Row],
    settings: dict[str, Any],
    memory: str,
    json_path: Path | None,
) -> dict[str, Any]:
    """Measure in turns; return the run, as it is also written whenever there is more of it."""
    try:
        jars = ",".join(map(str, connector_jars()))
    except pytest.skip.Exception as reason:
        raise click.ClickException(str(reason)) from None
    cells = [Cell(row, way.name, []) for row in chosen for way in row.ways]
    progress = Console(stderr=True)
    about = {
        **settings,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "load_before": os.getloadavg(),
        "connector": RELEASE,
    }
    with running(directory, jars, settings["cores"], memory) as (spark, brokers):
        about["spark"] = spark.version
        names = ("rows", "batches", "cores")
        loads = Loads(spark, directory, brokers, **{name: settings[name] for name in names})
        # Rounds before the first are forgotten.
        for number in range(1 - settings["warm_ups"], settings["rounds"] + 1):
            for cell in in_turns(cells, number):
                when = f"round {number}" if number > 0 else "warming up"
                progress.print(f"[dim]{when}: {cell.row.name}, {cell.way}")
                (way,) = (one for one in cell.row.ways if one.name == cell.way)
                figures = loads.measure(cell.row, way)
                if number > 0:
                    cell.rounds.append(figures)
                if json_path is not None and number > 0:
                    json_path.write_text(report.as_json(cells, about) + "\n")
    return json.loads(report.as_json(cells, about))  # type: ignore[no-any-return]


def in_turns(cells: list[Cell], number: int) -> Iterator[Cell]:
    """Yield the cells of a round, those of each row beginning with another one than last time."""
    for row in dict.fromkeys(cell.row for cell in cells):
        own = [cell for cell in cells if cell.row == row]
        first = number % len(own)
        yield from own[first:] + own[:first]


def chosen_rows(patterns: tuple[str, ...], scales: tuple[int, ...]) -> list[Row]:
    chosen = [
        row
        for row in rows(scales)
        if any(fnmatch.fnmatch(row.name, one) for one in patterns or ("*",))
    ]
    if not chosen:
        names = ", ".join(row.name for row in rows(scales))
        raise click.ClickException(f"no such rows; there are {names}")
    return chosen


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--rows",
    "count",
    default=4_000_000,
    show_default=True,
    type=click.IntRange(1),
    help="Records of 100 B that are read; half as many over numbers of partitions, a quarter "
    "written; and a quarter of each of 1 KB.",
)
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--warm-ups", default=1, show_default=True, help="Rounds before those.")
@click.option(
    "--batches", default=50, show_default=True, type=click.IntRange(1), help="Of a stream."
)
@click.option(
    "--partitions",
    "scales",
    default=",".join(map(str, SCALES)),
    show_default=True,
    callback=scales_of,
    help="Numbers of them to read from.",
)
@click.option("--only", multiple=True, help="Patterns of rows, such as 'sink/*'; repeatable.")
@click.option("--cores", default=2, show_default=True, help="Spark's local[N].")
@click.option("--driver-memory", default="2g", show_default=True)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Where a directory is made (and removed): the file system to be measured. "
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
    "known_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What --json has written: shown, and for --docs, in place of measuring.",
)
def main(
    count: int,
    rounds: int,
    warm_ups: int,
    batches: int,
    scales: tuple[int, ...],
    only: tuple[str, ...],
    cores: int,
    driver_memory: str,
    directory: Path | None,
    json_path: Path | None,
    docs_path: Path | None,
    known_path: Path | None,
) -> None:
    """Measure batch queries, the sink and small batches of streams by `plog` and by `kafka`.

    \b
    read/*           whole queries of a topic: count, aggregate, parsing JSON
    partitions/*     the aggregate over topics of more and more partitions
    sink/*           generated rows into a topic, on a broker that waits for the disk, as plog
                     does, and on one that does not, as Kafka does
    micro-batches/*  streams of small batches, into nothing and into a topic

    Figures are medians of the rounds, with the least and the most. CPU time is that of the JVM and
    its Python workers; "foreign" are the processors that something else kept busy. Maven brings
    the connector the first time.
    """
    # Ended from outside, it still ends what it started, and removes its directories.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if known_path is not None:
        run = json.loads(known_path.read_text())
    else:
        chosen = chosen_rows(only, scales)
        settings = {
            "rows": count,
            "rounds": rounds,
            "warm_ups": warm_ups,
            "batches": batches,
            "partitions": scales,
            "cores": cores,
        }
        with tempfile.TemporaryDirectory(dir=directory, prefix="plog-bench-") as made:
            run = measured(Path(made), chosen, settings, driver_memory, json_path)
    if docs_path is not None:
        report.write_page(docs_path, run)
    width = None if sys.stdout.isatty() else FILE_COLUMNS
    report.show(report.cells_of(run), Console(width=width))
    click.echo(report.told(run))


if __name__ == "__main__":
    main(prog_name="asv_bench/spark_connector.py")
