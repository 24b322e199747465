"""Log managers on two directories, for the tests of whatever works on all logs of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plog._native import faults
from plog.runtime.clock import ManualClock
from plog.storage.filesystem import Filesystem
from plog.storage.log_manager import LogManager
from tests.memory import directory_in_memory

from .log_managers import SETTINGS, Start, abandon
from .storage_logs import NOW_MS, broker_settings


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Directories in memory: tests cut the power by themselves, and need no disk that waits."""
    with directory_in_memory() as made:
        yield made


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / "one", tmp_path / "two"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def start(dirs: list[Path], clock: ManualClock) -> Iterator[Start]:
    """Start managers whose background tasks run only when a test says so."""
    started: list[LogManager] = []

    def start(
        log_dirs: list[Path] | None = None, fs: Filesystem | None = None, **values: object
    ) -> LogManager:
        manager = LogManager(
            broker_settings(log_dirs or dirs, **values),
            lambda topic: SETTINGS,
            cluster_id="cluster",
            clock=clock,
            fs=fs,
        )
        started.append(manager)
        manager.start(background=False)
        return manager

    yield start
    faults.inject([])
    for manager in started:
        abandon(manager)
