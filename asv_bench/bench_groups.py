"""Groups: what 10,000 of them take, and how long a large one rebalances."""

from __future__ import annotations

import asyncio
import statistics
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bench_coordinator_rows import CLASSIC, CONSUMER, Row, Turn
from bench_machine import Watch, cpu_s_of, memory_of
from bench_members import Beats, ClassicMember, ConsumerMember, Member
from bench_servers import Plog, running
from bench_wire import PATIENCE_S, Wire, find_coordinator

from plog.errors import ErrorCode
from plog.ops.load import LoadError

if TYPE_CHECKING:
    from plog.ops.load import Figures

SETTLING_S = 1.0
MEMBERS: dict[str, type[Member]] = {CLASSIC: ClassicMember, CONSUMER: ConsumerMember}
M = TypeVar("M", bound=Member)


def interval_settings(interval_s: float) -> dict[str, int]:
    """Return by which settings a broker tells members of the consumer protocol their interval."""
    names = ("heartbeat_interval_ms", "min_heartbeat_interval_ms")
    return {f"group_consumer_{name}": round(1000 * interval_s) for name in names}


# --- many groups ----------------------------------------------------------------------------------


def measure_groups(turn: Turn, row: Row, _contestant: str) -> Figures:
    """Make groups of one member each and let them live; return memory and CPU time."""
    # An empty group would wait for more members, and whoever shares its connection with it.
    with running(
        turn.where, group_initial_rebalance_delay_ms=0, **interval_settings(row.interval_s)
    ) as server:
        if row.protocol == CONSUMER:  # by the classic one its leader assigns what nobody looks for
            server.create_topic(1)
        return asyncio.run(_many_groups(server, turn, row))


async def _many_groups(server: Plog, turn: Turn, row: Row) -> Figures:
    extent, interval_s = turn.extent, row.interval_s
    wires = [await Wire.open(server.port) for _ in range(min(extent.connections, extent.groups))]
    await find_coordinator(wires[0], "group-0")
    await asyncio.sleep(SETTLING_S)
    before = memory_of(server.pid)
    idle = Watch(server.pid)
    await asyncio.sleep(SETTLING_S)
    idle_cores = _cores(idle.figures())
    make = MEMBERS[row.protocol]
    members = [
        make(wires[number % len(wires)], f"group-{number}", 1) for number in range(extent.groups)
    ]
    joining = Watch(server.pid)

    async def enter(first: int) -> None:
        for member in members[first :: len(wires)]:
            await member.enter()

    await asyncio.gather(*(enter(first) for first in range(len(wires))))
    joined = joining.figures()
    beats = Beats(members, interval_s)
    # Each of them once, before anything counts.
    await beats.go_on(interval_s)
    beats.waits_s.clear()
    sent = beats.sent
    formed = memory_of(server.pid)
    watch = Watch(server.pid)
    await beats.go_on(extent.beating_s)
    taken = watch.figures()
    after = memory_of(server.pid)
    for wire in wires:
        wire.close()
    counted = beats.sent - sent
    at = statistics.quantiles(beats.waits_s, n=100)
    return {
        **taken,
        "groups": extent.groups,
        "connections": len(wires),
        "joining_s": joined["watched_s"],
        "joining_cpu_s": joined["server_cpu_s"],
        "idle_cores": idle_cores,
        **{
            f"{name}_{kind}": value
            for name, found in (("before", before), ("formed", formed), ("after", after))
            for kind, value in found._asdict().items()
        },
        "kb_per_group": 1000 * (after.pss_mb - before.pss_mb) / extent.groups,
        "heartbeats": counted,
        "heartbeats_per_s": counted / taken["watched_s"],
        "cpu_s_per_s": _cores(taken),
        "cpu_us_per_heartbeat": 1e6 * taken["server_cpu_s"] / counted,
        "p50_us": 1e6 * at[49],
        "p99_us": 1e6 * at[98],
    }


def _cores(figures: dict[str, float]) -> float:
    return figures["server_cpu_s"] / figures["watched_s"]


# --- one large group ------------------------------------------------------------------------------


class Group(ABC, Generic[M]):
    """Members that live as a client's do, each on a connection of its own.

    Args:
        spread_s: how long several take to come, one after another.
    """

    def __init__(self, port: int, make: type[M], interval_s: float, spread_s: float) -> None:
        self._port, self._make = port, make
        self._interval_s, self._spread_s = interval_s, spread_s
        self._lives: dict[M, asyncio.Task[None]] = {}
        self._wires: dict[M, Wire] = {}
        self._done = asyncio.Event()
        self.begun_at = self.heard_at = self.done_at = 0.0
        """When somebody last came or went, when the last one heard of it, and when the last one
        had its assignment."""

    async def come(self, count: int) -> None:
        """Have so many further members come, and wait until all have an assignment."""
        made: list[M] = []
        for _ in range(count):
            wire = await Wire.open(self._port)
            member = self._make(wire, "bench", len(self._lives) + len(made))
            self._wires[member] = wire
            made.append(member)

        def begin() -> None:
            for number, member in enumerate(made):
                after_s = self._spread_s * number / count
                self._lives[member] = asyncio.create_task(self._come_and_live(member, after_s))

        await self._until_assigned(begin)

    async def go(self) -> None:
        """Have the last one that came leave, and wait until all others have an assignment."""
        member, life = self._lives.popitem()
        life.cancel()
        leaving: list[asyncio.Task[None]] = []
        await self._until_assigned(lambda: leaving.append(asyncio.create_task(member.leave())))
        await leaving[0]
        self._wires.pop(member).close()

    async def _until_assigned(self, begin: Callable[[], None]) -> None:
        self._begin_anew()
        self._done.clear()
        self.begun_at = self.heard_at = time.monotonic()
        begin()
        done = asyncio.create_task(self._done.wait())
        ended, _ = await asyncio.wait(
            [done, *self._lives.values()],
            timeout=PATIENCE_S + 2 * self._interval_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if done in ended:
            return
        done.cancel()
        for life in ended:
            await life  # raises what ended it
        raise LoadError(f"{self._assigned()} of {len(self._lives)} members have an assignment")

    async def _come_and_live(self, member: M, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._live(member)

    def _look(self) -> None:
        """Note when the last one has its assignment."""
        if not self._done.is_set() and self._is_done():
            self.done_at = time.monotonic()
            self._done.set()

    def _is_done(self) -> bool:
        return self._assigned() == len(self._lives)

    async def rest(self, share: float) -> None:
        """Wait so that moments are spread over the interval of heartbeats."""
        await asyncio.sleep(self._interval_s * share)

    async def end(self) -> None:
        """Close all connections, without leaving."""
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        for wire in self._wires.values():
            wire.close()

    @abstractmethod
    async def _live(self, member: M) -> None:
        """Join, send heartbeats and do what they say, until cancelled. Raises LoadError."""

    @abstractmethod
    def _begin_anew(self) -> None:
        """Have nobody count as assigned, since somebody comes or goes."""

    @abstractmethod
    def _assigned(self) -> int:
        """Return how many members have an assignment since then."""


class ClassicGroup(Group[ClassicMember]):
    """A group by the classic protocol: who hears that it rebalances joins at once."""

    def __init__(self, port: int, interval_s: float) -> None:
        super().__init__(port, ClassicMember, interval_s, 0.0)
        self._by_generation: Counter[int] = Counter()

    async def rest(self, share: float) -> None:
        # Heartbeats go together since the last rebalance: let those pass.
        await super().rest(1 + share)

    def _begin_anew(self) -> None:
        self._by_generation.clear()

    def _assigned(self) -> int:
        return max(self._by_generation.values(), default=0)

    async def _live(self, member: ClassicMember) -> None:
        while True:
            if not await member.sync(await member.join()):
                continue
            self._by_generation[member.generation] += 1
            self._look()
            while True:
                await asyncio.sleep(self._interval_s)
                told = await member.hear()
                if told is ErrorCode.REBALANCE_IN_PROGRESS:
                    self.heard_at = time.monotonic()
                    break
                if told is not ErrorCode.NONE:
                    raise LoadError(f"a heartbeat is refused: {told.name}")


class ConsumerGroup(Group[ConsumerMember]):
    """A group by the consumer protocol (KIP-848): who hears what it may use tells at once.

    Nobody waits for all the others, so that heartbeats stay as they were spread when members came.
    Most members are told no more than the group's epoch, which ends their part: so the last one
    counts as having heard when it sends the heartbeat that is answered so.

    Args:
        partitions: of the topic, as many as members at least.
    """

    def __init__(self, port: int, interval_s: float, partitions: int) -> None:
        super().__init__(port, ConsumerMember, interval_s, interval_s)
        self._partitions = list(range(partitions))
        self._last_epoch = 0

    def _begin_anew(self) -> None:
        self._last_epoch = max((member.epoch for member in self._lives), default=0)

    def _assigned(self) -> int:
        """Return how many are at the newest epoch, and have told that they own what is theirs."""
        newest = max((member.epoch for member in self._lives), default=0)
        if newest == self._last_epoch:
            return 0
        return sum(
            member.epoch == newest and member.owned == member.assigned for member in self._lives
        )

    def _is_done(self) -> bool:
        # Who waits for another's partition is at the newest epoch too, with the rest.
        owned = (number for member in self._lives for number in member.owned)
        return super()._is_done() and sorted(owned) == self._partitions

    async def _live(self, member: ConsumerMember) -> None:
        await member.join()
        while True:
            await member.tell()
            self._look()
            while True:
                await asyncio.sleep(self._interval_s)
                asked_at = time.monotonic()
                if await member.hear():
                    self.heard_at = asked_at
                    break


def measure_rebalance(turn: Turn, row: Row, _contestant: str) -> Figures:
    """Have a member join and leave a large group again and again; return how long each took."""
    with running(
        turn.where,
        group_initial_rebalance_delay_ms=turn.extent.delay_ms,
        **interval_settings(row.interval_s),
    ) as server:
        group: Group[Any]
        if row.protocol == CONSUMER:
            partitions = turn.extent.members + 1
            server.create_topic(partitions)
            group = ConsumerGroup(server.port, row.interval_s, partitions)
        else:
            group = ClassicGroup(server.port, row.interval_s)
        return asyncio.run(_rebalances(server, turn, group))


async def _rebalances(server: Plog, turn: Turn, group: Group[Any]) -> Figures:
    extent = turn.extent
    first = await Wire.open(server.port)
    await find_coordinator(first, "bench")
    first.close()
    watch = Watch(server.pid)
    changes: dict[str, Callable[[], Awaitable[None]]] = {
        "join": lambda: group.come(1),
        "leave": group.go,
    }
    found: dict[str, list[float]] = {
        f"{what}_{figure}_s": [] for what in changes for figure in ("whole", "after_heard", "cpu")
    }
    try:
        await group.come(extent.members)
        forming_s = watch.figures()["watched_s"]
        for number in range(extent.rebalances):
            for half, (what, change) in enumerate(changes.items()):
                await group.rest((2 * number + half + 0.5) / (2 * extent.rebalances))
                cpu_s = cpu_s_of(server.pid)
                await change()
                found[f"{what}_whole_s"].append(group.done_at - group.begun_at)
                found[f"{what}_after_heard_s"].append(group.done_at - group.heard_at)
                found[f"{what}_cpu_s"].append(cpu_s_of(server.pid) - cpu_s)
        return {**watch.figures(), **found, "members": extent.members, "forming_s": forming_s}
    finally:
        await group.end()
