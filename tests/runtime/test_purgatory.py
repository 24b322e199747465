import asyncio
import gc
import threading
import time
import weakref

import pytest

from plog.errors import OffsetOutOfRange
from plog.runtime.purgatory import Purgatory


def run(scenario):
    """Run `scenario(purgatory)` in a loop; afterwards nothing may be parked."""

    async def main():
        purgatory = Purgatory(asyncio.get_running_loop())
        result = await scenario(purgatory)
        assert (len(purgatory), purgatory.keys_watched) == (0, 0)
        return result

    return asyncio.run(asyncio.wait_for(main(), 10))


class Level:
    """Something that rises."""

    def __init__(self):
        self.height = 0
        self.asked = 0

    def at_least(self, height):
        def ready():
            self.asked += 1
            return self.height >= height

        return ready


def test_what_is_ready_does_not_wait():
    async def scenario(purgatory):
        return await purgatory.wait(["key"], 10_000, lambda: True)

    assert run(scenario) is True


def test_no_time_is_no_wait():
    async def scenario(purgatory):
        return await purgatory.wait(["key"], 0, lambda: False)

    assert run(scenario) is False


def test_touch_asks_and_wakes_those_who_are_ready():
    level = Level()

    async def scenario(purgatory):
        low = asyncio.ensure_future(purgatory.wait(["a"], 10_000, level.at_least(1)))
        high = asyncio.ensure_future(purgatory.wait(["a"], 10_000, level.at_least(2)))
        await asyncio.sleep(0)
        assert len(purgatory) == 2
        purgatory.touch("a")
        await asyncio.sleep(0)
        assert (low.done(), high.done()) == (False, False)
        level.height = 1
        purgatory.touch("b")
        await asyncio.sleep(0)
        assert not low.done()
        purgatory.touch("a")
        assert await low is True
        assert (high.done(), len(purgatory)) == (False, 1)
        level.height = 2
        purgatory.touch("a")
        assert await high is True

    run(scenario)


def test_any_of_the_keys_wakes():
    level = Level()

    async def scenario(purgatory):
        waiting = asyncio.ensure_future(
            purgatory.wait(["a", "b", "a", "c"], 10_000, level.at_least(1))
        )
        await asyncio.sleep(0)
        assert purgatory.keys_watched == 3
        level.height = 1
        purgatory.touch("c")
        return await waiting

    assert run(scenario) is True


def test_deadline_ends_the_wait_with_one_last_question():
    level = Level()

    async def scenario(purgatory):
        began = time.monotonic()
        assert await purgatory.wait(["a"], 50, level.at_least(1)) is False
        assert 0.045 < time.monotonic() - began < 1
        waiting = asyncio.ensure_future(purgatory.wait(["a"], 50, level.at_least(1)))
        await asyncio.sleep(0)
        level.height = 1  # and nobody touches
        return await waiting

    assert run(scenario) is True


def test_no_keys_is_a_wait_for_the_deadline():
    async def scenario(purgatory):
        return await purgatory.wait([], 20, lambda: False)

    assert run(scenario) is False


def test_cancelled_wait_leaves_nothing():
    async def scenario(purgatory):
        waiting = asyncio.ensure_future(purgatory.wait(["a", "b"], 60_000, lambda: False))
        await asyncio.sleep(0)
        assert (len(purgatory), purgatory.keys_watched) == (1, 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        purgatory.touch("a")

    run(scenario)


def test_question_that_raises_raises_in_the_waiter_only():
    async def scenario(purgatory):
        level = Level()

        def refuse():
            if level.height > 0:
                raise OffsetOutOfRange("truncated")
            return False

        waiting = asyncio.ensure_future(purgatory.wait(["a"], 10_000, refuse))
        other = asyncio.ensure_future(purgatory.wait(["a"], 10_000, level.at_least(1)))
        await asyncio.sleep(0)
        level.height = 1
        purgatory.touch("a")
        assert await other is True
        with pytest.raises(OffsetOutOfRange, match="truncated"):
            await waiting
        with pytest.raises(OffsetOutOfRange):
            await purgatory.wait(["a"], 10_000, refuse)

    run(scenario)


def test_touch_of_a_key_that_nobody_watches_asks_nobody():
    level = Level()

    async def scenario(purgatory):
        waits = [
            asyncio.ensure_future(purgatory.wait([i], 10_000, level.at_least(1)))
            for i in range(1000)
        ]
        await asyncio.sleep(0)
        level.asked = 0
        purgatory.touch(5)
        purgatory.touch("idle")
        assert level.asked == 1
        purgatory.close()
        assert set(await asyncio.gather(*waits)) == {False}

    run(scenario)


def test_touches_by_threads_are_gathered_and_none_is_missed():
    level = Level()
    rounds = 200

    async def scenario(purgatory):
        def raise_it():
            for height in range(1, rounds + 1):
                level.height = height
                purgatory.touch_threadsafe("a")

        for height in range(1, rounds + 1):
            if height == 1:
                thread = threading.Thread(target=raise_it)
                thread.start()
            # Were a touch lost, this would take the whole timeout.
            began = time.monotonic()
            assert await purgatory.wait(["a"], 8_000, level.at_least(height)) is True
            assert time.monotonic() - began < 5
        thread.join()

    run(scenario)


def test_many_touches_wake_the_loop_once():
    calls = []

    async def scenario(purgatory):
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: calls.append(args) or original(*args)
        waiting = asyncio.ensure_future(
            purgatory.wait(["k7"], 10_000, iter([False, True]).__next__)
        )
        await asyncio.sleep(0)
        for i in range(100):
            purgatory.touch_threadsafe(f"k{i}")
        assert await waiting is True
        loop.call_soon_threadsafe = original

    run(scenario)
    assert len(calls) == 1


def test_closed_purgatory_lets_everyone_go_and_takes_no_one_in():
    async def scenario(purgatory):
        waiting = asyncio.ensure_future(purgatory.wait(["a"], 60_000, lambda: False))
        await asyncio.sleep(0)
        purgatory.close()
        assert await waiting is False
        assert await purgatory.wait(["a"], 60_000, lambda: False) is False
        purgatory.touch_threadsafe("a")

    run(scenario)


def test_finished_waits_are_garbage_at_once():
    class Marker:
        pass

    async def scenario(purgatory):
        marker = Marker()
        alive = weakref.ref(marker)
        gc.disable()
        try:
            await purgatory.wait(["a"], 1, lambda marker=marker: marker is None)
            del marker
            await asyncio.sleep(0)
            return alive() is None
        finally:
            gc.enable()

    assert run(scenario)
