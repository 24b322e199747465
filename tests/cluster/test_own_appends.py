"""The order of what the broker writes for itself, where some of it waits for a disk's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plog._native import records
from plog.cluster.disks import Disks
from plog.cluster.leadership import UNTOLD
from plog.cluster.own_appends import OwnAppends, Pair
from plog.errors import NotLeaderOrFollower
from plog.runtime.clock import ManualClock
from plog.types import TopicPartition

AT = TopicPartition("__consumer_offsets", 0)


class Replica:
    """A partition that is led here, and a log that takes what it is given."""

    settings = SimpleNamespace(max_message_bytes=1 << 20, flush_before_ack=False)
    topic_partition = AT
    leadership = UNTOLD._replace(replicas=(0,))

    @property
    def hosted_log(self) -> Held:
        return self.log

    def __init__(self) -> None:
        self.log = Held(Path("/a"))
        self.written: list[bytes] = []
        self.threads: list[str] = []

    def append(self, data: bytearray, *, acks: int, now_ms: int) -> SimpleNamespace:
        self.written += [record.key for record in records.walk(bytes(data))]
        self.threads.append(threading.current_thread().name)
        return SimpleNamespace(base_offset=len(self.written) - 1, last_offset=len(self.written) - 1)


class Held:
    """What `Disks` and `OwnAppends` ask of a log."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self._lock = threading.RLock()

    def try_hold(self) -> bool:
        return self._lock.acquire(blocking=False)

    def let_go(self) -> None:
        self._lock.release()


class World:
    """Appends to one replica, whose disk's thread is at something else until `go_on`."""

    def __init__(self) -> None:
        self.replica, self.disks = Replica(), Disks()
        self._may_go_on = threading.Event()
        self._appends = OwnAppends(
            replicas=SimpleNamespace(leader=lambda _: self.replica, disks=self.disks),  # type: ignore[arg-type]
            logs=None,  # type: ignore[arg-type]
            purgatory=self,  # type: ignore[arg-type]
            bells=None,  # type: ignore[arg-type]  # no other replicas
            clock=ManualClock(),
        )
        self._busy = asyncio.ensure_future(
            self.disks.in_thread(self.replica.log.log_dir, self._may_go_on.wait, 60)
        )

    async def wait(self, *_: object) -> bool:
        """As the purgatory: everything is safe."""
        return True

    async def append(self, key: bytes) -> asyncio.Task[int]:
        """Begin to append, and go as far as it comes by itself."""
        task = asyncio.ensure_future(self._appends.append(AT, [Pair(key, b"")]))
        await asyncio.sleep(0)
        return task

    def make_fast(self) -> None:
        for _ in range(64):
            self.disks.note_append(self.replica.log.log_dir, 0)

    async def go_on(self) -> None:
        self._may_go_on.set()
        await self._busy

    def close(self) -> None:
        self._may_go_on.set()
        self.disks.stop()


def in_loop(play: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        world = World()
        try:
            async with asyncio.timeout(60):
                await play(world)
        finally:
            world.close()

    asyncio.run(run())


def test_append_stands_behind_an_earlier_one_that_waits_for_the_disk() -> None:
    async def play(world: World) -> None:
        world.disks.note_append(world.replica.log.log_dir, 20_001)
        first = await world.append(b"first")
        world.make_fast()
        second = await world.append(b"second")
        assert world.replica.written == []
        await world.go_on()
        assert (await first, await second) == (0, 1)
        assert world.replica.written == [b"first", b"second"]
        assert (await (await world.append(b"third"))) == 2
        assert world.replica.threads[2] == threading.current_thread().name

    in_loop(play)


def test_append_that_waits_while_its_log_moves_does_not_follow_those_after_it() -> None:
    async def play(world: World) -> None:
        world.disks.note_append(world.replica.log.log_dir, 20_001)
        first = await world.append(b"first")
        world.replica.log = Held(Path("/b"))
        await (await world.append(b"second"))
        await world.go_on()
        with pytest.raises(NotLeaderOrFollower):
            await first
        assert world.replica.written == [b"second"]

    in_loop(play)


def test_append_to_another_log_does_not_wait_for_the_thread() -> None:
    async def play(world: World) -> None:
        world.disks.note_append(world.replica.log.log_dir, 20_001)
        first = await world.append(b"first")
        world.make_fast()
        before, world.replica = world.replica, Replica()
        await (await world.append(b"of another"))
        assert world.replica.written == [b"of another"]
        await world.go_on()
        await first
        assert before.written == [b"first"]

    in_loop(play)


def test_append_to_a_log_that_somebody_changes_waits_in_the_thread() -> None:
    async def play(world: World) -> None:
        has_it, may_end = threading.Event(), threading.Event()

        def change() -> None:
            assert world.replica.log.try_hold()
            has_it.set()
            may_end.wait(60)
            world.replica.log.let_go()

        await world.go_on()
        changing = threading.Thread(target=change)
        changing.start()
        await asyncio.to_thread(has_it.wait, 60)
        assert await (await world.append(b"first")) == 0
        may_end.set()
        await asyncio.to_thread(changing.join)
        assert world.replica.threads[0] != threading.current_thread().name

    in_loop(play)
