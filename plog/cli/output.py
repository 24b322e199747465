"""What commands share: options, and how they print (tables for people, JSON for programs)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"


def bootstrap_option(function: F) -> F:
    """Add --bootstrap-server, shared by every command that talks to a cluster."""
    return click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        default=BOOTSTRAP_DEFAULT,
        show_default=True,
        envvar="PLOG_BOOTSTRAP_SERVER",
        metavar="HOST:PORT,...",
        help="A broker of the cluster; several for when one is down.",
    )(function)


def json_option(function: F) -> F:
    """Add --json, shared by every command that prints."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(
        function
    )


def print_rows(
    rows: Iterable[Sequence[Any]],
    columns: Sequence[str],
    *,
    as_json: bool,
    title: str | None = None,
) -> None:
    """Print rows as a table, or as a JSON list of objects keyed by the columns' names."""
    if as_json:
        keys = [column.lower().replace(" ", "_") for column in columns]
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # As Text, for rich would take [square brackets] for its own.
        table.add_row(*[Text("" if cell is None else _text(cell)) for cell in row])
    # Into a pipe or a file a table is as wide as it needs to be, so that lines are rows.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else table_width(table)
    Console(width=width).print(table)


def table_width(table: Any) -> int:
    """Return how wide a rich table is when nothing is folded."""
    from rich.console import Console

    wide = Console(width=10_000)
    return max(int(wide.measure(table).maximum), 20)


def print_json(value: Any) -> None:
    """Print one JSON value."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_done(text: str, outcome: dict[str, Any], *, as_json: bool) -> None:
    """Say what a command did: a sentence, or an object."""
    if as_json:
        print_json(outcome)
    else:
        click.echo(text)


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp as ISO 8601 in UTC; "" for none, the number where no date can be told."""
    if timestamp_ms < 0:
        return ""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def data_json(data: bytes | None) -> str | dict[str, str] | None:
    """Return text where the bytes are text, {"base64": ...} where they are not."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}


def _text(cell: Any) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, list | tuple):
        return ",".join(str(entry) for entry in cell)
    return str(cell)
