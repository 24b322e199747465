"""Every call that a client made, how long it was allowed to take, and how it ended.

A worker writes a line when a call begins and one when it ends. A call that hangs has no
second line.
Commits of a group's offsets stand in the same file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plog.types import TopicPartition

NS_PER_S = 1e9
DONE = "done"
GIVEN_UP = "given up"


@dataclass
class Call:
    """A call; without `ended_at` it hangs."""

    worker: str
    name: str
    began_at: int
    allowed_s: float
    ended_at: int | None = None
    outcome: str = ""

    @property
    def took_s(self) -> float:
        """How long it took, or has taken up to now."""
        return ((self.ended_at or time.monotonic_ns()) - self.began_at) / NS_PER_S

    def __str__(self) -> str:
        end = self.outcome if self.ended_at else "no end"
        return f"{self.worker}: {self.name} took {self.took_s:.1f} s of {self.allowed_s:g} s: {end}"


class CallWriter:
    """Writes a file of calls."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("x")
        self._count = 0

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    @contextmanager
    def call(self, name: str, allowed_s: float) -> Iterator[None]:
        """Write down the call that the block makes."""
        self._count += 1
        number = self._count
        began = time.monotonic_ns()
        self._write({"begin": number, "name": name, "at": began, "allowed_s": allowed_s})
        outcome = DONE
        try:
            yield
        except BaseException as fault:
            outcome = repr(fault)
            raise
        finally:
            self._write({"end": number, "at": time.monotonic_ns(), "outcome": outcome})

    def give_up(self) -> None:
        """Write down that the call in hand will not end, and that its worker ends instead."""
        at = time.monotonic_ns()
        self._write({"end": self._count, "at": at, "outcome": GIVEN_UP})

    def progress(self) -> None:
        """Write down that the worker has just had its main effect."""
        self._write({"progress": time.monotonic_ns()})

    def committed(self, offsets: dict[TopicPartition, int]) -> None:
        """Write down that the coordinator confirmed these offsets."""
        self._write({"committed": {str(at): offset for at, offset in offsets.items()}})


@dataclass
class Calls:
    """What one file has."""

    calls: list[Call]
    committed: dict[str, int]
    """The highest offset that was confirmed for each partition."""
    last_progress: int


def read_calls(path: Path) -> Calls:
    """Read a file, which may be written to at the same time."""
    calls: dict[int, Call] = {}
    committed: dict[str, int] = {}
    last_progress = 0
    for line in path.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        if "begin" in entry:
            calls[entry["begin"]] = Call(path.stem, entry["name"], entry["at"], entry["allowed_s"])
        elif "end" in entry:
            call = calls[entry["end"]]
            call.ended_at, call.outcome = entry["at"], entry["outcome"]
        elif "progress" in entry:
            last_progress = entry["progress"]
        else:
            for at, offset in entry["committed"].items():
                committed[at] = max(committed.get(at, 0), offset)
    return Calls(list(calls.values()), committed, last_progress)
