"""The benchmark of the source works; what it measures here says nothing."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT


@pytest.mark.spark
def test_benchmark_prints_rates_and_a_ratio(workers_find_plog):
    run = subprocess.run(
        [sys.executable, str(ROOT / "asv_bench" / "spark_source.py"), "--rows", "2000",
         "--runs", "1", "--warm-ups", "0", "--driver-memory", "1g"],
        env=workers_find_plog | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    for size in (100, 1000):
        for name in ("Arrow", "tuples"):
            assert re.search(rf"^ +{size} B  {name} +[\d.]+ M rows/s +\d+ MB/s", run.stdout, re.M)
        assert re.search(rf"^ +{size} B  ratio +[\d.]+ by rate", run.stdout, re.M)
