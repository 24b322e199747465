"""What bin/bench-coordinators has measured, shown: in a terminal, as JSON, as a page's section.

Owns no measuring. A table is made once, of texts, for whoever shows it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench_coordinator_rows import (
    ACKS_ALL,
    COMPARISONS,
    CONSUMER_HEARTBEAT_S,
    COPYING,
    COSTS,
    FAST,
    FAST_GOAL,
    GROUPS,
    HEARTBEAT_S,
    LARGEST_UNSEEN_LOSS,
    LOAD,
    PLOG,
    REBALANCE,
    REBALANCE_GOAL_S,
    ROWS,
    START,
    Comparison,
    Row,
)
from bench_report import put_between
from bench_spread import Interval, interval, ratio_interval
from rich.console import Console
from rich.table import Table

from plog.ops.load import Figures

BEGIN = "<!-- bin/bench-coordinators --docs: begin -->"
END = "<!-- bin/bench-coordinators --docs: end -->"
METHOD = (
    "Means of the rounds with 95% confidence intervals by Student's t; beside each other, the"
    " geometric mean of the rounds' own ratios with its interval."
)
MEETING = (
    "A goal is met if the whole interval meets it, missed if none of it does, and otherwise not"
    " shown. A loss is measured if the whole interval is below 0. It is not measurable if none of"
    f" the interval is below {-LARGEST_UNSEEN_LOSS:.0%}, the smallest published loss. Without"
    " idempotence plog's client has one request in flight, so it shows nothing of idempotence"
    " alone. Published figures are Kafka's, from the page cache."
)


class Cell(NamedTuple):
    """One contestant's figures in one row, a set for each round."""

    row: Row
    contestant: str
    rounds: list[Figures]

    def values(self, key: str) -> list[float]:
        """Return a figure of each round that has it; all of them, where a round has several."""
        found: list[float] = []
        for figures in self.rounds:
            value = figures.get(key)
            if value is not None:
                found += value if isinstance(value, list) else [value]
        return found


class Shown(NamedTuple):
    """A table of texts: how many columns at its left name things, and lines below it."""

    title: str
    names: int
    head: list[str]
    lines: list[list[str]]
    below: list[str]


# --- figures as texts -----------------------------------------------------------------------------


def _sure(values: list[float], digits: int) -> str:
    """Return a mean with its interval."""
    if not values:
        return ""
    found = interval(values)
    text = f"{found.mean:,.{digits}f}"
    if found.low is not None:
        text += f" ±{found.mean - found.low:,.{digits}f}"
    return text


def _spread(values: list[float], digits: int, factor: float = 1) -> str:
    """Return a median with the least and the most."""
    if not values:
        return ""
    middle, least, most = (
        f"{factor * of(values):,.{digits}f}" for of in (statistics.median, min, max)
    )
    return middle if least == most else f"{middle} ({least} to {most})"


def _share(values: list[float]) -> str:
    return f"{statistics.median(values):.2%}" if values else ""


def _change(ratio: Interval) -> str:
    text = f"{ratio.mean - 1:+.1%}"
    if ratio.low is not None and ratio.high is not None:
        text += f" ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"
    return text


# --- what producing costs -------------------------------------------------------------------------


def costs(cells: list[Cell]) -> Iterable[Shown]:
    """Show the ways to produce, and beside each other what has been published about them."""
    head = [
        *("Load", "Way", "Records/s", "MB/s", "CPU s/GB", "Commits/s", "Commit ms"),
        *("Client", "Foreign", "Fast Produce"),
    ]
    lines = [
        [
            cell.row.name,
            cell.contestant,
            _sure(cell.values("records_per_s"), 0),
            _sure(cell.values("mb_per_s"), 1),
            _sure(cell.values("cpu_s_per_gb"), 2),
            _sure(cell.values("transactions_per_s"), 1) if cell.values("committing_ms") else "",
            _sure(cell.values("committing_ms"), 1),
            f"{statistics.median(cell.values('client_cores')):.2f}",
            f"{statistics.median(cell.values('foreign_cores')):.2f}",
            _share(cell.values("fast_produce")),
        ]
        for cell in cells
    ]
    yield Shown("what producing costs", 2, head, lines, [METHOD])
    compared = [line for row in _rows_of(cells) for line in compare(row, cells)]
    head = ["Load", "Way", "Beside", "Rate", "CPU s/GB", "Client's", "To be beaten", "Met"]
    if compared:
        yield Shown("beside each other", 3, head, compared, [MEETING])


def _rows_of(cells: list[Cell]) -> list[Row]:
    return list(dict.fromkeys(cell.row for cell in cells))


def is_alike(one: Comparison, row: Row) -> bool:
    """Tell whether idempotence is all that differs, or there is nothing closer to compare with."""
    return one.published is not None or one.theirs == ACKS_ALL or ACKS_ALL not in row.contestants


def compare(row: Row, cells: list[Cell]) -> list[list[str]]:
    """Return the lines of a row's comparisons."""
    by_way = {cell.contestant: cell for cell in cells if cell.row == row and cell.rounds}
    lines = []
    for one in COMPARISONS:
        if one.ours in by_way and one.theirs in by_way and is_alike(one, row):
            ours, theirs = by_way[one.ours], by_way[one.theirs]
            rate = ratio_interval(ours.values("records_per_s"), theirs.values("records_per_s"))
            cpu = [
                _change(ratio_interval(of(ours), of(theirs)))
                for of in (_broker_s_per_gb, _client_s_per_gb)
            ]
            goal, met = judged(one, rate) if row.server == PLOG else ("", "")
            if row.durable and one.published is not None:
                goal += ", from the page cache"
            lines.append([row.name, one.ours, one.theirs, _change(rate), *cpu, goal, met])
    return lines


def _broker_s_per_gb(cell: Cell) -> list[float]:
    return cell.values("cpu_s_per_gb")


def _client_s_per_gb(cell: Cell) -> list[float]:
    return [one["client_cores"] / one["mb_per_s"] * 1e3 for one in cell.rounds]


def judged(one: Comparison, rate: Interval) -> tuple[str, str]:
    """Return the goal of a comparison, and whether it is met: by the whole interval, or not shown.

    An interval around 0 is no goal that is met: it may be as wide as the rounds are few.
    """
    if one.published is None:
        goal, wanted, missed = "not measurable", 1 - LARGEST_UNSEEN_LOSS, 1.0
    else:
        goal, wanted, missed = f"{one.published:+.0%}", 1 + one.published, 1 + one.published
    if one.differs:
        return goal, f"not shown: {one.differs}"
    if rate.low is None or rate.high is None:
        return goal, "not shown: one round"
    if rate.high < missed:
        return goal, "no"
    return goal, "yes" if rate.low >= wanted else "not shown"


def fast(cells: list[Cell]) -> Iterable[Shown]:
    """Show which share of requests Python never saw, and why it saw the others."""
    head = [
        "Load",
        "Fast Produce",
        "Fast Fetch",
        "Goal",
        "MB/s",
        "Commits/s",
        "CPU s/GB",
        "Foreign",
    ]
    lines, below = [], []
    for cell in cells:
        lines.append(
            [
                cell.row.name,
                _share(cell.values("fast_produce")),
                _share(cell.values("fast_fetch")),
                f">= {FAST_GOAL:.0%}",
                _sure(cell.values("mb_per_s"), 1),
                _sure(cell.values("transactions_per_s"), 1),
                _sure(cell.values("cpu_s_per_gb"), 2),
                f"{statistics.median(cell.values('foreign_cores')):.2f}",
            ]
        )
        last = cell.rounds[-1]
        for what in ("requests", "callouts"):
            told = ", ".join(f"{name} {count:,}" for name, count in last[what].items() if count)
            below.append(f"{cell.row.name}, last round, {what.replace('_', ' ')}: {told}.")
    yield Shown("which plane answers Java's transactions and groups", 1, head, lines, below)


def copying(cells: list[Cell]) -> Iterable[Shown]:
    """Show the same for applications whose transactions are small, and how many first writes are.

    By version 2 of transactions a partition joins by its first write, which is stored before the
    write is: that one is Python's.
    """
    head = [
        *("Load", "Client", "Transactions", "Produces", "First writes, at most"),
        *("Produces by Python", "Fast Produce", "Fast Fetch", "Goal", "Met"),
        *("Transactions/s", "CPU ms a transaction", "Foreign"),
    ]
    lines, below = [], []
    for cell in cells:
        last = cell.rounds[-1]
        lines.append(
            [
                cell.row.name,
                cell.contestant,
                f"{last['transactions']:,}",
                f"{last['produces']:,}",
                f"{last['most_first_writes']:,}",
                f"{last['python_produces']:,}",
                _share(cell.values("fast_produce")),
                _share(cell.values("fast_fetch")),
                f">= {FAST_GOAL:.0%}",
                "yes" if is_fast(cell) else "no",
                _sure(cell.values("transactions_per_s"), 0),
                _sure(cell.values("cpu_ms"), 2),
                f"{statistics.median(cell.values('foreign_cores')):.2f}",
            ]
        )
        told = ", ".join(f"{name} {count:,}" for name, count in last["callouts"].items())
        below.append(f"{cell.row.name}, {cell.contestant}, last round, callouts: {told}.")
    yield Shown("which plane answers small transactions", 2, head, lines, below)


def is_fast(cell: Cell) -> bool:
    """Tell whether Python saw as little of the Produces and of the Fetches as it should."""
    shares = cell.values("fast_produce") + cell.values("fast_fetch")
    return all(share >= FAST_GOAL for share in shares)


# --- groups ---------------------------------------------------------------------------------------


def groups(cells: list[Cell]) -> Iterable[Shown]:
    """Show what many groups take, a column for each protocol."""
    figures: list[tuple[str, str, int, float]] = [
        ("RSS before, MB", "before_rss_mb", 1, 1),
        ("RSS with all groups, MB", "after_rss_mb", 1, 1),
        ("PSS before, MB", "before_pss_mb", 1, 1),
        ("PSS with all groups, MB", "after_pss_mb", 1, 1),
        ("PSS of a group, KB", "kb_per_group", 2, 1),
        ("All have joined after, s", "joining_s", 1, 1),
        ("CPU of that, s", "joining_cpu_s", 1, 1),
        ("Heartbeats/s", "heartbeats_per_s", 0, 1),
        ("CPU s/s of heartbeats", "cpu_s_per_s", 3, 1),
        ("CPU s/s without groups", "idle_cores", 3, 1),
        ("CPU of a heartbeat, us", "cpu_us_per_heartbeat", 1, 1),
        ("Heartbeat p50, us", "p50_us", 0, 1),
        ("Heartbeat p99, us", "p99_us", 0, 1),
        ("Client, processors", "client_cores", 2, 1),
        ("Foreign, processors", "foreign_cores", 2, 1),
    ]
    lines = [
        [name, *(_spread(cell.values(key), digits, factor) for cell in cells)]
        for name, key, digits, factor in figures
    ]
    below = [
        f"{cell.row.protocol.capitalize()}: {last['groups']:,} groups of one member over"
        f" {last['connections']:,} connections, a heartbeat every {cell.row.interval_s:g} s."
        for cell in cells
        for last in cell.rounds[-1:]
    ]
    yield Shown("many groups", 1, ["Figure", *(cell.row.protocol for cell in cells)], lines, below)


def rebalances(cells: list[Cell]) -> Iterable[Shown]:
    """Show how long a large group rebalances."""
    head = [
        *("Members", "Protocol", "Heartbeats", "Change", "p50 s", "Most s"),
        *("After the last has heard: p50 s", "Most s"),
        *("Goal", "Met", "CPU of the broker, s", "Count", "Foreign"),
    ]
    lines = []
    for cell in cells:
        for change in ("join", "leave"):
            whole, after, cpu = (
                cell.values(f"{change}_{figure}_s") for figure in ("whole", "after_heard", "cpu")
            )
            lines.append(
                [
                    f"{cell.rounds[-1]['members']} of the benchmark's",
                    cell.row.protocol,
                    f"every {cell.row.interval_s:g} s",
                    change,
                    f"{statistics.median(whole):.3f}",
                    f"{max(whole):.3f}",
                    f"{statistics.median(after):.3f}",
                    f"{max(after):.3f}",
                    f"< {REBALANCE_GOAL_S:g} s",
                    "yes" if max(whole) < REBALANCE_GOAL_S else "no",
                    f"{statistics.median(cpu):.3f}",
                    f"{len(whole)}",
                    f"{statistics.median(cell.values('foreign_cores')):.2f}",
                ]
            )
    below = [
        "`bench_members.py` sends what Java's consumers send, and joins at once when it learns of"
        " a rebalance. Java's client and plog.client send a heartbeat every"
        f" {HEARTBEAT_S:g} s by default and join at their next poll. A member learns of a"
        " rebalance from its next heartbeat, so most of the time is that interval.",
        "With KIP-848 the coordinator assigns a topic with one partition more than members, and"
        f" sets the heartbeat interval: {CONSUMER_HEARTBEAT_S:g} s by default. Members do not join"
        " again. A change ends when all members are at the newest epoch and own their target. All"
        " but one or two members keep reading meanwhile.",
    ]
    yield Shown("rebalances of a large group", 4, head, lines, below)


# --- starts ---------------------------------------------------------------------------------------


def starts(cells: list[Cell]) -> Iterable[Shown]:
    """Show what a start on a large partition of committed offsets takes."""
    head = [
        "Partition",
        "Size MB",
        "Broker answers, s",
        "Coordinator answers, s",
        "CPU s",
        "RSS MB",
    ]
    lines, below = [], []
    for cell in cells:
        for when, size_key in (("before", "size_bytes"), ("after", "size_after_bytes")):
            lines.append(
                [
                    f"{when} compaction",
                    _spread(cell.values(size_key), 3, 1e-6),
                    *(
                        _spread(cell.values(f"{when}_{key}"), digits)
                        for key, digits in (
                            ("broker_s", 2),
                            ("coordinator_s", 2),
                            ("cpu_s", 2),
                            ("rss_mb", 0),
                        )
                    ),
                ]
            )
        last = cell.rounds[-1]
        below.append(
            f"{last['commits']:,} commits, {last['records']:,} records, of which compaction leaves"
            f" {last['kept_records']:,}, in {_spread(cell.values('compacting_s'), 1)} s, by"
            f" {_spread(cell.values('compacting_cpu_s'), 1)} s of CPU with the broker's start."
            " Files are in the page cache; times are from exec."
        )
    yield Shown("starts on committed offsets", 1, head, lines, below)


def loads(cells: list[Cell]) -> Iterable[Shown]:
    """Show how long a coordinator loads a partition of committed offsets."""
    head = [
        *("Load", "Commits", "Kept", "Size MB", "Load, s"),
        *("Broker answers, s", "CPU s", "RSS MB"),
    ]
    figures = [("size_bytes", 0, 1e-6), ("load_s", 2, 1), ("broker_s", 2, 1)]
    figures += [("cpu_s", 2, 1), ("rss_mb", 0, 1)]
    lines = [
        [
            cell.row.name,
            *(f"{cell.rounds[-1][key]:,}" for key in ("commits", "kept")),
            *(_spread(cell.values(key), digits, factor) for key, digits, factor in figures),
        ]
        for cell in cells
    ]
    below = [
        "The load ends when the coordinator returns an offset, and is counted from when the broker"
        " answers. Files are in the page cache. CPU is that of the whole start."
    ]
    yield Shown("loads of a shard", 1, head, lines, below)


TABLES: dict[str, Callable[[list[Cell]], Iterable[Shown]]] = {
    COSTS: costs,
    FAST: fast,
    COPYING: copying,
    GROUPS: groups,
    REBALANCE: rebalances,
    START: starts,
    LOAD: loads,
}


def tables(cells: list[Cell]) -> list[Shown]:
    """Return the tables of what there is, in the rows' order."""
    return [
        shown
        for kind, table in TABLES.items()
        if (chosen := [cell for cell in cells if cell.row.kind == kind and cell.rounds])
        for shown in table(chosen)
    ]


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


# --- files ----------------------------------------------------------------------------------------


def as_json(cells: list[Cell], about: dict[str, Any]) -> str:
    found = [
        {"row": cell.row.name, "contestant": cell.contestant, "rounds": cell.rounds}
        for cell in cells
    ]
    return json.dumps({**about, "cells": found}, indent=1)


def cells_of(runs: list[dict[str, Any]]) -> list[Cell]:
    """Return the cells of runs as `as_json` wrote them; a later run's replace an earlier one's."""
    known = {row.name: row for row in ROWS}
    found = {
        (one["row"], one["contestant"]): Cell(known[one["row"]], one["contestant"], one["rounds"])
        for run in runs
        for one in run["cells"]
        if one["rounds"] and one["row"] in known
    }
    order = [(row.name, name) for row in ROWS for name in row.contestants]
    return [found[place] for place in order if place in found]


def page(runs: list[dict[str, Any]]) -> str:
    """Return the tables of runs in Markdown, and what they are from."""
    lines = []
    for shown in tables(cells_of(runs)):
        sides = ["---"] * shown.names + ["---:"] * (len(shown.head) - shown.names)
        lines += [f"| {' | '.join(texts)} |" for texts in (shown.head, sides, *shown.lines)]
        lines += ["", *shown.below, *([""] if shown.below else [])]
    lines += dict.fromkeys(
        f"{run['date'][:10]}, commit {run['commit'].removesuffix('-dirty')}:"
        f" {max(len(one['rounds']) for one in run['cells'])} rounds, producers for"
        f" {run['seconds']:g} s each, {run['processors']} processors."
        for run in runs
    )
    return "\n".join(lines)


def write_page(path: Path, runs: list[dict[str, Any]]) -> None:
    """Put the tables between the marks of a page. Raises ValueError where it has none."""
    put_between(path, BEGIN, END, page(runs))
