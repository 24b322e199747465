"""Timers that are moved and stopped, in an event loop that runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine

import pytest

from plog.runtime.timers import Timers


def in_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**given: object) -> None:
        asyncio.run(test(**given))

    return run


class Heard:
    """What fired, and when by the loop's clock."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.names: list[str] = []
        self.times: dict[str, float] = {}
        self.timers: Timers[str] = Timers(self.loop, self._fired)

    def _fired(self, name: str) -> None:
        self.names.append(name)
        self.times[name] = self.loop.time()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.names) < count:
                await asyncio.sleep(0.001)


@in_loop
async def test_timers_fire_in_their_order_and_once() -> None:
    heard = Heard()
    heard.timers.set("late", 40)
    heard.timers.set("early", 1)
    await heard.until(2)
    assert heard.names == ["early", "late"]
    assert len(heard.timers) == 0


@in_loop
async def test_a_timer_that_is_put_off_fires_once_at_its_later_time() -> None:
    heard = Heard()
    begun = heard.loop.time()
    heard.timers.set("a", 5)
    heard.timers.set("a", 60)
    heard.timers.set("last", 80)
    await heard.until(2)
    assert heard.names == ["a", "last"]
    assert heard.times["a"] - begun >= 0.06


@in_loop
async def test_a_timer_may_be_moved_to_an_earlier_time() -> None:
    heard = Heard()
    heard.timers.set("a", 3_600_000)
    heard.timers.set("a", 1)
    await heard.until(1)
    assert heard.names == ["a"]


@pytest.mark.parametrize("end", ["stop", "close"])
@in_loop
async def test_what_is_stopped_does_not_fire(end: str) -> None:
    heard = Heard()
    heard.timers.set("a", 1)
    heard.timers.stop("a") if end == "stop" else heard.timers.close()
    heard.timers.stop("never set")
    heard.timers.set("b", 20)
    await heard.until(1)
    assert heard.names == ["b"]


@in_loop
async def test_a_timer_may_be_set_again_when_it_fires() -> None:
    loop = asyncio.get_running_loop()
    times = []

    def again(name: str) -> None:
        times.append(name)
        if len(times) < 3:
            timers.set(name, 1)

    timers: Timers[str] = Timers(loop, again)
    timers.set("a", 1)
    async with asyncio.timeout(30):
        while len(times) < 3:
            await asyncio.sleep(0.001)
    assert len(timers) == 0
