"""Log lines that are bounded: how many were told, and of how many the number alone."""

from __future__ import annotations

import re

import pytest

from plog.runtime.bounded_lines import AT_ONCE, Threads

MANY = AT_ONCE + 30
"""More than there is room for, while no time passes."""


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no time pass, so that no room comes back."""
    monkeypatch.setattr(Threads, "time", lambda self: 100.0)


def told(caplog: pytest.LogCaptureFixture, line: str) -> int:
    """Return how many lines there are of a kind, by a regular expression."""
    return sum(re.search(line, one.getMessage()) is not None for one in list(caplog.records))


def counted(caplog: pytest.LogCaptureFixture, rest: str) -> int:
    """Return of how many lines the number alone was told; `rest` has it in its first group."""
    texts = "\n".join(one.getMessage() for one in list(caplog.records))
    return sum(map(int, re.findall(rest, texts)))
