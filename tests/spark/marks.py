"""How tests that take a JVM are marked."""

import pytest

DEAR_PLANES = pytest.mark.usefixtures("plane")
"""Brokers that the test starts run on the plane in its id; the plain one takes `--long`."""

TIMEOUT_S = 900
"""The first test of a worker also waits for a session and its archive of classes (`jvm.py`)."""

DEAR = [pytest.mark.spark, DEAR_PLANES, pytest.mark.timeout(TIMEOUT_S)]
