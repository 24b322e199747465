"""The benchmark of the source works; what it measures here says nothing."""

from __future__ import annotations

import os
import re
import runpy
import sys

import pytest

from tests.spark.activity_jobs import share
from tests.spark.submitted import ROOT


@pytest.mark.spark
def test_benchmark_prints_rates_and_a_ratio(spark, monkeypatch, capsys):
    script = str(ROOT / "asv_bench" / "spark_source.py")
    share(spark, monkeypatch)
    monkeypatch.setattr(
        sys, "argv", [script, *["--rows", "2000", "--runs", "1", "--warm-ups", "0"]]
    )
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"])  # which it changes
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        with pytest.raises(SystemExit) as end:
            runpy.run_path(script, run_name="__main__")
    finally:
        spark.sparkContext.setLogLevel("OFF")
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
    assert not end.value.code
    said = capsys.readouterr().out
    for size in (100, 1000):
        for name in ("Arrow", "tuples"):
            assert re.search(rf"^ +{size} B  {name} +[\d.]+ M rows/s +\d+ MB/s", said, re.M)
        assert re.search(rf"^ +{size} B  ratio +[\d.]+ by rate", said, re.M)
