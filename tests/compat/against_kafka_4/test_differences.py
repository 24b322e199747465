"""The page lists differences of cases that there are, each with all that a row needs."""

from __future__ import annotations

from tests.compat.against_kafka.differences import FROM_4_1, like, listed
from tests.compat.against_kafka_4 import (
    test_consumer_groups,
    test_features,
    test_group_configs,
    test_transactions,
)

CASES = [
    name
    for module in (test_consumer_groups, test_features, test_group_configs, test_transactions)
    for name in module.CASES
]


def test_every_row_is_of_a_case() -> None:
    assert listed(FROM_4_1)
    assert len(set(CASES)) == len(CASES)
    for row in listed(FROM_4_1):
        assert any(like(case, row.case) for case in CASES), row
