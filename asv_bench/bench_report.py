"""What bin/bench has measured, shown: in a terminal, as a plot, as JSON, as a page.

Owns no measuring. Ratios are the median of the rounds' own, each of two neighbours in time.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench_kafka import NAMES as KAFKAS
from bench_rows import BUSY, PAGE_CACHE, PLOG, PREAD, Row, rows
from rich.console import Console
from rich.table import Table

from plog.ops.load import Figures

COST_GOAL_S_PER_GB = 0.15
"""So much more CPU time than the C loop, at most."""
KAFKA_GOALS = {
    "produce": (2.0, 0.25),
    "fetch": (None, 0.25),
    "small": (3.0, None),
    "linkedin": (1.0, None),
    "linkedin-50M": (1.0, None),
    "durable": (None, None),
    "growth": (None, None),
}
"""By the kind of a row: the rate beside the best Kafka, and the CPU time; None: no goal."""
FLAT = 1.2
"""What is to stay as it is may grow by so much."""
FAST_GOAL = 0.99
MEMORY_GOAL_MB = 200
PERCENTILES = ("p50_us", "p99_us", "p999_us")
BEGIN, END = "<!-- bin/bench --docs: begin -->", "<!-- bin/bench --docs: end -->"


class Cell(NamedTuple):
    """One contestant's figures in one row, a value for each round."""

    row: Row
    contestant: str
    rounds: list[Figures]

    def values(self, key: str) -> list[float]:
        return [figures[key] for figures in self.rounds if figures.get(key) is not None]


# --- in a terminal --------------------------------------------------------------------------------


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


class Judgement(NamedTuple):
    """A figure, as it stands to what it is held against, and its goal."""

    measured: str
    goal: str
    is_met: bool


def held_against(cell: Cell, base: Cell | None) -> list[Judgement]:
    """Judge a cell by what its row holds it against."""
    row = cell.row
    if base is None or row.goal is None:
        return []
    if row.unit == "us":
        found = [ratio(cell, base, key) for key in PERCENTILES]
        shown = " / ".join("-" if one is None else f"{one:.1f}" for one in found)
        met = all(one is not None and one <= row.goal for one in found)
        return [Judgement(f"{shown} x {base.contestant}", f"<= {row.goal:g} x", met)]
    share = ratio(cell, base, row.unit)
    if share is None:
        return []
    text = f"{share:.1%} of {base.contestant}"
    judged = [Judgement(text, f">= {row.goal:.0%}", share >= row.goal)]
    cost_key, digits = _cost_of(row.unit)
    if base.contestant.startswith("C"):
        more = statistics.median(cell.values(cost_key)) - statistics.median(base.values(cost_key))
        if row.unit == "MB/s":
            goal, met = f"+{COST_GOAL_S_PER_GB} s/GB", more <= COST_GOAL_S_PER_GB
            judged.append(Judgement(f"{more:+.{digits}f} s/GB", goal, met))
        else:
            judged.append(Judgement(f"{more:+.{digits}f} us", "", True))
    cost = ratio(cell, base, "cpu_us_per_request")
    if row.cost_goal is not None and cost is not None:
        goal = f"<= {row.cost_goal:g} x"
        judged.append(Judgement(f"CPU {cost:.2f} x", goal, cost <= row.cost_goal))
    return judged


def beside_kafka(cell: Cell, by_place: dict[tuple[str, str], Cell]) -> list[Judgement]:
    """Judge rate and cost, or the percentiles, beside the best that any Kafka has there.

    Of medians, since a Kafka's rounds may be those of another run. plog's acks=all waits for the
    disk by default, and Kafka's for the page cache: both ways have the same goals.
    """
    row = cell.row
    kafkas = [found for name in KAFKAS if (found := by_place.get((row.name, name)))]
    if cell.contestant in KAFKAS or cell.contestant.startswith("C") or not kafkas:
        return []
    has_goals = cell.contestant in (PLOG, PAGE_CACHE)

    def beside(key: str, best: Callable[[Iterable[float]], float]) -> float:
        theirs = best(statistics.median(kafka.values(key)) for kafka in kafkas)
        return statistics.median(cell.values(key)) / theirs

    if row.unit == "us":
        found = [beside(key, min) for key in PERCENTILES]
        shown = " / ".join(f"{one:.2f}" for one in found)
        return [Judgement(f"{shown} x", "< 1 x" if has_goals else "", max(found) < 1)]
    least_rate, most_cost = KAFKA_GOALS[row.name.partition("/")[0]] if has_goals else (None, None)
    rate, cost = beside(row.unit, max), beside(_cost_of(row.unit)[0], min)
    return [
        Judgement(
            f"{rate:.2f} x",
            "" if least_rate is None else f">= {least_rate:g} x",
            least_rate is None or rate >= least_rate,
        ),
        Judgement(
            f"CPU {cost:.2f} x",
            "" if most_cost is None else f"<= {most_cost:g} x",
            most_cost is None or cost <= most_cost,
        ),
    ]


def grown(cell: Cell, by_place: dict[tuple[str, str], Cell]) -> list[Judgement]:
    """Judge what a request costs by what it costs where there is least of what grows."""
    kind, _, size = cell.row.name.rpartition("/")
    first = by_place.get((f"{kind}/1", cell.contestant))
    if not kind.startswith("growth/") or size == "1" or first is None or cell.contestant != PLOG:
        return []
    cost = statistics.median(cell.values("cpu_us_per_request")) / statistics.median(
        first.values("cpu_us_per_request")
    )
    return [Judgement(f"CPU {cost:.2f} x that of 1", f"<= {FLAT:g} x", cost <= FLAT)]


def unchanged(cell: Cell, by_place: dict[tuple[str, str], Cell]) -> list[Judgement]:
    """Judge latencies beside a busy thread by those without one."""
    quiet = by_place.get((cell.row.name, PLOG))
    if cell.contestant != BUSY or quiet is None:
        return []
    found = [
        statistics.median(cell.values(key)) / statistics.median(quiet.values(key))
        for key in PERCENTILES
    ]
    shown = " / ".join(f"{one:.1f}" for one in found)
    return [Judgement(f"{shown} x {PLOG}", f"<= {FLAT:g} x", max(found) <= FLAT)]


def answered_fast(cell: Cell) -> list[Judgement]:
    shares = cell.values("fast_share")
    if not shares:
        return []
    share = statistics.median(shares)
    return [Judgement(f"{share:.2%} fast", f">= {FAST_GOAL:.0%}", share >= FAST_GOAL)]


def verdict(cell: Cell, base: Cell | None) -> tuple[str, str]:
    """Return how a cell stands to what it is held against, and the goal, as texts."""
    judged = held_against(cell, base)
    return (
        "; ".join(_coloured(one.measured, one.is_met) for one in judged),
        "; ".join(one.goal for one in judged if one.goal),
    )


def _texts(judged: list[Judgement]) -> str:
    return ", ".join(one.measured for one in judged)


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
            table.add_column("beside the best Kafka")
        last = len(columns) + 4
        before = ""
        for cell in chosen:
            base = by_place.get((cell.row.name, cell.row.against[cell.contestant] or ""))
            numbers = (
                [_spread(cell.values(key), 0) for key in PERCENTILES]
                if paced
                else [_spread(cell.values(unit), 0), _spread(cell.values("p99_us"), 0)]
            )
            cost_key, digits = _cost_of(unit)
            shares = cell.values("fast_share")
            table.add_row(
                "" if cell.row.name == before else cell.row.name,
                cell.contestant,
                *numbers,
                _spread(cell.values(cost_key), digits + 1),
                f"{statistics.median(cell.values('client_cores')):.2f}",
                f"{statistics.median(cell.values('foreign_cores')):.2f}",
                f"{statistics.median(shares):.1%}" if shares else "",
                f"{max(cell.values('rss_mb')):.0f}",
                *verdict(cell, base),
                *([_texts(beside_kafka(cell, by_place))] if len(table.columns) > last else []),
            )
            before = cell.row.name
        console.print(table)
    show_callouts(cells, console)
    for line in [*counts_of(cells), *starts_of(cells), *meanwhile(cells)]:
        console.print(line)


def meanwhile(cells: list[Cell]) -> list[str]:
    """Return the rates of loads that ran beside a row's own, a line for each."""
    return [
        f"{cell.row.name}, {cell.contestant}: {cell.row.beside[0]} meanwhile:"
        f" {_spread([figures['beside']['mb_per_s'] for figures in cell.rounds], 0)} MB/s."
        for cell in cells
        if cell.row.beside and cell.rounds
    ]


def counts_of(cells: list[Cell]) -> list[str]:
    """Return how long a load by records took, a line for each row and server."""
    lines = []
    for cell in cells:
        if cell.row.records is not None and cell.rounds:
            millions = [figures["records_per_s"] / 1e6 for figures in cell.rounds]
            lines.append(
                f"{cell.row.name}, {cell.contestant}: {cell.rounds[0]['records']:,} records in"
                f" {_spread(cell.values('seconds'), 1)} s, {_spread(millions, 2)} million/s."
            )
    return lines


def starts_of(cells: list[Cell]) -> list[str]:
    """Return what rows of old segments tell of starts on them, a line for each server."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        if cell.row.is_of_plog:
            found.setdefault(cell.contestant, []).extend(cell.values("start_s"))
    return [f"{name}: a start takes {_spread(values, 2)} s." for name, values in found.items()]


def show_callouts(cells: list[Cell], console: Console) -> None:
    slow = [cell for cell in cells if any(share < FAST_GOAL for share in cell.values("fast_share"))]
    for cell in slow:
        counts = cell.rounds[-1]["by_python"]
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
        console.print(f"{cell.row.name}, {cell.contestant}: passed to Python: {reasons}")


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


# --- the page -------------------------------------------------------------------------------------


def _cost_of(unit: str) -> tuple[str, int]:
    """Return the key of a row's cost, and its digits."""
    return ("cpu_s_per_gb", 2) if unit == "MB/s" else ("cpu_us_per_request", 1)


def _row_of(cell: Cell, against: str, kafka: str) -> list[str]:
    """Return a cell as the columns of its unit's table."""
    name = [cell.row.name, cell.contestant]
    cost_key, digits = _cost_of(cell.row.unit)
    cost = [
        f"{statistics.median(cell.values(cost_key)):.{digits}f}",
        f"{statistics.median(cell.values('client_cores')):.2f}",
        f"{statistics.median(cell.values('foreign_cores')):.2f}",
    ]
    shares = cell.values("fast_share")
    rest = [f"{statistics.median(shares):.2%}" if shares else "", against, kafka]
    if cell.row.unit == "us":
        return [*name, *(_spread(cell.values(key), 0) for key in PERCENTILES), *cost, *rest]
    return [
        *name,
        _spread(cell.values(cell.row.unit), 0),
        *cost,
        f"{statistics.median(cell.values('p99_us')):,.0f}",
        f"{max(cell.values('rss_mb')):.0f}",
        *rest,
    ]


REST = "CPU {cost}|client|foreign|{more}fast|held against|best Kafka"
HEADS = {
    "MB/s": "Load|Server|MB/s|" + REST.format(cost="s/GB", more="p99 us|RSS MB|"),
    "req/s": "Load|Server|Requests/s|" + REST.format(cost="us", more="p99 us|RSS MB|"),
    "us": "Load|Server|p50 us|p99 us|p99.9 us|" + REST.format(cost="us", more=""),
}


def cells_of(runs: list[dict[str, Any]]) -> list[Cell]:
    """Return the cells of runs as `as_json` wrote them; a later run's replace an earlier one's."""
    known = {row.name: row for row in rows()}
    found = {
        (one["row"], one["server"]): Cell(known[one["row"]], one["server"], one["rounds"])
        for run in runs
        for one in run["cells"]
        if one["rounds"] and one["row"] in known
    }
    return list(found.values())


def _held(cell: Cell, by_place: dict[tuple[str, str], Cell]) -> list[Judgement]:
    base = by_place.get((cell.row.name, cell.row.against.get(cell.contestant) or ""))
    return [*held_against(cell, base), *grown(cell, by_place), *unchanged(cell, by_place)]


def misses(cells: list[Cell]) -> list[str]:
    """Return a table of what is short of its goal."""
    by_place = {(cell.row.name, cell.contestant): cell for cell in cells}
    lines = [
        "Short of their goals:",
        "",
        "| Load | Server | Measured | Goal |",
        "|---|---|---|---|",
    ]
    for cell in cells:
        if cell.contestant == PREAD:
            continue  # the other way, to choose by
        kafka = beside_kafka(cell, by_place)
        named = [one._replace(measured=f"{one.measured} the best Kafka") for one in kafka]
        judged = [*_held(cell, by_place), *named, *answered_fast(cell)]
        short = [one for one in judged if one.goal and not one.is_met]
        lines += [
            f"| {cell.row.name} | {cell.contestant} | {one.measured} | {one.goal} |"
            for one in short
        ]
    return lines


def memory_of(cells: list[Cell]) -> str:
    """Return which load plog took most memory for."""
    most = max(
        (cell for cell in cells if cell.contestant.startswith("plog")),
        key=lambda cell: max(cell.values("rss_mb")),
        default=None,
    )
    if most is None:
        return ""
    return (
        f"Most memory of any plog here: {max(most.values('rss_mb')):.0f} MB (RSS;"
        f" {most.row.name}, {most.contestant}); goal: {MEMORY_GOAL_MB} MB under four connections."
    )


def page(runs: list[dict[str, Any]], picture: str) -> str:
    """Return the tables of runs in Markdown, and what they are from."""
    cells = cells_of(runs)
    by_place = {(cell.row.name, cell.contestant): cell for cell in cells}
    order = [(row.name, name) for row in rows() for name in [*row.against, *KAFKAS]]
    lines = []
    for unit, head in HEADS.items():
        names = head.split("|")
        lines += ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
        for place in dict.fromkeys(order):
            cell = by_place.get(place)
            if cell is not None and cell.row.unit == unit:
                held, kafka = _texts(_held(cell, by_place)), _texts(beside_kafka(cell, by_place))
                lines.append("| " + " | ".join(_row_of(cell, held, kafka)) + " |")
        lines.append("")
    lines += [*misses(cells), ""]
    foreign = [figures["foreign_cores"] for cell in cells for figures in cell.rounds]
    lines += dict.fromkeys(
        f"{run['date'][:10]}, commit {run['commit'].removesuffix('-dirty')}:"
        f" {max(len(one['rounds']) for one in run['cells'])} rounds of {run['seconds']:g} s,"
        f" {run['processors']} processors."
        for run in runs
    )
    lines += [*counts_of(cells), *starts_of(cells), *meanwhile(cells), memory_of(cells)]
    lines.append(
        f"Busy with something else: {statistics.median(foreign):.2f} processors (median;"
        f" {min(foreign):.1f} to {max(foreign):.1f})."
    )
    return "\n".join([*lines, "", f"![Medians and spreads]({picture})"])


def put_between(path: Path, begin: str, end: str, text: str) -> None:
    """Put a text between two marks of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    before, found_begin, rest = path.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"{path} lacks {begin} or {end}")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def write_page(path: Path, runs: list[dict[str, Any]]) -> None:
    """Put tables and plot between the marks of a page. Raises as `put_between`."""
    picture = path.with_suffix(".png")
    put_between(path, BEGIN, END, page(runs, picture.name))
    plot(cells_of(runs), picture)
