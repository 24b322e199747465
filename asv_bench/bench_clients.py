"""Clients as processes that are told what to do, line by line: Java's, and plog's own.

Owns the processes and what is said to them (tests/compat/java/Load.java and bench_own_client.py
answer). A process lives as long as the benchmark, since a JVM takes a while to be warm.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from plog.ops.load import LoadError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.compat.programs import JAVA, SHORT_RUN

OWN_CLIENT = Path(__file__).with_name("bench_own_client.py")
PATIENCE_S = 120.0
"""What a client may take beyond the seconds that it was asked for."""


class Client:
    """A process, and what it is told. What it writes to stderr goes into a file."""

    def __init__(self, command: list[str], errors: Path) -> None:
        self._errors = errors
        self._said = b""
        with errors.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, what: str, options: dict[str, object]) -> None:
        """Have it prepare something, and wait until it is ready."""
        self._tell(" ".join([what, *(f"{key}={value}" for key, value in options.items())]))
        self._expect("ready")

    def go(self) -> None:
        """Have it do what it is ready for, or stop what it does."""
        self._tell("go")

    def result(self, seconds: float = 0) -> dict[str, Any]:
        """Return what it did, at least so many seconds later."""
        found: dict[str, Any] = json.loads(self._hear(seconds + PATIENCE_S))
        return found

    def closed(self) -> None:
        """Wait until it has closed its connections."""
        self._expect("closed")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failed() from None

    def _expect(self, wanted: str) -> None:
        if (line := self._hear(PATIENCE_S)) != wanted:
            raise LoadError(f"a client says {line!r}, not {wanted!r}")

    def _hear(self, timeout_s: float) -> str:
        assert self._process.stdout is not None
        readable = select.poll()
        readable.register(self._process.stdout, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._said:
            if not readable.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise LoadError(f"a client says nothing for {timeout_s:.0f} s")
            more = os.read(self._process.stdout.fileno(), 65_536)
            if not more:
                raise self._failed()
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return line.decode()

    def _failed(self) -> LoadError:
        self.end()
        return LoadError(f"a client ended:\n{self._errors.read_text()[-2000:]}")

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()


class Clients:
    """The clients of a run, each started when it is first wanted.

    Args:
        where: a directory for what they complain of.
        quick: whether their JVMs start sooner, and are slower later.
    """

    def __init__(self, where: Path, *, quick: bool = False) -> None:
        self._where = where
        self.flags: Sequence[str] = SHORT_RUN if quick else ()
        """Of their JVMs."""
        self._started: dict[str, Client] = {}

    def of(self, kind: str, role: str = "producer") -> Client:
        """Return the client of a kind, "java" or "plog"; another one for each role."""
        name = f"{kind}-{role}"
        if name not in self._started:
            command = _java(self.flags) if kind == "java" else [sys.executable, str(OWN_CLIENT)]
            self._started[name] = Client(command, self._where / f"{name}.log")
        return self._started[name]

    def forget(self) -> None:
        """End all of them: one that has failed may still be at it."""
        for client in self._started.values():
            client.end()
        self._started.clear()

    def __enter__(self) -> Clients:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.forget()


def _java(flags: Sequence[str]) -> list[str]:
    """Return what starts the newest of Java's clients; Maven builds it the first time."""
    newest = JAVA[-1]
    try:
        return newest.load_command(newest.built(), flags)
    except pytest.skip.Exception as unavailable:
        raise LoadError(str(unavailable)) from None
