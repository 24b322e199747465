"""Work on many things in the event loop: others have their turn."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from plog.runtime import give_way
from plog.runtime.give_way import giving_way


@pytest.mark.parametrize(("at_once_s", "turns"), [(-1, 10), (3600, 0)])
def test_others_have_their_turn_once_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, at_once_s: float, turns: int
) -> None:
    monkeypatch.setattr(give_way, "AT_ONCE_S", at_once_s)
    asked: list[int] = []

    async def other() -> None:
        for number in itertools.count():
            asked.append(number)
            await asyncio.sleep(0)

    async def run() -> list[int]:
        beside = asyncio.ensure_future(other())
        seen = [number async for number in giving_way(range(10))]
        beside.cancel()
        return seen

    assert asyncio.run(run()) == list(range(10))
    assert len(asked) == turns
