"""What spark_connector.py has measured, shown: in a terminal, as JSON, as a page's section.

Owns no measuring. Figures are medians of the rounds, with the least and the most; so are ratios, of
the rounds' own.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench_coordinator_report import Shown
from bench_report import put_between
from rich.console import Console
from rich.table import Table
from spark_connector_loads import STEPS
from spark_connector_rows import BATCHES, KAFKA, READ, SCALING, SINK, Row, rows

from plog.ops.load import Figures

BEGIN = "<!-- spark_connector.py --docs: begin -->"
END = "<!-- spark_connector.py --docs: end -->"
STEPS_TOLD = (
    "Steps are medians, in Spark's words; p50 and p95 are of the whole trigger. Requests are those"
    " of all batches, with the start of the query."
)


class Cell(NamedTuple):
    """One way's figures in one row, a set for each round."""

    row: Row
    way: str
    rounds: list[Figures]

    def values(self, key: str) -> list[float]:
        return [figures[key] for figures in self.rounds]


# -- figures as texts ------------------------------------------------------------------------------


def spread(values: list[float], digits: int, factor: float = 1) -> str:
    """Return a median with the least and the most."""
    middle, least, most = (
        f"{factor * of(values):,.{digits}f}" for of in (statistics.median, min, max)
    )
    return middle if len(values) < 2 else f"{middle} ({least} to {most})"


def ratios(ours: Cell, theirs: Cell, key: str) -> list[float]:
    """Return one way's figure in parts of another's, round by round."""
    both = zip(ours.values(key), theirs.values(key), strict=False)
    return [mine / its for mine, its in both if its]


def connector_of(cells: list[Cell], row: Row) -> Cell | None:
    return next((cell for cell in cells if cell.row == row and cell.way == KAFKA), None)


def _beside(cells: list[Cell], cell: Cell, key: str) -> str:
    connector = connector_of(cells, cell.row)
    if connector is None or connector is cell:
        return ""
    return spread(ratios(cell, connector, key), 2)


def judged(cells: list[Cell], cell: Cell) -> tuple[str, str]:
    """Return the goal beside the connector, and whether the median of ratios meets it."""
    connector, goal = connector_of(cells, cell.row), cell.row.goal
    if goal is None or connector is None or cell.way.startswith(KAFKA):
        return "", ""
    met = statistics.median(ratios(cell, connector, "rows_per_s")) >= goal
    return f">= {goal:g}", "yes" if met else "no"


def sum_of_requests(figures: Figures) -> int:
    return sum(figures["requests"].values())


def requests_a_batch(figures: Figures) -> float:
    return sum_of_requests(figures) / float(figures["all_batches"])


# -- tables ----------------------------------------------------------------------------------------


def rates(cells: list[Cell], title: str) -> Shown:
    """Show how many rows go through in a second."""
    head = [
        *(
            "What",
            "Way",
            "1,000 rows/s",
            "MB/s",
            "Spark's CPU, us/row",
            "Broker's",
            "Requests",
            "Foreign",
        ),
        *("Rate beside kafka's", "CPU beside its", "Goal", "Met"),
    ]
    lines = [
        [
            cell.row.name,
            cell.way,
            spread(cell.values("rows_per_s"), 0, 1e-3),
            f"{statistics.median(cell.values('mb_per_s')):,.0f}",
            f"{statistics.median(cell.values('cpu_us')):.2f}",
            f"{statistics.median(cell.values('broker_cpu_us')):.2f}",
            f"{statistics.median(map(sum_of_requests, cell.rounds)):,.0f}",
            f"{statistics.median(cell.values('foreign_cores')):.2f}",
            _beside(cells, cell, "rows_per_s"),
            _beside(cells, cell, "cpu_us"),
            *judged(cells, cell),
        ]
        for cell in cells
    ]
    return Shown(title, 2, head, lines, [])


def batches(cells: list[Cell]) -> Shown:
    """Show what a small batch of a stream takes, and where its time goes."""
    head = [
        *("Into", "Way", "p50 ms", "p95 ms", "More than kafka's p50, ms"),
        *(f"{step} ms" for step in STEPS),
        *("Batches", "Requests a batch", "Foreign"),
    ]
    lines, below = [], [STEPS_TOLD]
    for cell in cells:
        more = ""
        connector = connector_of(cells, cell.row)
        if connector is not None and connector is not cell:
            both = zip(cell.values("p50_ms"), connector.values("p50_ms"), strict=False)
            more = spread([mine - its for mine, its in both], 0)
        lines.append(
            [
                cell.row.name.removeprefix(f"{BATCHES}/"),
                cell.way,
                spread(cell.values("p50_ms"), 0),
                spread(cell.values("p95_ms"), 0),
                more,
                *(
                    f"{statistics.median(one['steps_ms'][step] for one in cell.rounds):.0f}"
                    for step in STEPS
                ),
                f"{cell.rounds[-1]['batches']} a round",
                f"{statistics.median(map(requests_a_batch, cell.rounds)):.1f}",
                f"{statistics.median(cell.values('foreign_cores')):.2f}",
            ]
        )
        last = cell.rounds[-1]
        each = ", ".join(
            f"{api} {n / last['all_batches']:.1f}" for api, n in last["requests"].items()
        )
        below.append(f"{cell.row.name}, {cell.way}, last round, requests a batch: {each}.")
    return Shown("small batches of a stream", 2, head, lines, below)


TABLES: dict[str, Callable[[list[Cell]], Shown]] = {
    READ: lambda cells: rates(cells, "reading a topic"),
    SCALING: lambda cells: rates(cells, "over partitions"),
    SINK: lambda cells: rates(cells, "writing a topic"),
    BATCHES: batches,
}


def tables(cells: list[Cell]) -> Iterator[Shown]:
    """Yield the tables of what there is."""
    for kind, table in TABLES.items():
        if chosen := [cell for cell in cells if cell.row.kind == kind and cell.rounds]:
            yield table(chosen)


def show(cells: list[Cell], console: Console) -> None:
    for shown in tables(cells):
        table = Table(title=shown.title)
        for number, name in enumerate(shown.head):
            table.add_column(name, justify="left" if number < shown.names else "right")
        for line in shown.lines:
            table.add_row(*line)
        console.print(table)
        for text in shown.below:
            console.print(text, highlight=False)


# -- files -----------------------------------------------------------------------------------------


def as_json(cells: list[Cell], about: dict[str, Any]) -> str:
    found = [{"row": cell.row.name, "way": cell.way, "rounds": cell.rounds} for cell in cells]
    return json.dumps({**about, "cells": found}, indent=1)


def cells_of(run: dict[str, Any]) -> list[Cell]:
    """Return the cells of a run as `as_json` wrote it, in the order of the tables."""
    known = {row.name: row for row in rows(run["partitions"])}
    found = {(one["row"], one["way"]): one["rounds"] for one in run["cells"]}
    return [
        Cell(row, way.name, rounds)
        for row in known.values()
        for way in row.ways
        if (rounds := found.get((row.name, way.name)))
    ]


def page(run: dict[str, Any]) -> str:
    """Return the tables of a run in Markdown, and what they are from."""
    lines = []
    for shown in tables(cells_of(run)):
        sides = ["---"] * shown.names + ["---:"] * (len(shown.head) - shown.names)
        lines += [f"| {' | '.join(texts)} |" for texts in (shown.head, sides, *shown.lines)]
        lines += ["", *shown.below, *([""] if shown.below else [])]
    return "\n".join([*lines, told(run)])


def told(run: dict[str, Any]) -> str:
    """Return what a run was."""
    most = max((len(one["rounds"]) for one in run["cells"]), default=0)
    return (
        f"{run['date'][:10]}, commit {run['commit'].removesuffix('-dirty')}: {most} rounds after"
        f" {run['warm_ups']} to warm up, {run['rows']:,} rows of 100 B read,"
        f" local[{run['cores']}] on {run['processors']} processors, Spark {run['spark']},"
        f" connector {run['connector']}, load before {run['load_before'][0]:.1f}."
    )


def write_page(path: Path, run: dict[str, Any]) -> None:
    """Put the tables between the marks of a page. Raises ValueError where it has none."""
    put_between(path, BEGIN, END, page(run))
