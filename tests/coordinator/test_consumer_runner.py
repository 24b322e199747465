"""Consumer groups around their machines: what is told when, and what a log that fails leaves."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from plog.cluster.own_appends import Pair
from plog.coordinator.classic_group import ClassicGroup
from plog.coordinator.consumer_events import Beat
from plog.coordinator.consumer_group import ConsumerGroup
from plog.coordinator.group_coordinator import GroupCoordinator
from plog.coordinator.group_events import Heartbeat, Join, Leaving, Protocol, Sync
from plog.coordinator.group_shard import Group, Shard
from plog.coordinator.replay import Entry, Replayed
from plog.errors import ErrorCode, KafkaError, KafkaStorageError, RequestTimedOut
from plog.protocol import codec
from plog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from plog.runtime.clock import ManualClock
from plog.runtime.trusted_time import TrustedTime
from plog.settings.definitions import BrokerSettings, GroupSettings
from tests.coordinator.consumer_play import cluster_of

SUBSCRIPTION = struct.pack(">h", 1) + codec.encode(ConsumerProtocolSubscription(topics=["a"]), 1)

REBALANCE_IN_PROGRESS = ErrorCode.REBALANCE_IN_PROGRESS


async def turns() -> None:
    """Let whatever is under way go on for as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Log:
    """A log that can be held up, or fail, with what was to be written in it or not."""

    def __init__(self) -> None:
        self.table: dict[bytes, Entry] = {}
        self.batches: list[Sequence[Pair]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.failure: Exception | None = None
        self.is_written_all_the_same = False
        self._end = 0

    async def append(self, _: object, pairs: Sequence[Pair], **__: object) -> int:
        self.batches.append(pairs)
        await self.free.wait()
        if self.failure is not None and not self.is_written_all_the_same:
            raise self.failure
        base = self._end
        for pair in pairs:
            self.table[pair.key] = Entry(pair.value, self._end)
            self._end += 1
        if self.failure is not None:
            raise self.failure
        return base

    def read(self) -> Group | None:
        """Return what a broker that starts anew makes of it."""
        shard = Shard(0, 1)
        table = {key: entry for key, entry in self.table.items() if entry.value is not None}
        shard.fill(Replayed(table=table))
        return shard.groups.get("g")


class Stage:
    def __init__(self) -> None:
        self.log = Log()
        self.configs: dict[str, str] = {}
        broker = BrokerSettings({"group.initial.rebalance.delay.ms": "0"})
        clock = ManualClock()
        self.groups = GroupCoordinator(
            asyncio.get_running_loop(),
            appends=self.log,  # type: ignore[arg-type]
            settings=broker,
            settings_of=lambda _: GroupSettings(broker, self.configs),
            clock=clock,
            trusted_time=TrustedTime(clock),
            partitions=lambda: 1,
        )
        metadata: Any = SimpleNamespace(
            snapshot=cluster_of({"a": 4}), subscribe=lambda _: lambda: None
        )
        self.groups.start(metadata)
        self.groups.shards.serve(Shard(0, 1))

    @property
    def machine(self) -> ClassicGroup | ConsumerGroup:
        group = self.groups.find("g")
        assert group is not None
        return group.machine

    async def enter(self, member_id: str) -> Any:
        return await self.beat(
            member_id, 0, topics=frozenset({"a"}), owned=frozenset(), rebalance_timeout_ms=30_000
        )

    async def beat(self, member_id: str, epoch: int, **told: Any) -> Any:
        return await self.groups.beat_as_consumer(
            "g", Beat(self.groups.token(), member_id, epoch, **told)
        )

    async def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        new_member_id: str = "classic",
        error: ErrorCode = ErrorCode.NONE,
    ) -> Any:
        answer = await self.groups.join(
            "g",
            Join(
                token=self.groups.token(),
                member_id=member_id,
                new_member_id=new_member_id,
                instance_id=instance_id,
                client_id="c",
                client_host="/h",
                rebalance_timeout_ms=30_000,
                session_timeout_ms=30_000,
                protocol_type="consumer",
                protocols=(Protocol("range", SUBSCRIPTION),),
                must_know_id=False,
            ),
        )
        assert answer.error is error
        return answer

    async def sync(self, generation: int) -> Any:
        return await self.groups.sync(
            "g",
            Sync(
                self.groups.token(),
                "classic",
                None,
                generation,
                None,
                None,
                {"classic": b"\0\0\0\0\0\0\xff\xff\xff\xff"},
            ),
        )

    def check(self) -> None:
        """The log says what the group is."""
        found = self.log.read()
        assert found is not None
        machine = self.machine
        assert type(found.machine) is type(machine)
        if isinstance(machine, ConsumerGroup):
            assert isinstance(found.machine, ConsumerGroup)
            assert dict(found.machine.table) == dict(machine.table)  # type: ignore[call-overload]


def staged(play: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            stage = Stage()
            async with asyncio.timeout(60):
                await play(stage)
            stage.groups.close()

        asyncio.run(run())

    test.__name__ = play.__name__
    return test


@staged
async def test_nobody_is_told_of_what_is_not_safe(stage: Stage) -> None:
    stage.log.free.clear()
    first = asyncio.ensure_future(stage.enter("m1"))
    again = asyncio.ensure_future(stage.beat("m1", 0, topics=frozenset({"a"}), owned=frozenset()))
    second = asyncio.ensure_future(stage.enter("m2"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(one.done() for one in (first, again, second))
    stage.log.free.set()
    assert (await first).epoch == 1
    assert (await again).epoch == 1
    assert (await second).epoch == 2
    assert len(stage.log.batches) == 2, "what comes meanwhile is written together"
    stage.check()


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize(
    "failure", [KafkaStorageError("disk"), RequestTimedOut("late"), RuntimeError("a bug")]
)
def test_what_could_not_be_stored_has_not_happened(failure: Exception, is_written: bool) -> None:
    @staged
    async def play(stage: Stage) -> None:
        await stage.enter("m1")
        stage.log.failure, stage.log.is_written_all_the_same = failure, is_written
        async with asyncio.timeout(60):
            with pytest.raises(KafkaError):
                await stage.enter("m2")
        machine = stage.machine
        assert isinstance(machine, ConsumerGroup)
        assert set(machine.table.members) == {"m1"}
        stage.log.failure = None
        # The next change puts right what the log may say.
        assert (await stage.enter("m3")).epoch == 2
        assert set(stage.machine.table.members) == {"m1", "m3"}  # type: ignore[union-attr]
        stage.check()

    play()


@staged
async def test_a_group_whose_first_records_fail_is_nobodys(stage: Stage) -> None:
    stage.log.failure = KafkaStorageError("disk")
    with pytest.raises(KafkaError):
        await stage.enter("m1")
    assert isinstance(stage.machine, ClassicGroup)
    stage.log.failure = None
    assert (await stage.enter("m1")).epoch == 1
    stage.check()


@staged
async def test_a_group_is_upgraded_and_downgraded_in_one_batch_each(stage: Stage) -> None:
    generation = (await stage.join()).generation
    await stage.sync(generation)
    written = len(stage.log.batches)
    assert (await stage.enter("m1")).epoch == generation + 1
    assert len(stage.log.batches) == written + 1
    stage.check()
    beat = Heartbeat(stage.groups.token(), "classic", None, generation)
    assert await stage.groups.beat("g", beat) is ErrorCode.REBALANCE_IN_PROGRESS
    written = len(stage.log.batches)
    await stage.beat("m1", -1)
    assert len(stage.log.batches) == written + 1
    assert isinstance(stage.machine, ClassicGroup)
    stage.check()


@pytest.mark.parametrize("failure", [None, KafkaStorageError("disk")])
def test_a_static_member_that_comes_back_while_its_group_is_upgraded_is_told_to_join_again(
    failure: KafkaError | None,
) -> None:
    @staged
    async def play(stage: Stage) -> None:
        first = await stage.join(instance_id="i1", new_member_id="classic")
        await stage.sync(first.generation)
        second = asyncio.ensure_future(stage.join(instance_id="i2", new_member_id="other"))
        await turns()
        await stage.join("classic", instance_id="i1")
        generation = (await second).generation
        await stage.sync(generation)
        stage.log.free.clear()
        back = asyncio.ensure_future(
            stage.join(instance_id="i1", new_member_id="unheard", error=REBALANCE_IN_PROGRESS)
        )
        await turns()
        assert not back.done()
        enters = asyncio.ensure_future(stage.enter("m1"))
        await turns()
        stage.log.failure = failure
        stage.log.free.set()
        async with asyncio.timeout(10):
            assert (await back).error is REBALANCE_IN_PROGRESS
        if failure is not None:
            with pytest.raises(KafkaError):
                await enters
            stage.log.failure = None
            assert isinstance(stage.machine, ClassicGroup)
            return
        assert (await enters).epoch == generation + 1
        # Its place is its own: nobody waits for the session of the id that it never heard.
        again = await stage.join(instance_id="i1", new_member_id="heard")
        assert again.member_id == "heard"
        machine = stage.machine
        assert isinstance(machine, ConsumerGroup)
        assert set(machine.table.members) == {"heard", "other", "m1"}
        stage.check()

    play()


@staged
async def test_an_upgrade_that_cannot_be_stored_leaves_a_classic_group(stage: Stage) -> None:
    generation = (await stage.join()).generation
    await stage.sync(generation)
    stage.log.failure = KafkaStorageError("disk")
    with pytest.raises(KafkaError):
        await stage.enter("m1")
    stage.log.failure = None
    assert isinstance(stage.machine, ClassicGroup)
    answer = await stage.join()
    await stage.sync(answer.generation)
    stage.check()


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_group_that_could_not_be_stored_is_deleted_for_good(
    is_new: bool, is_written: bool
) -> None:
    @staged
    async def play(stage: Stage) -> None:
        if not is_new:
            await stage.sync((await stage.join()).generation)
        stage.log.failure = RequestTimedOut("late")
        stage.log.is_written_all_the_same = is_written
        with pytest.raises(KafkaError):
            await stage.enter("m1")
        stage.log.failure = None
        await stage.groups.leave("g", (Leaving("a stranger"),))  # who leaves it as it is
        assert await stage.groups.endings.delete("g") is ErrorCode.NONE
        assert stage.log.read() is None

    play()


@staged
async def test_a_downgrade_that_cannot_be_stored_leaves_nothing_when_it_is_deleted(
    stage: Stage,
) -> None:
    generation = (await stage.join()).generation
    await stage.sync(generation)
    await stage.enter("m1")
    stage.log.failure, stage.log.is_written_all_the_same = RequestTimedOut("late"), True
    with pytest.raises(KafkaError):
        await stage.beat("m1", -1)
    stage.log.failure = None
    assert isinstance(stage.machine, ConsumerGroup)
    await stage.groups.leave("g", (Leaving("classic"),))
    await stage.beat("m1", -1)
    assert await stage.groups.endings.delete("g") is ErrorCode.NONE
    assert stage.log.read() is None


@staged
async def test_an_empty_consumer_group_becomes_a_classic_one(stage: Stage) -> None:
    await stage.enter("m1")
    await stage.beat("m1", -1)
    generation = (await stage.join()).generation
    await stage.sync(generation)
    assert isinstance(stage.machine, ClassicGroup)
    stage.check()
    await stage.groups.leave("g", (Leaving("classic"),))
    assert (await stage.enter("m1")).epoch == 1
    stage.check()


@staged
async def test_a_group_that_moves_away_tells_who_waits(stage: Stage) -> None:
    stage.log.free.clear()
    waits = asyncio.ensure_future(stage.enter("m1"))
    for _ in range(3):
        await asyncio.sleep(0)
    stage.groups.shards.give_up(0)
    with pytest.raises(KafkaError) as told:
        await waits
    assert told.value.code is ErrorCode.NOT_COORDINATOR
    stage.log.free.set()
    await asyncio.sleep(0.01)


@staged
async def test_expressions_are_resolved_beside_the_heartbeats(stage: Stage) -> None:
    await stage.beat("m1", 0, regex="a|b", owned=frozenset(), rebalance_timeout_ms=30_000)
    answer = await stage.beat("m1", 1)
    while answer.assigned is None:
        await asyncio.sleep(0.01)
        answer = await stage.beat("m1", answer.epoch)
    assert len(answer.assigned) == 4
    stage.check()
