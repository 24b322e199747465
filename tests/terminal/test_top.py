"""`plog top` on a terminal: the table of the groups with the largest lag."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.ops.test_watch import BUILD, LAGS, page
from tests.terminal.terminal import Terminal


def test_groups_with_the_largest_lag_are_on_the_screen(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("COLUMNS", None)
    with page(BUILD + LAGS) as address:
        line = f"{sys.executable} -m plog top --metrics {address} --every 0.1 --count 1"
        terminal = Terminal(line, tmp_path, environment)
        try:
            assert terminal.wait() == 0
        finally:
            terminal.close()
    screen = terminal.text.splitlines()
    assert [row.split() for row in screen[-4:]] == [
        ["GROUP", "LAG", "BEHIND"],
        ["slow", "1,200,034", "2h"],
        ["new", "7", "0"],
        ["fast", "0", "0"],
    ]
