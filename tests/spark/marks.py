"""How tests that take a JVM are marked."""

import pytest

from tests.marks import PLAIN_IS_LONG

DEAR_PLANES = PLAIN_IS_LONG
"""What tasks read and write is tested on both planes without a JVM (test_stream_source,
test_two_phases, tests/client)."""

DEAR = [pytest.mark.spark, DEAR_PLANES]
