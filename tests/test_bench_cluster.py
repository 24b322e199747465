"""The measurement of a cluster runs, and gives its numbers. What they are is not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "asv_bench"))

from bench_cluster import BEGIN, END, Result, Row

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "asv_bench" / "bench_cluster.py"
QUICK = (
    *("--rounds", "1", "--partitions", "20", "--topics", "3"),
    *("--idle-s", "0.1", "--session-ms", "4000"),
)


def run(*arguments: object, status: int = 0) -> str:
    ended = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env={**os.environ, "COLUMNS": "160"},
    )
    assert ended.returncode == status, ended.stderr
    return ended.stdout if status == 0 else ended.stderr


def test_every_number_is_measured_and_written_into_the_page(tmp_path: Path) -> None:
    page, directory = tmp_path / "page.md", tmp_path / "made"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    directory.mkdir()
    results = json.loads(run(*QUICK, "--directory", directory, "--json", "--docs", page))
    bars = {result["name"]: result["bar"] for result in results}
    assert bars == {
        "alone: ready": 1.0,
        "alone: idle, RSS": 80.0,
        "alone: idle, processor": 1.0,
        "one of three: ready, the others running": 1.0,
        "three at once: the last one ready": None,
        "one of three: idle, RSS": 90.0,
        "one of three: idle, processor": 1.0,
        "one of three: idle, wake-ups": None,
        "a process that only sleeps, 5 wake-ups/s": None,
        "one of three: idle with 20 partitions, RSS": None,
        "one of three: idle with 20 partitions, processor": None,
        "3 topics x 3 partitions: one request": 3.0,
        "3 topics x 3 partitions: 3 requests": 3.0,
        "first answer after kill -9, 18 partitions": 2.5,
        "first answer after kill -9, 20 partitions": 2.5,
        "controller failover, 20 partitions": 7.0,
    }
    for result in results:
        (value,) = result["values"]
        assert value >= 0
        assert value > 0 or result["unit"] in ("%", "/s")
    assert not list(directory.iterdir()), "the directories are left behind"
    before, *table, about, end, after = filter(None, page.read_text().splitlines())
    assert (before, table.pop(0), end, after) == ("before", BEGIN, END, "after")
    assert [line.split(" | ")[0] for line in table[2:]] == [f"| {name}" for name in bars]
    assert "1 rounds, sessions of 4 s" in about


@pytest.mark.parametrize(
    ("values", "bar", "ratio", "verdict"),
    [
        ([1.0, 2.0, 9.0], 2.0, "1.00", "passed"),
        ([1.0, 2.1, 2.2], 2.0, "1.05", "missed"),
        ([1.0], None, "", ""),
    ],
)
def test_median_is_held_against_the_bar(
    values: list[float], bar: float | None, ratio: str, verdict: str
) -> None:
    texts = Result(Row("key", "name", "s", bar), values).texts()
    assert texts[-2:] == [ratio, verdict]


def test_partitions_that_the_topics_exceed_are_refused() -> None:
    assert "--partitions must be above 600" in run("--partitions", "600", status=2)


def test_help_says_what_is_measured() -> None:
    assert "until the broker acknowledges a record" in " ".join(run("--help").split())
