"""`bin/chaos` as a command: a run that is well, an anomaly, and an interrupted run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.waiting import until

from . import chaos
from .chaos import Run, main
from .network import NAMESPACES

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Return a runner of the command with rounds in which nothing happens."""
    monkeypatch.setattr(chaos.os, "geteuid", lambda: 0)
    monkeypatch.setattr(chaos.shutil, "which", lambda _: "/sbin/it")
    monkeypatch.setattr(Run, "_round", lambda *_: None)
    return CliRunner()


def test_run_that_is_well_leaves_nothing(runner: CliRunner, tmp_path: Path) -> None:
    place = tmp_path / "kept"
    done = runner.invoke(main, ["--minutes", "0", "--seed", "7", "--directory", str(place)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"seed 7, 0 minutes, in {place}\n")
    assert "1 round, 0 strikes" in done.stdout
    assert not place.exists()


def test_anomaly_is_printed_and_kept(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: Run, directory: Path, _seed: int) -> None:
        if self.rounds == 2:
            (directory / "history").touch()
            self.begun.append("kill: a leader (broker 1)")
            raise AssertionError("7 was acknowledged, and is lost")

    monkeypatch.setattr(Run, "_round", lose)
    place = tmp_path / "kept"
    done = runner.invoke(main, ["--minutes", "1", "--seed", "7", "--directory", str(place)])
    assert done.exit_code == 1, done.output
    for text in (
        "ANOMALY in round 2, seed 8",
        "kill: a leader (broker 1)",
        "7 was acknowledged, and is lost",
        f"are in {place}",
        "`bin/chaos --seed 8` begins with",
    ):
        assert text in done.stderr
    assert [path.name for path in place.iterdir()] == ["round2"]
    assert (place / "round2" / "history").exists()


def test_help_names_the_command() -> None:
    command = [sys.executable, "-m", "tests.cluster.faults.chaos", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("Usage: bin/chaos [OPTIONS]")


def test_directory_in_use_is_refused(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    done = runner.invoke(main, ["--directory", str(tmp_path)])
    assert done.exit_code == 2
    assert "is not empty" in done.output


def test_without_root_is_refused(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos.os, "geteuid", lambda: 1000)
    done = runner.invoke(main, [])
    assert done.exit_code == 2
    assert "needs root" in done.output


def processes_in(directory: Path) -> Iterator[int]:
    """Yield the processes whose command lines name a directory."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(directory).encode() in path.read_bytes():
                yield int(path.parent.name)
        except OSError:  # it has ended
            continue


@root_only
@pytest.mark.timeout(120)
def test_interrupt_ends_all_processes(tmp_path: Path) -> None:
    place = tmp_path / "kept"
    command = [sys.executable, "-m", "tests.cluster.faults.chaos", "--seed", "7"]
    process = subprocess.Popen(
        [*command, "--directory", str(place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until((place / "round1" / "histories" / "asker-plog-6.jsonl").exists, "the load runs")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert f"is in {place}" in said
    assert list(processes_in(place)) == []
    assert not list(NAMESPACES.glob(f"plog-{process.pid}-*"))
