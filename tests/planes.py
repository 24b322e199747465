"""The two ways in which a broker answers Produce and Fetch: plog's own, and the oracle's.

Tests that send records to a broker or read them run both ways: the test, or a fixture of it
that starts the broker, asks for `plane` (tests/conftest.py), and its id says which one it was. All
settings of brokers that tests start come from `broker_settings`.
"""

from __future__ import annotations

import enum
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


class Plane(enum.Enum):
    """Which code answers."""

    FAST = "plog"
    """Reactors, which ask Python about unusual partitions."""
    PLAIN = "oracle"
    """`tests/oracle`, which gets every request whole."""


ROOT = Path(__file__).resolve().parent.parent
ORACLE = "The oracle answers Produce and Fetch."
"""What its broker prints."""
VARIABLE = "PLOG_TEST_PLANE"
"""The plane of a broker that another program starts."""
_of_this_test: Plane | None = None


def enter_test(item: pytest.Item) -> None:
    """Have brokers started as a test asks, from its first fixture on.

    One that does not ask has plog's own, whatever ran before it.
    """
    global _of_this_test
    _of_this_test = plane_of(item)


def plane_of(item: pytest.Item) -> Plane | None:
    """Return the plane in a test's id, None for a test that has none."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("plane") if callspec is not None else None


def plane_or_default(given: Plane | None) -> Plane:
    """Return the plane of a broker: the given one, else that of the test, else plog's own."""
    return given or _of_this_test or Plane.FAST


def environment_of(plane: Plane) -> dict[str, str]:
    """Return the variables by which another process takes a plane."""
    if plane is Plane.FAST:
        return {}
    return {VARIABLE: plane.value, "PYTHONPATH": str(ROOT)}


def take_plane() -> None:
    """Have this process start brokers of the plane in its environment."""
    if os.environ.get(VARIABLE) == Plane.PLAIN.value:
        importlib.import_module("tests.oracle.__main__")


def broker_settings(port: int, log_dirs: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of one broker; those of the test itself go before everything else."""
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": log_dirs,
        "broker.id": 0,
        # Records of tests are of any year: those of others would be gone once a broker is half a
        # minute old. Tests of retention give their own.
        "log.initial.task.delay.ms": 86_400_000,
    }
    return {**settings, **given}
