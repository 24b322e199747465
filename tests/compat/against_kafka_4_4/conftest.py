"""Kafka 4.4 and plog, with the same settings, and the fixture that holds a case to both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.compat.against_kafka.differences import FROM_4_4
from tests.compat.against_kafka.held import Excuses, held
from tests.compat.against_kafka.pair import Case, Pair
from tests.compat.against_kafka_4.conftest import pair_with, see_topics
from tests.compat.live_kafka import KAFKA_4_4


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair_with(KAFKA_4_4, FROM_4_4, tmp_path_factory) as pair:
        yield pair


@pytest.fixture
def hold(pair: Pair, excuses: Excuses) -> Callable[[str, Case], None]:
    """Return what asks both, and fails where their answers are not as docs/SKIPPED.md says."""
    return partial(held, pair, excuses, ready=see_topics)
