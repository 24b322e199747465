"""How tests that take a JVM are marked."""

import pytest

DEAR_PLANES = pytest.mark.usefixtures("plane")
"""Brokers that the test starts run on the plane in its id; the plain one takes `--long`."""

DEAR = [pytest.mark.spark, DEAR_PLANES]
