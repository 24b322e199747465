r"""Transcripts of a terminal: commands that an operator typed, and the text that followed.

    # The first lines say what the transcript shows.
    # broker: log.retention.ms=1000        a setting of the broker; repeatable
    # varies: [0-9]+ms                     texts that differ from run to run; repeatable

    $ plog topics create flights
    Created topic flights.

    $ plog topics delete flights
    < y
    Delete topic flights and all its records? [y/N]: y
    Deleted topic flights.

    & plog consume flights --group readers

`$` runs a line of bash in a terminal 100 columns wide. `<` types a line into it. `&` starts a line
that runs until the transcript ends; its output is not shown. A last line `[status 1]` is the status
of a command that failed. Files stay from command to command; variables do not.

The text is real: it stands as the terminal showed it when it was recorded. A comparison ignores
differences between runs: times, ids, the width of columns, and texts that `varies` names.
`$BROKER_LOG` is the file of the broker's log lines. The
broker's ports are always shown as 9092 and 9095, the directory of the transcript as `~`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?"
ID = r"(?<![\w-])[A-Za-z0-9_-]{22}(?![\w-])"
"""A UUID in Kafka's form."""
RULE = r"[─━]+"
SPACES = r" +"


@dataclass
class Step:
    """A command line, the answers typed into it, and the text that the terminal showed."""

    command: str
    is_background: bool = False
    typed: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the transcript."""
        mark = "&" if self.is_background else "$"
        yield f"{mark} {self.command}".replace("\n", "\n  ")
        yield from (f"< {line}" for line in self.typed)
        yield from self.shown


class Transcript:
    """A transcript file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: list[str] = []
        self.steps: list[Step] = []
        for line in path.read_text().rstrip("\n").split("\n"):
            self._read(line)
        for step in self.steps:
            while step.shown and not step.shown[-1]:
                step.shown.pop()

    def _read(self, line: str) -> None:
        mark, rest = line[:2], line[2:]
        last = self.steps[-1] if self.steps else None
        if mark in ("$ ", "& "):
            self.steps.append(Step(rest, mark == "& "))
        elif last is None:
            self.head.append(line)
        elif last.command.endswith("\\") and not last.shown:
            last.command += f"\n{line.removeprefix('  ')}"
        elif mark == "< ":
            last.typed.append(rest)
        else:
            last.shown.append(line)

    def options(self, name: str) -> list[str]:
        """Return the values of the head's lines `# name: value`."""
        start = f"# {name}: "
        return [line.removeprefix(start) for line in self.head if line.startswith(start)]

    def write(self) -> None:
        """Record the steps in the file."""
        parts = ["\n".join(step.lines()) for step in self.steps]
        self.path.write_text("\n\n".join(["\n".join(self.head).rstrip(), *parts]) + "\n")

    def plain(self, lines: list[str]) -> list[str]:
        """Return lines without the texts that differ from run to run."""
        varying = [(TIME, "<time>"), (ID, "<id>"), (RULE, "─"), (SPACES, " ")]
        varying[:0] = [(pattern, "<varies>") for pattern in self.options("varies")]
        plain = []
        for line in lines:
            for pattern, name in varying:
                line = re.sub(pattern, name, line)
            plain.append(line.strip())
        return plain

    def play(self, run: Callable[[Step], list[str]], *, rewrite: bool) -> None:
        """Run each step; fail at the first that shows another text, or write that down.

        Args:
            run: runs a step and returns the lines that it showed.
        """
        for step in self.steps:
            shown = run(step)
            if self.plain(shown) == self.plain(step.shown):
                continue
            if not rewrite:
                found, expected = "\n".join(shown), "\n".join(step.shown)
                raise AssertionError(
                    f"{self.path.name}: $ {step.command}\nshowed\n\n{found}\n\ninstead of\n\n"
                    f"{expected}\n\n(read it, then run the test with --rewrite)"
                )
            step.shown = shown
        if rewrite:
            self.write()
