"""The page lists differences of cases that there are, each with all that a row needs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.compat.against_kafka.differences import FROM_3_9, FROM_4_1, like, listed

HERE = Path(__file__)
CASES = [
    name
    for path in sorted(HERE.parent.glob("test_*.py"))
    if path.stem != HERE.stem
    for name in importlib.import_module(f"{__package__}.{path.stem}").CASES
]


def test_every_row_is_of_a_case() -> None:
    assert listed(FROM_3_9)
    assert len(set(CASES)) == len(CASES)
    for row in listed(FROM_3_9):
        assert any(like(case, row.case) for case in CASES), row


@pytest.mark.parametrize("heading", [FROM_3_9, FROM_4_1])
def test_every_row_says_what_plog_answers(heading: str) -> None:
    """`*` stands for what changes from run to run, which is in Kafka's answers alone: with it in
    both columns whatever plog said would pass, as long as it was not what Kafka says."""
    assert [row for row in listed(heading) if "*" in row.plog] == []
