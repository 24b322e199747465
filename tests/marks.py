"""How tests are marked that need not be of both planes in every run."""

import pytest

from tests.planes import Plane

PLAIN_IS_LONG = pytest.mark.parametrize(
    "plane",
    [
        pytest.param(Plane.FAST, id="fast"),
        pytest.param(Plane.PLAIN, id="plain", marks=pytest.mark.long),
    ],
    indirect=True,
)
"""Of the plain plane with `--long` alone: what is written and read here is so elsewhere on both."""
