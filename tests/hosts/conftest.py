from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.hosts import host as hosts
from tests.hosts.host import Host, MemoryBounded


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


@pytest.fixture
def memory_bounded(record_property: Callable[[str, object], None]) -> MemoryBounded:
    """`tests.hosts.host.memory_bounded`, with what it finds told at the end of the run."""
    return partial(hosts.memory_bounded, lambda line: record_property("figures", line))
