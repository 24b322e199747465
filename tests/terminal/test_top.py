"""`plog top` on a terminal: the table of the groups with the largest lag."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.ops.test_watch import BUILD, LAGS, page
from tests.terminal.terminal import Terminal


def screen_of(text: str, directory: Path) -> list[str]:
    """Return the lines of a terminal of 80 columns and 24 lines after one reading."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("COLUMNS", None)
    with page(BUILD + text) as address:
        line = f"{sys.executable} -m plog top --metrics {address} --every 0.1 --count 1"
        terminal = Terminal(line, directory, environment, columns=80, lines=24)
        try:
            assert terminal.wait() == 0
        finally:
            terminal.close()
    return terminal.text.splitlines()


def test_groups_with_the_largest_lag_are_on_the_screen(tmp_path: Path) -> None:
    screen = screen_of(LAGS, tmp_path)
    assert [row.split() for row in screen[-4:]] == [
        ["GROUP", "LAG", "BEHIND"],
        ["slow", "1,200,034", "2h"],
        ["new", "7", "0"],
        ["fast", "0", "0"],
    ]


def test_many_topics_and_long_names_leave_room_for_the_groups(tmp_path: Path) -> None:
    """The tables share the lines, and a long name ends in an ellipsis."""
    name = "connect-warehouse-" + "x" * 200
    text = "".join(
        f'plog_log_bytes{{topic="topic{number}",log_dir="/d"}} {number}\n' for number in range(10)
    )
    text += f'plog_group_lag_records{{group="{name}",topic="t"}} 900\n'
    text += "".join(
        f'plog_group_lag_records{{group="g{number}",topic="t"}} {number}\n' for number in range(9)
    )
    screen = screen_of(text, tmp_path)
    assert len(screen) <= 24
    assert screen[0].startswith("plog at ")
    rows = [line.split() for line in screen]
    assert sum(row[:1] != [] and row[0].startswith("topic") for row in rows) >= 4
    groups = rows[rows.index(["GROUP", "LAG", "BEHIND"]) + 1 :]
    assert [groups[0][0][:18], groups[0][0][-1], *groups[0][1:]] == [name[:18], "…", "900", "0"]
    assert [row[0] for row in groups[1:4]] == ["g8", "g7", "g6"]
    assert all(len(row) == 3 for row in groups)
