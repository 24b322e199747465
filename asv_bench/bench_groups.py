"""Groups: what 10,000 of them take, and how long a large one rebalances."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench_coordinator_rows import Row, Turn
from bench_machine import Watch, cpu_s_of, memory_of
from bench_members import PATIENCE_S, Beats, Member, Wire, find_coordinator
from bench_servers import Plog, running

from plog.errors import ErrorCode
from plog.ops.load import LoadError

if TYPE_CHECKING:
    from plog.ops.load import Figures

SETTLING_S = 1.0


# --- many groups ----------------------------------------------------------------------------------


def measure_groups(turn: Turn, row: Row, _contestant: str) -> Figures:
    """Make groups of one member each and let them live; return memory and CPU time."""
    # An empty group would wait for more members, and whoever shares its connection with it.
    with running(turn.where, group_initial_rebalance_delay_ms=0) as server:
        return asyncio.run(_many_groups(server, turn, row.interval_s))


async def _many_groups(server: Plog, turn: Turn, interval_s: float) -> Figures:
    extent = turn.extent
    wires = [await Wire.open(server.port) for _ in range(min(extent.connections, extent.groups))]
    await find_coordinator(wires[0], "group-0")
    await asyncio.sleep(SETTLING_S)
    before = memory_of(server.pid)
    idle = Watch(server.pid)
    await asyncio.sleep(SETTLING_S)
    idle_cores = _cores(idle.figures())
    members = [
        Member(wires[number % len(wires)], f"group-{number}", 1) for number in range(extent.groups)
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


class Group:
    """Members that live as a client's do, each on a connection of its own.

    A member whose heartbeat says that the group rebalances joins at once.
    """

    def __init__(self, port: int, interval_s: float) -> None:
        self._port, self._interval_s = port, interval_s
        self._lives: dict[Member, asyncio.Task[None]] = {}
        self._wires: dict[Member, Wire] = {}
        self._assigned: Counter[int] = Counter()  # by generation
        self._done = asyncio.Event()
        self.begun_at = self.heard_at = self.done_at = 0.0
        """When somebody last came or went, when the last one was told to join again because of it,
        and when the last one had its assignment."""

    async def come(self, count: int) -> None:
        """Have so many further members come, at once, and wait until all have an assignment."""
        made = []
        for _ in range(count):
            wire = await Wire.open(self._port)
            member = Member(wire, "bench", len(self._lives) + len(made))
            self._wires[member] = wire
            made.append(member)

        def begin() -> None:
            for member in made:
                self._lives[member] = asyncio.create_task(self._live(member))

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
        self._assigned.clear()
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
        count = max(self._assigned.values(), default=0)
        raise LoadError(f"{count} of {len(self._lives)} members have an assignment")

    async def _live(self, member: Member) -> None:
        while True:
            if not await member.sync(await member.join()):
                continue
            self._assigned[member.generation] += 1
            if self._assigned[member.generation] == len(self._lives):
                self.done_at = time.monotonic()
                self._done.set()
            while True:
                await asyncio.sleep(self._interval_s)
                told = await member.hear()
                if told is ErrorCode.REBALANCE_IN_PROGRESS:
                    self.heard_at = time.monotonic()
                    break
                if told is not ErrorCode.NONE:
                    raise LoadError(f"a heartbeat is refused: {told.name}")

    async def end(self) -> None:
        """Close all connections, without leaving."""
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        for wire in self._wires.values():
            wire.close()


def measure_rebalance(turn: Turn, row: Row, _contestant: str) -> Figures:
    """Have a member join and leave a large group again and again; return how long each took."""
    with running(turn.where, group_initial_rebalance_delay_ms=turn.extent.delay_ms) as server:
        return asyncio.run(_rebalances(server, turn, row.interval_s))


async def _rebalances(server: Plog, turn: Turn, interval_s: float) -> Figures:
    extent = turn.extent
    first = await Wire.open(server.port)
    await find_coordinator(first, "bench")
    first.close()
    group = Group(server.port, interval_s)
    watch = Watch(server.pid)
    found: dict[str, list[float]] = {
        f"{what}_{figure}_s": []
        for what in ("join", "leave")
        for figure in ("whole", "after_heard", "cpu")
    }
    try:
        await group.come(extent.members)
        forming_s = watch.figures()["watched_s"]
        for number in range(extent.rebalances):
            for half, (what, change) in enumerate(
                (("join", lambda: group.come(1)), ("leave", group.go))
            ):
                # Heartbeats go together since the last rebalance: moments are spread between them.
                share = (2 * number + half + 0.5) / (2 * extent.rebalances)
                await asyncio.sleep(interval_s * (1 + share))
                cpu_s = cpu_s_of(server.pid)
                await change()
                found[f"{what}_whole_s"].append(group.done_at - group.begun_at)
                found[f"{what}_after_heard_s"].append(group.done_at - group.heard_at)
                found[f"{what}_cpu_s"].append(cpu_s_of(server.pid) - cpu_s)
        return {**watch.figures(), **found, "members": extent.members, "forming_s": forming_s}
    finally:
        await group.end()
