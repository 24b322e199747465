"""The page lists differences of cases that exist."""

from __future__ import annotations

from tests.compat.against_kafka.differences import FROM_4_4, like, listed
from tests.compat.against_kafka_4_4.test_versions import CASES


def test_every_row_is_of_a_case() -> None:
    assert listed(FROM_4_4)
    for row in listed(FROM_4_4):
        assert any(like(case, row.case) for case in CASES), row
