"""Words and conversions that every layer uses."""

from __future__ import annotations

import pytest

from plog.types import counted


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, "broker"), "0 brokers"),
        ((1, "broker"), "1 broker"),
        ((2, "broker"), "2 brokers"),
        ((1, "batch", "batches"), "1 batch"),
        ((2, "batch", "batches"), "2 batches"),
    ],
)
def test_number_decides_between_singular_and_plural(arguments, text):
    assert counted(*arguments) == text
