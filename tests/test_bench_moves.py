"""The measurement of leader changes runs, and gives its numbers. No size is judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "asv_bench"))

from bench_moves import BEGIN, END

SCRIPT = Path(__file__).resolve().parent.parent / "asv_bench" / "bench_moves.py"
TIMEOUT_S = 280


def run(*arguments: object) -> str:
    ended = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "COLUMNS": "160"},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_number_is_measured_and_written_into_the_page(tmp_path: Path) -> None:
    page, directory = tmp_path / "page.md", tmp_path / "made"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    directory.mkdir()
    quick = ("--rounds", 1, "--session-ms", 4_000, "--directory", directory)
    results = json.loads(run(*quick, "--json", "--docs", page))
    found = {one["key"]: one["values"] for one in results}
    assert found.keys() == {"killed", "controller_killed", "stall", "errors", "restart"}
    assert found.pop("errors") == [0], "a producer that retries sees no error"
    assert all(value > 0 for (value,) in found.values())
    assert not list(directory.iterdir()), "the directories are left behind"
    lines = [line for line in page.read_text().splitlines() if line]
    assert (lines[:2], lines[-2:]) == (["before", BEGIN], [END, "after"])
    assert len([line for line in lines if line.startswith("|")]) == 2 + len(results)


def test_help_says_what_is_measured() -> None:
    assert "from kill -9 until other brokers have acknowledged" in " ".join(run("--help").split())
