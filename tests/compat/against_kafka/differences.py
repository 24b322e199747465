"""The differences from a Kafka that docs/SKIPPED.md lists, and the holding of a case to them.

The page is the one list: what a case finds must be there, and what is there must be found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from tests.compat.against_kafka.compare import Difference
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "SKIPPED.md"
FROM_3_9, FROM_4_1 = "## Differences from Kafka 3.9", "## Differences from Kafka 4.1"
FROM_4_4 = "## Differences from Kafka 4.4"
"""Headings of the sections; one without differences is missing."""


class Listed(NamedTuple):
    """A row of the page; `*` stands for anything."""

    case: str
    path: str
    kafka: str
    plog: str

    def covers(self, found: Difference) -> bool:
        return all(
            like(text, pattern)
            for text, pattern in zip(found, (self.path, self.kafka, self.plog), strict=True)
        )


def like(text: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text) is not None


@cache
def listed(heading: str) -> list[Listed]:
    """Return the rows of a section's tables."""
    _, _, section = PAGE.read_text("utf-8").partition(f"\n{heading}\n")
    section = section.partition("\n## ")[0]
    rows = []
    for line in section.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            rows.append(Listed(*cells))
    return rows


def unlisted(heading: str, case: str, observed: Iterable[Difference]) -> list[str]:
    """Return what is observed and not listed, as rows of the page."""
    rows = rows_of(heading, case)
    return [
        f"not listed: | `{case}` | `{found.path}` | `{found.kafka}` | `{found.plog}` |"
        for found in sorted(observed)
        if not any(row.covers(found) for row in rows)
    ]


def no_more(heading: str, case: str, observed: Iterable[Difference]) -> list[str]:
    """Return what is listed and not observed."""
    return [
        f"listed, but not so: {row}"
        for row in rows_of(heading, case)
        if not any(row.covers(found) for found in observed)
    ]


def rows_of(heading: str, case: str) -> list[Listed]:
    """Return what is listed of a case."""
    return [row for row in listed(heading) if like(case, row.case)]
