"""Stores for the tests: every implementation goes through the same conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.store import Store
from plog.runtime.clock import ManualClock

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def log_dirs(tmp_path: Path) -> list[Path]:
    directories = [tmp_path / "d0", tmp_path / "d1"]
    for directory in directories:
        directory.mkdir()
    return directories


@pytest.fixture(params=["embedded"])
def store(
    request: pytest.FixtureRequest, log_dirs: list[Path], clock: ManualClock
) -> Iterator[Store]:
    opened = {"embedded": lambda: EmbeddedStore(log_dirs, clock=clock)}[request.param]()
    yield opened
    opened.close()


@pytest.fixture
def embedded(log_dirs: list[Path], clock: ManualClock) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(log_dirs, clock=clock)
    yield opened
    opened.close()
