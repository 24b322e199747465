"""Histories of a cluster that a seed draws: faults of every kind, then peace, then all must agree.

`--long` plays 5,000 of them. A failed one is played again by its number alone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import pytest

from plog.cluster.controller_events import Event, Feed
from plog.cluster.topic_admin import NewTopic
from plog.errors import KafkaError
from plog.protocol.messages.replication import UpdateMetadataRequest, UpdateMetadataResponse
from tests.cluster.simulation.cluster import Process, SimCluster, Violation
from tests.cluster.simulation.zookeeper import SESSION_MS

HISTORIES, LONG_HISTORIES = 150, 5_000
AT_ONCE = 25
MUTANT_HISTORIES = 3000


def create(cluster: SimCluster, rng: random.Random) -> None:
    name = f"t{rng.randint(0, 4)}"
    quietly(lambda: cluster.topics.create(NewTopic(name, rng.randint(1, 3), rng.randint(1, 3))))


def grow(cluster: SimCluster, rng: random.Random) -> None:
    quietly(lambda: cluster.topics.create_partitions(f"t{rng.randint(0, 4)}", rng.randint(2, 5)))


def delete(cluster: SimCluster, rng: random.Random) -> None:
    quietly(lambda: cluster.topics.delete(f"t{rng.randint(0, 4)}"))


def quietly(call: Callable[[], object]) -> None:
    """Ask as an administrator does, whose request may be refused."""
    with suppress(KafkaError):
        call()


def kill(cluster: SimCluster, rng: random.Random) -> None:
    rng.choice(cluster.brokers).kill()


def start(cluster: SimCluster, rng: random.Random) -> None:
    rng.choice(cluster.brokers).start()


def some(cluster: SimCluster, rng: random.Random) -> Process | None:
    return rng.choice(cluster.brokers).process


def suspend(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None and process.is_running():
        process.suspend(rng.choice([500, SESSION_MS, 3 * SESSION_MS]))


def disconnect(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        process.store.disconnect(rng.choice([50, 2_000, 2 * SESSION_MS]))


def expire(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        cluster.zookeeper.expire(process.store.session_id)
        process.store.disconnect(50)


def lose_answers(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        process.store.faults = rng.choice([0.0, 0.05, 0.3])


def crash(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        process.store.crash_at = process.store.operations + rng.randint(1, 40)


def pause(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        process.store.pause_at = process.store.operations + rng.randint(1, 40)


def cut(cluster: SimCluster, rng: random.Random) -> None:
    cluster.cut.add(frozenset(rng.sample(range(len(cluster.brokers)), 2)))


def join(cluster: SimCluster, rng: random.Random) -> None:
    cluster.cut.clear()


def stop_zookeeper(cluster: SimCluster, rng: random.Random) -> None:
    cluster.zookeeper.is_up = False
    cluster.scheduler.after(
        rng.choice([500, 3 * SESSION_MS]),
        "operator",
        lambda: setattr(cluster.zookeeper, "is_up", True),
    )


ACTIONS = [create, create, create, grow, delete, kill, start, start, suspend, disconnect, expire]
ACTIONS += [lose_answers, crash, pause, cut, join, stop_zookeeper]


def play(seed: int, mutate: Callable[[Process], None] | None = None) -> SimCluster:
    """Play one history. Raises Violation."""
    cluster = SimCluster(seed, mutate=mutate)
    rng = cluster.random
    cluster.scheduler.run(2_000)
    for _ in range(rng.randint(5, 20)):
        action = rng.choice(ACTIONS)
        if cluster.zookeeper.is_up or action not in (create, grow, delete):
            cluster.scheduler.note(f"-- {action.__name__}")
            action(cluster, rng)
        cluster.scheduler.run(rng.choice([0, 30, 300, 3_000, 15_000]))
    cluster.heal()
    try:
        cluster.check_converged()
    except Violation as violation:
        lines = "\n".join(cluster.scheduler.log[-60:])
        raise Violation(f"history {seed}: {violation}\n{lines}") from None
    return cluster


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.long] if first >= HISTORIES else [])
        for first in range(0, LONG_HISTORIES, AT_ONCE)
    ],
)
def test_brokers_agree_after_any_history(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        play(seed)


# -- faults that must be found ---------------------------------------------------------------------


def writes_are_not_fenced(process: Process) -> None:
    process.controller._nodes._fenced = process.store.multi  # type: ignore[method-assign]


def orders_are_not_fenced(process: Process) -> None:
    process.fence.admit = lambda *epochs: None  # type: ignore[method-assign]


def stands_only_once(process: Process) -> None:
    stands = iter([process.stand])
    process.stand = lambda: next(stands, lambda: None)()  # type: ignore[method-assign]


def role_is_resumed_unread(process: Process) -> None:
    process.controller._nodes.resume = lambda: True  # type: ignore[method-assign]


def election_that_waits_stands_for_the_next(process: Process) -> None:
    loop = process.controller

    def stand() -> None:
        loop._stands = True
        process.enqueue("elect", loop.elect)

    loop.stand = stand  # type: ignore[method-assign]


def machine_outlives_its_election(process: Process) -> None:
    loop = process.controller
    read = loop._nodes.read_controller

    def read_controller() -> int | None:
        active = read()
        while active is None and loop.machine is not None:
            active = loop._nodes.try_elect()
        return active

    loop._nodes.read_controller = read_controller  # type: ignore[method-assign]


def events_are_fed_in_the_order_of_effects(process: Process) -> None:
    loop = process.controller

    def feed(event: Event) -> None:
        events = deque([event] if loop.machine is not None else [])
        while events:
            assert loop.machine is not None
            for effect in loop.machine.on(events.popleft()):
                answer = effect.event if isinstance(effect, Feed) else loop._execute(effect)
                if answer is not None:
                    events.append(answer)

    loop.feed = feed  # type: ignore[method-assign]


def deleted_topics_are_kept(process: Process) -> None:
    apply = process.metadata.apply

    def without_type(request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        request.type = 0
        return apply(request)

    process.metadata.apply = without_type  # type: ignore[method-assign]


MUTANTS = [
    writes_are_not_fenced,
    orders_are_not_fenced,
    stands_only_once,
    role_is_resumed_unread,
    election_that_waits_stands_for_the_next,
    machine_outlives_its_election,
    events_are_fed_in_the_order_of_effects,
    deleted_topics_are_kept,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_planted_fault_is_found(mutate: Callable[[Process], None]) -> None:
    for seed in range(MUTANT_HISTORIES):
        try:
            play(seed, mutate)
        except Violation:
            return
    raise AssertionError(f"{MUTANT_HISTORIES} histories did not find it")
