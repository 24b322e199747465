"""What `bin/demo` finds of an earlier run of its own, and misses; and how it checks its report."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from plog.storage.filesystem import Filesystem
from plog.storage.log_dir import LogDir
from tests.conftest import ROOT
from tests.servers import BrokerProcess
from tests.spark.marks import DEAR


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "spark")
    spec = importlib.util.spec_from_file_location("demo", ROOT / "spark" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    return demo


def test_broker_of_an_earlier_run_is_found_by_its_process(tmp_path: Path, demo: ModuleType) -> None:
    assert demo.running_broker(tmp_path) is None
    log_dir = LogDir(Filesystem(), tmp_path / "log")
    log_dir.open()
    assert demo.running_broker(tmp_path) == os.getpid()
    log_dir.unlock()
    assert demo.running_broker(tmp_path) is None


def test_report_is_there_without_matplotlib_and_says_why_there_is_no_plot(
    tmp_path: Path, demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = demo.flights_report.CarrierReport("AA", 200, 2, 1.5, -0.5)
    assert demo.plot([row], tmp_path / "with.png", {}) == f"Plot: {tmp_path / 'with.png'}"
    assert (tmp_path / "with.png").exists()
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    said = demo.plot([row], tmp_path / "without.png", {})
    assert said == "No plot: matplotlib is not installed (pip install matplotlib)"


def test_plot_says_whom_it_leaves_out(
    tmp_path: Path, demo: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    said: list[str] = []
    monkeypatch.setattr(Figure, "savefig", lambda own, *_, **__: said.append(own.get_supxlabel()))
    of = demo.flights_report.CarrierReport
    many, few = of("AA", 200, 2, 1.5, -0.5), of("OO", 32, 1, 12.5, 11.9)
    for rows in ([many, few], [many], [few]):  # of nobody but few, all are shown
        demo.flights_report.save_plot(rows, str(tmp_path / "plot.png"))
    assert said == ["Not shown, with fewer than 100 flights: OO", "", ""]


def test_job_that_cannot_plot_says_so_before_spark_starts(tmp_path: Path) -> None:
    job = f"""
import sys
sys.modules["matplotlib"] = sys.modules["pyspark"] = None
sys.path.insert(0, {str(ROOT / "spark")!r})
from flights_report import main
main(["--plot", {str(tmp_path / "plot.png")!r}])
"""
    ended = subprocess.run(
        [sys.executable, "-c", job], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "--plot: matplotlib is not installed" in line


def shown_table() -> set[str]:
    """Return the lines of the table in the README's report."""
    page = (ROOT / "README.md").read_text("utf-8")
    (report,) = (block for block in page.split("```") if "Delay at" in block)
    table, _, _ = report.partition("  ...\n")
    lines = {line for line in table.splitlines() if line.startswith("  ")}
    assert len(lines) == 4
    return lines


def dear(test: Callable[..., None]) -> Callable[..., None]:
    for mark in DEAR:
        test = mark(test)
    return test


@dear
def test_report_on_all_flights_is_that_of_the_csv(
    spark: Any,
    broker: BrokerProcess,
    demo: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo.create_topic(broker.bootstrap)
    events = demo.flights_events
    assert events.load(broker.bootstrap, events.TOPIC, lambda _: None) == events.FLIGHTS
    rows = demo.flights_report.report(spark, broker.bootstrap, events.TOPIC)
    expected = events.expected_report()
    monkeypatch.setattr(events, "expected_report", lambda: expected)  # it takes seconds
    demo.check(rows)
    demo.flights_report.print_table(rows, events.airlines())
    printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    assert shown_table() <= printed, "the README shows another report"
    # It would say so if a mean were another one, or a carrier were missing.
    wrong = rows[0]._replace(arrival_delay=rows[0].arrival_delay + 1e-6)
    with pytest.raises(click.ClickException, match=f"{wrong.carrier}: the report says"):
        demo.check([wrong, *rows[1:]])
    with pytest.raises(click.ClickException, match="carriers"):
        demo.check(rows[1:])
