"""Tables: plain columns in a pipe or a file, and the same columns folded on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from plog.cli.tables import plain_lines, terminal_table

COLUMNS = ["Topic", "Read only", "Lag"]
ROWS = [
    ("flights", True, 12),
    ("a\nb\x1b[31m", False, None),
    ("", ["x", 1], 3),
    ("航班", "[red]", 4),
]


def test_columns_line_up_with_two_spaces_between_them() -> None:
    assert plain_lines(COLUMNS, ROWS) == [
        "TOPIC         READ ONLY  LAG",
        "flights       yes        12",
        r"a\nb\x1b[31m  no         -",
        "-             x,1        3",
        "航班          [red]      4",
    ]


def test_numbers_can_end_at_the_right() -> None:
    assert plain_lines(["name", "n"], [("a", 5), ("b", 1234)], right=[1]) == [
        "NAME     N",
        "a        5",
        "b     1234",
    ]


def test_table_without_rows_has_its_line_of_names() -> None:
    assert plain_lines(COLUMNS, []) == ["TOPIC  READ ONLY  LAG"]


@pytest.mark.parametrize("width", [80, 24])
def test_terminal_shows_the_same_columns_and_folds_them(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True).print(terminal_table(COLUMNS, ROWS))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert all(len(line) <= width for line in shown)
    if width == 80:
        assert [line.rstrip() for line in shown] == plain_lines(COLUMNS, ROWS)
    else:
        assert len(shown) > len(ROWS) + 1


def test_table_in_a_pipe_has_one_line_for_each_row(call, topic, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")  # as some shells export it
    names, *rows = call("topics", "list").stdout.decode().splitlines()
    assert names.split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert [topic, "2", "1"] in [row.split() for row in rows]
    title, names, *rows = call("topics", "describe", topic).stdout.decode().splitlines()
    assert title.startswith(f"{topic}, topic id ")
    for partition, row in enumerate(rows[:2]):
        assert row.split()[0] == str(partition)
        assert len(row.split()) == len(names.split())
