"""How long a broker takes until it answers, and how much memory it takes to idle.

    bin/bench-start --help

A start is timed from exec to the first successful ApiVersions answer: on an empty
directory, on one with many partitions after a clean shutdown, and on the same after
kill -9. Idle memory is read from /proc/PID/smaps_rollup: RSS, and PSS, in which pages
shared with other processes count in part. Not part of asv: it starts processes.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "plog"

GOAL_START_S = 0.5
GOAL_IDLE_MB = 80.0
ANSWER_TIMEOUT_S = 120.0
# ApiVersions v0, correlation id 1, no client id: framed, as every client sends it first.
REQUEST = struct.pack(">ihhih", 10, 18, 0, 1, -1)
RECORDS_OF_A_PARTITION = 10


class Result(NamedTuple):
    """What one measurement gave: a number for each run."""

    name: str
    unit: str
    values: list[float]
    goal: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker:
    """A broker process on one directory; `ready_s` says how long its start took."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.log = directory.with_suffix(".log")
        command = [
            *(sys.executable, "-m", "plog", "server"),
            *("--override", f"listeners=PLAINTEXT://127.0.0.1:{self.port}"),
            *("--override", f"log.dirs={directory}", "--override", "broker.id=0"),
        ]
        begun = time.perf_counter()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait()
        self.ready_s = time.perf_counter() - begun

    def _wait(self) -> None:
        deadline = time.perf_counter() + ANSWER_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.perf_counter() > deadline:
                self.kill()
                raise click.ClickException(f"the broker does not start:\n{self.log.read_text()}")
            time.sleep(0.001)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), ANSWER_TIMEOUT_S) as client:
                client.sendall(REQUEST)
                answer = client.recv(10, socket.MSG_WAITALL)
        except ConnectionRefusedError:
            return False
        if len(answer) < 10:
            return False
        _, correlation_id, error_code = struct.unpack(">iih", answer)
        if (correlation_id, error_code) != (1, 0):
            raise click.ClickException(f"not an answer to ApiVersions: {answer!r}")
        return True

    def memory_mb(self) -> tuple[float, float]:
        """Return (RSS, PSS) in MB of 10**6 bytes."""
        found = {}
        for line in Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in ("Rss", "Pss"):
                found[key] = int(rest.split()[0]) * 1024 / 1e6
        return found["Rss"], found["Pss"]

    def stop(self) -> None:
        self._process.terminate()
        if self._process.wait(60) != 0:
            raise click.ClickException(f"the broker did not stop cleanly:\n{self.log.read_text()}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running(directory: Path) -> Iterator[Broker]:
    broker = Broker(directory)
    try:
        yield broker
    finally:
        broker.kill()


def fill(directory: Path, partitions: int) -> float:
    """Make a directory with one topic of so many partitions; return how long that took, in s."""
    from plog.client.admin import Admin
    from plog.client.producer import Producer

    broker = Broker(directory)
    try:
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            begun = time.perf_counter()
            admin.create_topic("bench", partitions=partitions)
            took_s = time.perf_counter() - begun
        with Producer(f"127.0.0.1:{broker.port}", linger_ms=200) as producer:
            for number in range(partitions * RECORDS_OF_A_PARTITION):
                producer.send("bench", b"x" * 100, partition=number % partitions)
    except BaseException:
        broker.kill()
        raise
    broker.stop()
    return took_s


def measure(
    where: Path, runs: int, partitions: int, idle_s: float, console: Console
) -> list[Result]:
    starts: dict[str, list[float]] = {"empty": [], "clean": [], "killed": []}
    memory: dict[str, list[tuple[float, float]]] = {"empty": [], "full": []}
    # As an installation leaves it, also where Python may not write bytecode by itself.
    compileall.compile_dir(PACKAGE, quiet=1)
    console.print(f"[dim]making a directory with {partitions} partitions")
    full = where / "full"
    created_s = fill(full, partitions)
    for run in range(runs):
        console.print(f"[dim]run {run + 1} of {runs}")
        empty = where / f"empty{run}"
        with running(empty) as broker:
            starts["empty"].append(broker.ready_s)
            time.sleep(idle_s)
            memory["empty"].append(broker.memory_mb())
        shutil.rmtree(empty)
        with running(full) as broker:
            starts["clean"].append(broker.ready_s)
        with running(full) as broker:
            starts["killed"].append(broker.ready_s)
            time.sleep(idle_s)
            memory["full"].append(broker.memory_mb())
            broker.stop()
    many = f"{partitions} partitions"
    results = [
        Result("start, empty directory", "s", starts["empty"], GOAL_START_S),
        Result(f"start, {many}, clean", "s", starts["clean"], None),
        Result(f"start, {many}, after kill -9", "s", starts["killed"], None),
        Result(f"create {many}", "s", [created_s], None),
    ]
    for name, found, goal in (
        ("idle", memory["empty"], GOAL_IDLE_MB),
        (f"idle, {many}", memory["full"], None),
    ):
        results.append(Result(f"{name}, RSS", "MB", [rss for rss, _ in found], goal))
        results.append(Result(f"{name}, PSS", "MB", [pss for _, pss in found], goal))
    return results


def show(results: list[Result], console: Console) -> None:
    table = Table("measured", "median", "least", "most", "goal", title="plog server")
    for column in table.columns[1:]:
        column.justify = "right"
    for result in results:
        digits = 3 if result.unit == "s" else 1
        numbers = (result.median, min(result.values), max(result.values))
        table.add_row(
            result.name,
            *(f"{number:.{digits}f} {result.unit}" for number in numbers),
            "" if result.goal is None else f"{result.goal:g} {result.unit}",
        )
    console.print(table)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1))
@click.option("--partitions", default=1_000, show_default=True, type=click.IntRange(1))
@click.option(
    "--idle-s", default=10.0, show_default=True, help="Seconds before idle memory is read."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the log directories are made (and removed): the disk to be measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON instead.")
def command(
    runs: int, partitions: int, idle_s: float, directory: Path | None, as_json: bool
) -> None:
    """Measure how long `plog server` takes to answer, and what it takes to idle.

    Times are from exec to the first successful ApiVersions answer. Other work on the machine
    shows: the load is printed too.
    """
    console = Console(stderr=True, quiet=as_json)
    with tempfile.TemporaryDirectory(dir=directory, prefix="plog-start-") as made:
        results = measure(Path(made), runs, partitions, idle_s, console)
    if as_json:
        click.echo(json.dumps([result._asdict() for result in results], indent=2))
        return
    show(results, Console())
    load, _, _ = os.getloadavg()
    click.echo(f"{runs} runs, {os.cpu_count()} processors, load {load:.1f}")


if __name__ == "__main__":
    command()
