"""How tests that take a JVM are marked."""

import pytest

from tests.planes import Plane

DEAR_PLANES = pytest.mark.parametrize(
    "plane",
    [
        pytest.param(Plane.FAST, id="fast"),
        pytest.param(Plane.PLAIN, id="plain", marks=pytest.mark.long),
    ],
    indirect=True,
)
"""Of the plain plane with `--long` alone: what tasks read and write is tested on both without a JVM
(test_stream_source, test_two_phases, tests/client)."""

DEAR = [pytest.mark.spark, DEAR_PLANES]
