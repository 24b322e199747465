"""A process that drives Spark, started and killed with everything below it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

PATIENCE_S = 180


class Driver:
    """A process that drives Spark, with all that it has started.

    Args:
        arguments: what Python runs, and its arguments.
        takes_orders: whether it reads lines from its stdin (see `order`).
    """

    def __init__(
        self,
        directory: Path,
        environment: dict[str, str],
        *arguments: str,
        takes_orders: bool = False,
    ) -> None:
        self._log = directory / "driver.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                stdin=subprocess.PIPE if takes_orders else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._begun = self.log.count("batch ")

    def order(self, *words: str) -> None:
        """Write a line of words to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{' '.join(words)}\n".encode())
        self._process.stdin.flush()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def has_written(self) -> bool:
        """Whether it has finished a batch."""
        return self.log.count("batch ") > self._begun

    def ended_well(self) -> bool:
        """Wait for its end; tell whether it has done all it was to do."""
        return self._process.wait(PATIENCE_S) == 0

    def workers(self) -> list[psutil.Process]:
        """Return the Python processes that run tasks."""
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any(word in ("pyspark.daemon", "pyspark.worker") for word in one.cmdline()):
                        found.append(one)
        return found

    def kill(self) -> None:
        """Kill it and all that it has started, at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for one in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self._process.wait()
