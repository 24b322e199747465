"""The result of one check of `plog doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

MB = 1 << 20
FREE_SHARE = 0.1
"""The part of a disk that should be free."""


class Verdict(Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    """The broker would not start, would leave partitions offline, or could lose records."""


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    verdict: Verdict
    text: str
    advice: str = ""
    commands: Sequence[str] = ()
    """Shell commands for root."""


Findings = Iterator[Finding]


def graded(
    what: str, is_ok: bool, text: str, advice: str, verdict: Verdict = Verdict.WARNING
) -> Finding:
    """Return a finding that has the advice and the verdict only if something is wrong."""
    return Finding(what, Verdict.OK, text) if is_ok else Finding(what, verdict, text, advice)


def graded_space(what: str, which: str, free_bytes: int, total_bytes: int) -> Finding:
    """Return a finding about the space of a disk, whose text begins with `which`."""
    text = f"{which} {free_bytes // MB:,} MB of {total_bytes // MB:,} MB free"
    advice = "a full disk refuses records: lower retention.bytes or retention.ms"
    return graded(what, free_bytes >= FREE_SHARE * total_bytes, text, advice)
