"""The workers of a run as processes: started, replaced when their clients give up, and ended."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.checker.history import Crash, HistoryWriter
from tests.waiting import until

from .calls import Calls, read_calls
from .load import INPUT, OUTPUT

PATIENCE_S = 60.0
MOST_REPLACED = 12
"""More workers than this are no accident, if faults are few."""


@dataclass(frozen=True)
class Job:
    """What a worker is to do, and its successors after it."""

    role: str
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.role}-{self.settings.get('client', 'rd')}"


class Worker:
    """A process; `name` is its own in the history."""

    def __init__(self, job: Job, directory: Path, common: dict[str, object], number: int) -> None:
        self.job, self.name, self.directory = job, f"{job.title}-{number}", directory
        settings = {**common, **job.settings, "name": self.name, "number": number}
        command = [sys.executable, "-m", "tests.cluster.faults.load", job.role]
        with (directory / f"{self.name}.log").open("ab") as stderr:
            self._process = subprocess.Popen(
                [*command, json.dumps({**settings, "directory": str(directory)})],
                stdin=subprocess.PIPE,
                stderr=stderr,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def calls(self) -> Calls:
        path = self.directory / f"{self.name}.calls"
        return read_calls(path) if path.exists() else Calls([], {}, 0)

    @property
    def log(self) -> str:
        return (self.directory / f"{self.name}.log").read_text()

    def leave(self) -> None:
        """Ask it to end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Workers:
    """All workers of a run."""

    def __init__(self, directory: Path, bootstrap: str, partitions: int, seed: int) -> None:
        self.directory = directory
        directory.mkdir()
        self._common: dict[str, object] = {
            "bootstrap": bootstrap,
            "partitions": partitions,
            "seed": seed,
        }
        self._numbers = itertools.count(1)
        self._deaths = HistoryWriter(directory / "deaths.jsonl")
        self.running: list[Worker] = []
        self.ended: list[Worker] = []
        self.replaced: list[str] = []
        self.most_replaced = MOST_REPLACED

    def start(self, *jobs: Job) -> None:
        for job in jobs:
            self.running.append(self._worker(job))

    def _worker(self, job: Job) -> Worker:
        return Worker(job, self.directory, self._common, next(self._numbers))

    def replace_dead(self) -> None:
        """Start a successor for each worker whose client gave up."""
        for at, worker in enumerate(self.running):
            if not worker.is_alive:
                self._deaths.write(Crash(worker.name))
                self.ended.append(worker)
                self.replaced.append(worker.name)
                assert len(self.replaced) < self.most_replaced, worker.log
                self.running[at] = self._worker(worker.job)

    def until_progress(self, since_ns: int, within_s: float = PATIENCE_S) -> None:
        """Wait until each has had its effect since a time."""

        def late() -> list[str]:
            self.replace_dead()
            return [one.name for one in self.running if one.calls.last_progress < since_ns]

        end = time.monotonic() + within_s
        while names := late():
            assert time.monotonic() < end, f"no progress in {within_s:.1f} s: {names}"
            time.sleep(0.05)

    def leave(self) -> None:
        """Have all end by themselves."""
        for one in self.running:
            one.leave()
        for one in self.running:
            until(lambda one=one: not one.is_alive, f"{one.name} ended", PATIENCE_S)
        self.ended += self.running
        self.running = []

    def read_finally(self) -> None:
        """Have everything read from its start to its end, when all writers have ended."""
        started = []
        for topic in (INPUT, OUTPUT):
            name = f"final-{topic}"
            settings = {
                **self._common,
                "topic": topic,
                "name": name,
                "history": str(self.directory / f"{name}.jsonl"),
            }
            command = [sys.executable, "-m", "tests.checker.workload", "final"]
            started.append(
                subprocess.Popen([*command, json.dumps(settings)], stdin=subprocess.DEVNULL)
            )
        try:
            for one in started:
                assert one.wait(PATIENCE_S) == 0
        finally:
            for one in started:
                one.kill()
                one.wait()

    def kill(self) -> None:
        """End the workers that are left."""
        for one in self.running:
            one.kill()
