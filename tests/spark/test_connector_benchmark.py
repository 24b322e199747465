"""The benchmark beside Spark's own connector works; what it measures here says nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.spark import connector_queries as queries
from tests.spark.connector_queries import Connector
from tests.spark.submitted import ROOT

sys.path.insert(0, str(ROOT / "asv_bench"))

from spark_connector_loads import SparkTime, values
from spark_connector_report import BEGIN, END, Cell, judged, page, write_page
from spark_connector_rows import (
    AT_LEAST_ONCE,
    COUNT,
    EXACTLY_ONCE,
    KAFKA,
    KAFKA_TUNED,
    PLOG,
    READ,
    SINKS,
    SOURCES,
    Row,
    rows,
)

PAGE = ROOT / "docs" / "BENCHMARKS.md"
ONLY = ["read/100B/JSON", "partitions/*", "sink/1000B/page cache", "micro-batches/sink/disk"]


@pytest.mark.spark
def test_every_way_has_its_figures(connector: Connector, tmp_path: Path) -> None:
    figures, copied = tmp_path / "figures.json", tmp_path / "page.md"
    copied.write_text(PAGE.read_text("utf-8"), "utf-8")
    connector(
        queries.benchmark, "--rows", "8000", "--rounds", "1", "--warm-ups", "0",
        "--batches", "2", "--partitions", "2", "--json", str(figures), "--docs", str(copied),
        *(word for one in ONLY for word in ("--only", one)),
    )  # fmt: skip
    told = json.loads(figures.read_text())
    assert [(one["row"], one["way"]) for one in told["cells"]] == [
        *(("read/100B/JSON", name) for name in (KAFKA, PLOG)),
        *(("partitions/2", name) for name in (KAFKA, PLOG)),
        *(
            ("sink/1000B/page cache", name)
            for name in (KAFKA, KAFKA_TUNED, EXACTLY_ONCE, AT_LEAST_ONCE)
        ),
        *(("micro-batches/sink/disk", name) for name in (KAFKA, EXACTLY_ONCE, AT_LEAST_ONCE)),
    ]
    for (one,) in (cell["rounds"] for cell in told["cells"]):
        assert min(one[key] for key in ("rows_per_s", "mb_per_s", "cpu_us", "broker_cpu_us")) > 0
        assert one["requests"]["Metadata"] > 0
    for (one,) in (cell["rounds"] for cell in told["cells"][-3:]):
        assert one["batches"] == 2
        assert one["p95_ms"] >= one["p50_ms"] > 0
    text = copied.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    for cell in told["cells"]:
        assert cell["way"] in text
    assert "commit" in text


BUSY = """
import sys, time
while time.process_time() < 0.3:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def test_time_of_a_worker_stays_when_it_ends() -> None:
    # This process may have other children, which do something meanwhile, or end.
    there = [child.pid for child in psutil.Process().children(recursive=True)]
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        everything, others = SparkTime(there), SparkTime([*there, worker.pid])
        worker.stdout.readline()
        without = others.read()
        seen = everything.read()
        assert seen - without > 0.25
    assert worker.returncode == 0
    assert everything.read() >= seen


def cell(row: Row, way: str, *rates: float) -> Cell:
    figures = {"mb_per_s": 1, "cpu_us": 1, "broker_cpu_us": 1, "requests": {}, "foreign_cores": 0}
    return Cell(row, way, [{**figures, "rows_per_s": rate} for rate in rates])


@pytest.mark.parametrize(("ours", "met"), [([16, 30, 31], "yes"), ([10, 29, 90], "no")])
def test_goal_is_met_by_the_median_of_the_rounds_ratios(ours: list[float], met: str) -> None:
    row = Row("read/100B/count", READ, SOURCES, COUNT)
    both = [cell(row, KAFKA, 10, 20, 20), cell(row, PLOG, *ours)]
    assert judged(both, both[0]) == ("", "")
    assert judged(both, both[1]) == (">= 1.5", met)
    assert judged(both[1:], both[1]) == ("", "")


def test_page_has_the_rows_in_their_order_and_keeps_the_rest(tmp_path: Path) -> None:
    (sink,) = (row for row in rows() if row.name == "sink/100B/disk")
    cells = [cell(sink, way.name, 10, 20) for way in reversed(SINKS)]
    run = {
        "cells": [{"row": one.row.name, "way": one.way, "rounds": one.rounds} for one in cells],
        "date": "2026-01-02T03:04:05", "commit": "abc-dirty", "warm_ups": 1, "rows": 1000,
        "partitions": [1], "cores": 2, "processors": 2, "spark": "4", "connector": "4",
        "load_before": [0, 0, 0],
    }  # fmt: skip
    lines = [line for line in page(run).splitlines() if line.startswith("| sink")]
    assert [line.split(" | ")[1] for line in lines] == [way.name for way in SINKS]
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    write_page(path, run)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "2026-01-02, commit abc: 2 rounds after 1 to warm up" in text


def test_values_are_json_of_one_length() -> None:
    for size in (100, 1000):
        found = values(size, 10_000)
        assert {len(one) for one in found} == {size}
        assert all(json.loads(one)["page"] for one in found)
