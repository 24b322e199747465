"""The two ways in which a broker answers Produce and Fetch: its fast path, and the handlers alone.

Whatever sends records to a broker or reads them is tested both ways: the test, or a fixture of it
that starts the broker, asks for `plane` (tests/conftest.py), and its id says which one it was. All
settings of brokers that tests start come from `broker_settings`, which sees to it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

FAST_PATH = "fast.path.enable"


class Plane(enum.Enum):
    """The values are those of the setting."""

    FAST = "true"
    PLAIN = "false"


_of_this_test: Plane | None = None


def enter_test(item: pytest.Item) -> None:
    """Have brokers started as a test asks, from its first fixture on.

    One that does not ask has brokers as they are by default, whatever ran before it.
    """
    global _of_this_test
    _of_this_test = plane_of(item)


def plane_of(item: pytest.Item) -> Plane | None:
    """Return the plane in a test's id, None for a test that has none."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("plane") if callspec is not None else None


def broker_settings(port: int, log_dirs: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of one broker; what the test itself gives goes before everything else."""
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": log_dirs,
        "broker.id": 0,
        # Records of tests are of any year: those of others would be gone once a broker is half a
        # minute old. Tests of retention give their own.
        "log.initial.task.delay.ms": 86_400_000,
    }
    if _of_this_test is not None:
        settings[FAST_PATH] = _of_this_test.value
    return {**settings, **given}
