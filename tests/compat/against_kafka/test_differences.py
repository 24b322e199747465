"""The page lists differences of cases that there are, each with all that a row needs."""

from __future__ import annotations

from tests.compat.against_kafka import (
    test_cluster,
    test_config_values,
    test_configs,
    test_fetch,
    test_offsets,
    test_produce,
    test_topics,
    test_versions,
)
from tests.compat.against_kafka.differences import like, listed

CASES = [
    name
    for module in (
        test_cluster,
        test_config_values,
        test_configs,
        test_fetch,
        test_offsets,
        test_produce,
        test_topics,
        test_versions,
    )
    for name in module.CASES
]


def test_every_row_is_of_a_case() -> None:
    assert listed()
    assert len(set(CASES)) == len(CASES)
    for row in listed():
        assert any(like(case, row.case) for case in CASES), row
