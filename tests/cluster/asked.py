"""What a store is asked: with ZooKeeper each call is a round trip, or more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plog.cluster.store import Store


def calls_of(monkeypatch: pytest.MonkeyPatch, store: Store) -> list[str]:
    """Return the calls of a store from now on, as they come."""
    calls: list[str] = []
    under_way: list[str] = []  # a call that another makes is no round trip of its own

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any) -> Any:
            if not under_way:
                calls.append(name)
            under_way.append(name)
            try:
                return real(*args)
            finally:
                under_way.pop()

        return ask

    for name in ("get", "get_many", "exists", "children", "multi"):
        monkeypatch.setattr(store, name, counted(name, getattr(store, name)))
    return calls
