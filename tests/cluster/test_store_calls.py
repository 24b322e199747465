"""Calls of the coordination store beside the event loop: bounded in number, bytes and time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine

import pytest

from plog.cluster import store_calls
from plog.cluster.store import NoNode, Unreachable
from plog.cluster.store_calls import THREADS, StoreCalls
from plog.network.connections import MOST_BYTES_AT_WORK

LONG_S = 600.0


class Scene:
    """A store that is silent until `answer`."""

    def __init__(self, most: int, patience_s: float = LONG_S) -> None:
        self.calls = StoreCalls(most=most, patience_s=patience_s)
        self._answers = threading.Event()
        self.asked: list[object] = []

    def ask(self, name: object) -> object:
        self.asked.append(name)
        assert self._answers.wait(LONG_S)
        return name

    def make(self, name: object, **options: object) -> asyncio.Task[object]:
        made = self.calls.make(lambda: self.ask(name), **options)  # type: ignore[arg-type]
        return asyncio.ensure_future(made)

    def answer(self) -> None:
        self._answers.set()

    def run(self, play: Coroutine[object, object, None]) -> None:
        async def whole() -> None:
            try:
                await asyncio.wait_for(play, LONG_S)
            finally:
                self.answer()
                self.calls.stop()

        asyncio.run(whole())


async def a_round() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_result_or_error_of_the_call_is_returned() -> None:
    scene = Scene(1)

    def fails() -> None:
        raise NoNode("/a")

    async def play() -> None:
        scene.answer()
        assert await scene.make("a") == "a"
        with pytest.raises(NoNode):
            await scene.calls.make(fails)

    scene.run(play())


def test_silent_store_fails_calls_in_their_time_and_queued_ones_are_never_made() -> None:
    scene = Scene(THREADS + 1)

    async def play() -> None:
        made = [scene.make(number, within_s=0.05) for number in range(THREADS + 1)]
        found = await asyncio.gather(*made, return_exceptions=True)
        assert [type(one) for one in found] == [Unreachable] * (THREADS + 1)
        scene.answer()
        assert await scene.make("later") == "later"
        assert sorted(map(str, scene.asked)) == [*map(str, range(THREADS)), "later"]

    scene.run(play())


def test_call_has_the_usual_time_if_its_caller_does_not_say() -> None:
    scene = Scene(1, patience_s=0.05)

    async def play() -> None:
        with pytest.raises(Unreachable, match=r"no answer within 0\.05 s"):
            await scene.make("a")

    scene.run(play())


@pytest.mark.parametrize(
    ("most", "size"), [(1, 0), (2, MOST_BYTES_AT_WORK)], ids=["count", "bytes"]
)
def test_full_queue_refuses_calls_while_the_store_is_silent(
    most: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_calls, "FULL_S", 0.05)
    scene = Scene(most)

    async def play() -> None:
        first = scene.make("first", size=size)
        await a_round()
        with pytest.raises(Unreachable, match="1 requests wait"):
            await scene.make("second", size=size)
        scene.answer()
        assert await first == "first"
        assert await scene.make("third", size=size) == "third"
        assert scene.asked == ["first", "third"]

    scene.run(play())


def test_full_queue_has_calls_wait_while_the_store_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_calls, "FULL_S", LONG_S)
    scene = Scene(1)

    async def play() -> None:
        made = [scene.make(number) for number in range(20)]
        await a_round()
        assert scene.asked in ([], [0])
        assert not any(one.done() for one in made)
        scene.answer()
        assert await asyncio.gather(*made) == [*range(20)]

    scene.run(play())


def test_wait_for_room_goes_on_for_others_after_one_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_calls, "FULL_S", LONG_S)
    scene = Scene(1)

    async def play() -> None:
        first, gone, last = (scene.make(name) for name in ("first", "gone", "last"))
        await a_round()
        gone.cancel()
        await a_round()
        scene.answer()
        assert await first == "first"
        assert await last == "last"
        assert scene.asked == ["first", "last"]

    scene.run(play())


def test_call_counts_until_its_thread_is_done_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller may have given up long before."""
    monkeypatch.setattr(store_calls, "FULL_S", 0.01)
    scene = Scene(1)

    async def play() -> None:
        for name, why in ("first", "no answer"), ("second", "wait for its answer already"):
            with pytest.raises(Unreachable, match=why):
                await scene.make(name, within_s=0.05)

    scene.run(play())


def test_calls_that_were_given_up_keep_their_room_until_a_thread_passes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each holds its request: clients that give up fast would fill the memory."""
    monkeypatch.setattr(store_calls, "FULL_S", 0.2)
    scene = Scene(THREADS + 2)

    async def play() -> None:
        made = [scene.make(number, within_s=0.01) for number in range(THREADS + 2)]
        await asyncio.gather(*made, return_exceptions=True)
        with pytest.raises(Unreachable, match=f"{THREADS + 2} requests wait"):
            await scene.make("one too many", within_s=LONG_S)
        scene.answer()
        while scene.calls._room.count:
            await asyncio.sleep(0.01)
        assert await scene.make("later") == "later"
        assert "one too many" not in scene.asked

    scene.run(play())


def test_wait_for_room_counts_in_the_time_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_calls, "FULL_S", LONG_S)
    scene = Scene(1)

    async def play() -> None:
        first = scene.make("first")
        await a_round()
        with pytest.raises(Unreachable):
            await scene.make("second", within_s=0.05)
        scene.answer()
        assert await first == "first"

    scene.run(play())
