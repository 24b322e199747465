"""The measurement of starts runs, and gives its numbers. What they are is not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "asv_bench" / "startup.py"
QUICK = ("--runs", "2", "--partitions", "7", "--idle-s", "0.1")


def run(*arguments: object) -> str:
    ended = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_number_is_measured_in_every_run(tmp_path: Path) -> None:
    results = json.loads(run(*QUICK, "--directory", tmp_path, "--json"))
    units = {result["name"]: result["unit"] for result in results}
    assert units == {
        "start, empty directory": "s",
        "start, 7 partitions, clean": "s",
        "start, 7 partitions, after kill -9": "s",
        "create 7 partitions": "s",
        "idle, RSS": "MB",
        "idle, PSS": "MB",
        "idle, 7 partitions, RSS": "MB",
        "idle, 7 partitions, PSS": "MB",
    }
    for result in results:
        assert len(result["values"]) == (1 if result["name"].startswith("create") else 2)
        assert all(value > 0 for value in result["values"])
    assert not list(tmp_path.iterdir()), "the directories are left behind"


def test_goals_stand_beside_the_numbers() -> None:
    lines = {
        line.split("│")[1].strip(): line
        for line in run(*QUICK, "--runs", "1").splitlines()
        if "│" in line
    }
    assert "0.5 s" in lines["start, empty directory"]
    assert "80 MB" in lines["idle, RSS"]


def test_help_says_what_is_measured() -> None:
    assert "first successful ApiVersions answer" in " ".join(run("--help").split())
