"""Who is measured when by bin/bench: rounds, in which contestants take turns.

Each starts anew for each row, but for Kafkas: one of them starts, warms up, and has its
turn in all of its rows, at the end of a round.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench_kafka import Kind
from bench_measure import measure, measure_kafka, start_kafka
from bench_report import Cell
from rich.console import Console

from plog.errors import PlogError
from plog.ops.load import LoadError


class Rounds:
    """The rounds of one run of bin/bench; what fails is noted, and the rest goes on.

    Args:
        on_figures: told whenever a cell has more of them.
    """

    def __init__(
        self,
        where: Path,
        cells: list[Cell],
        *,
        seconds: float,
        warmup_s: float,
        progress: Console,
        on_figures: Callable[[], None],
    ) -> None:
        self._where = where
        self._cells = cells
        self._seconds, self._warmup_s = seconds, warmup_s
        self._progress = progress
        self._on_figures = on_figures
        self.failures: list[str] = []

    def run(self, rounds: int, kafkas: Sequence[Kind], kafka_rounds: int) -> None:
        names = {kind.name for kind in kafkas}
        others = [cell for cell in self._cells if cell.contestant not in names]
        for number in range(1, max(rounds, kafka_rounds) + 1):
            if number <= rounds:
                for cell in others:
                    self._measure(cell, number)
            if number <= kafka_rounds:
                for kind in kafkas:
                    self._measure_kafka(kind, number)

    def _measure(self, cell: Cell, number: int) -> None:
        with self._noted(cell, number):
            figures = measure(self._where, cell.row, cell.contestant, self._seconds, self._warmup_s)
            cell.rounds.append(figures)

    def _measure_kafka(self, kind: Kind, number: int) -> None:
        cells = [cell for cell in self._cells if cell.contestant == kind.name]
        if not cells:
            return
        self._progress.print(f"[dim]round {number}: {kind.name} starts and warms up")
        directory = Path(tempfile.mkdtemp(dir=self._where, prefix="kafka-"))
        try:
            begun = time.monotonic()
            kafka = start_kafka(self._where, directory, kind)
            self._progress.print(f"[dim]it is warm after {time.monotonic() - begun:.0f} s")
            try:
                for cell in cells:
                    if not kafka.is_running:
                        raise LoadError(f"it ended by itself:\n{kafka.log.read_text()}")
                    with self._noted(cell, number):
                        figures = measure_kafka(self._where, cell.row, kafka, self._seconds)
                        cell.rounds.append(figures)
                kafka.stop()
            finally:
                kafka.kill()
        except PlogError as error:
            self._note(f"{kind.name}: {error}")
        finally:
            shutil.rmtree(directory)

    @contextmanager
    def _noted(self, cell: Cell, number: int) -> Iterator[None]:
        """Say what is measured, and note its failure."""
        self._progress.print(f"[dim]round {number}: {cell.row.name}, {cell.contestant}")
        try:
            yield
        except PlogError as error:
            self._note(f"{cell.row.name}, {cell.contestant}: {error}")
        else:
            self._on_figures()

    def _note(self, failure: str) -> None:
        self.failures.append(failure)
        self._progress.print(f"[red]{failure}")
