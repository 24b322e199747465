"""The measurement of replicas runs, and gives its numbers. Their sizes are not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "asv_bench"))

from bench_replicas import BEGIN, END

SCRIPT = Path(__file__).resolve().parent.parent / "asv_bench" / "bench_replicas.py"
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


@pytest.mark.parametrize(
    ("options", "contestants"),
    [
        (["--no-kafka"], ["plog", "plog, no flush"]),
        pytest.param([], ["plog", "plog, no flush", "Kafka 3.9"], marks=pytest.mark.long),
    ],
)
def test_every_number_is_measured_and_written_into_the_page(
    tmp_path: Path, options: list[str], contestants: list[str]
) -> None:
    page, directory = tmp_path / "page.md", tmp_path / "made"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    directory.mkdir()
    quick = ("--rounds", 1, "--seconds", 0.2, "--directory", directory)
    results = json.loads(run(*quick, *options, "--json", "--docs", page))
    rows = [(one["contestant"], one["replicas"], one["acks"]) for one in results]
    assert rows == [
        (name, n, acks) for acks in ("1", "all") for n in (1, 3) for name in contestants
    ]
    for result in results:
        (figures,) = result["rounds"]
        assert figures.keys() == {"mb_per_s", "cpu_s_per_gb", "p99_ms"}
        # On a busy host nothing may be acknowledged within its time, and all of it after.
        assert figures["mb_per_s"] >= 0
        assert figures["p99_ms"] >= 0
        assert figures["cpu_s_per_gb"] > 0
    assert not list(directory.iterdir()), "the directories are left behind"
    before, *table, about, end, after = filter(None, page.read_text().splitlines())
    assert (before, table.pop(0), end, after) == ("before", BEGIN, END, "after")
    assert len(table[2:]) == len(rows)
    assert "1 rounds of 0.2 s" in about


def test_help_says_what_is_measured() -> None:
    assert "until all replicas have all records" in " ".join(run("--help").split())
