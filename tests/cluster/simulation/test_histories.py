"""Histories of a cluster that a seed draws: faults of every kind, then peace, then all must agree.

`--long` plays 5,000 of them. A failed one is played again by its number alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from plog.cluster import control_requests, znodes
from plog.cluster.control_fence import NO_BROKER_EPOCH
from plog.cluster.control_requests import Sender
from plog.cluster.controller_context import LiveBroker
from plog.cluster.controller_events import Effect, Event, SendUpdateMetadata, StatesWritten
from plog.cluster.store import StoreError
from plog.cluster.topic_admin import NewTopic
from plog.cluster.znodes import Endpoint
from plog.errors import KafkaError
from plog.protocol.messages.replication import UpdateMetadataRequest, UpdateMetadataResponse
from tests.cluster.simulation.broker import Process
from tests.cluster.simulation.cluster import SimCluster, Violation
from tests.cluster.simulation.zookeeper import SESSION_MS

Action = Callable[[SimCluster, random.Random], None]

HISTORIES, LONG_HISTORIES = 150, 5_000
AT_ONCE = 25
MUTANT_HISTORIES = 3000
FORGED = 1 << 20
"""An epoch of no controller and no broker."""


def create(cluster: SimCluster, rng: random.Random) -> None:
    topic = NewTopic(f"t{rng.randint(0, 4)}", rng.randint(1, 3), rng.choice([1, 2, 2, 3]))
    quietly(lambda: cluster.topics.create(topic))


def grow(cluster: SimCluster, rng: random.Random) -> None:
    quietly(lambda: cluster.topics.create_partitions(f"t{rng.randint(0, 4)}", rng.randint(2, 5)))


def delete(cluster: SimCluster, rng: random.Random) -> None:
    quietly(lambda: cluster.topics.delete(f"t{rng.randint(0, 4)}"))


def quietly(call: Callable[[], object]) -> None:
    """Ask as an administrator does, whose request may be refused."""
    with suppress(KafkaError, StoreError):
        call()


def kill(cluster: SimCluster, rng: random.Random) -> None:
    rng.choice(cluster.brokers).kill()


def start(cluster: SimCluster, rng: random.Random) -> None:
    rng.choice(cluster.brokers).start()


def some(cluster: SimCluster, rng: random.Random) -> Process | None:
    """Choose a process; half of the time it is the controller's, which does most."""
    active = [broker for broker in cluster.brokers if broker.is_controller]
    return rng.choice(active if active and rng.random() < 0.5 else cluster.brokers).process


def suspend(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None and process.is_running():
        process.suspend(rng.choice([500, SESSION_MS, 3 * SESSION_MS]))


def disconnect(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        process.store.disconnect(rng.choice([50, 2_000, 2 * SESSION_MS]))


def expire(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        cluster.zookeeper.expire(process.store.session_id)
        process.store.disconnect(rng.choice([50, 2_000]))


def lose_answers(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        process.store.faults = rng.choice([0.0, 0.05, 0.3])


def lose_server(cluster: SimCluster, rng: random.Random) -> None:
    if (process := some(cluster, rng)) is not None:
        process.store.lose_at = process.store.operations + rng.randint(1, 40)
        process.store.lag(3_000)  # the next one is behind


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


def lag(cluster: SimCluster, rng: random.Random) -> None:
    process = some(cluster, rng)
    store = cluster.admin if process is None else process.store
    store.lag(rng.choice([0, 300, 3_000, 10_000]))


def forge(cluster: SimCluster, rng: random.Random) -> None:
    """Send an order by unknown epochs, as a controller of another cluster might."""
    target, forger = some(cluster, rng), rng.choice(cluster.brokers).id
    if target is None or not target.is_listening or not target.is_running():
        return
    epochs = rng.choice([(FORGED, 0), (0, FORGED), (FORGED, FORGED)])
    sender = Sender(forger, max(epochs[0], cluster.invariants.controller_epoch), "PLAINTEXT")
    live = (LiveBroker(forger, 0, (Endpoint("PLAINTEXT", "h", 9000),), None),)
    update = SendUpdateMetadata((target.broker.id,), (), live, is_full=True)
    broker_epoch = max(epochs[1], target.fence.broker_epoch)
    order = control_requests.update_metadata(sender, broker_epoch, update)
    target.arrive(order, target.accept(), lambda response: None)


def move_lead(cluster: SimCluster, rng: random.Random) -> None:
    """Give a preferred replica the lead, as a controller does whose orders are all lost."""
    written = cluster.written()
    led = [
        at
        for at, (_, state, replicas) in written.items()
        if state.leader not in (-1, replicas[0]) and replicas[0] in state.isr
    ]
    if led:
        at = rng.choice(led)
        _, state, replicas = written[at]
        moved = replace(state, leader=replicas[0], leader_epoch=state.leader_epoch + 1)
        cluster.scheduler.note(f"{at}: {moved}")
        quietly(lambda: cluster.admin.set(znodes.partition_state_path(at), moved.encode()))


def elect_again(cluster: SimCluster, rng: random.Random) -> None:
    """Remove the controller's node, as operators do to have another one elected."""
    quietly(lambda: cluster.admin.delete(znodes.CONTROLLER))


BY_ADMIN = [create, grow, delete, move_lead, elect_again]
FAULTS = [
    kill,
    start,
    suspend,
    disconnect,
    expire,
    lose_answers,
    lose_server,
    crash,
    pause,
    cut,
    join,
]
FAULTS += [stop_zookeeper, lag, forge]
WEIGHTS = [0, 1, 1, 4]
"""Drawn for each kind of action: histories of few kinds go deeper than those of all."""
PAUSES_MS = [[0, 30, 300], [30, 300, 1_000, 3_000], [0, 300, 3_000, 10_000]]
"""Between actions; drawn for each history."""


def draw_actions(rng: random.Random) -> list[Action]:
    """Return the actions of a history, each as often as it is likely."""
    weights = {action: rng.choice(WEIGHTS) for action in BY_ADMIN + FAULTS}
    weights[create] += 2
    weights[start] += 1
    return [action for action, weight in weights.items() for _ in range(weight)]


def play(seed: int, mutate: Callable[[Process], None] | None = None) -> SimCluster:
    """Play one history. Raises Violation."""
    cluster = SimCluster(seed, count=2 + seed % 2, mutate=mutate)
    rng = cluster.random
    cluster.slow_orders = rng.choice([0.0, 0.05, 0.3])
    actions, pauses_ms = draw_actions(rng), rng.choice(PAUSES_MS)
    cluster.scheduler.run(2_000)
    for _ in range(rng.randint(10, 40)):
        action = rng.choice(actions)
        if cluster.zookeeper.is_up or action not in BY_ADMIN:
            cluster.scheduler.note(f"-- {action.__name__}")
            action(cluster, rng)
        cluster.scheduler.run(rng.choice(pauses_ms))
    try:
        cluster.check_steps()
        cluster.heal()
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


def without_sync(process: Process, owner: object, method: str) -> None:
    """Have a method believe the server that it reads from."""
    call = getattr(owner, method)

    def unsynced(*args: object) -> object:
        process.store.syncs = False
        try:
            return call(*args)
        finally:
            process.store.syncs = True

    setattr(owner, method, unsynced)


def writes_are_not_fenced(process: Process) -> None:
    process.controller._nodes._fenced = process.store.multi  # type: ignore[method-assign]


def orders_are_not_fenced(process: Process) -> None:
    process.fence.admit = lambda *epochs: None  # type: ignore[method-assign]


def stands_only_once(process: Process) -> None:
    stands = iter([process.stand])
    process.stand = lambda: next(stands, lambda: None)()  # type: ignore[method-assign]


def role_is_resumed_unread(process: Process) -> None:
    process.controller._nodes.resume = lambda: True  # type: ignore[method-assign]


def role_is_resumed_by_a_server_that_lags(process: Process) -> None:
    without_sync(process, process.controller._nodes, "resume")


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


def deleted_topics_are_kept(process: Process) -> None:
    apply = process.metadata.apply

    def without_type(request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        request.type = 0
        return apply(request)

    process.metadata.apply = without_type  # type: ignore[method-assign]


def conflicts_are_not_announced(process: Process) -> None:
    loop = process.controller
    execute = loop._execute

    def without_conflicts(effect: Effect) -> Event | None:
        answer = execute(effect)
        if isinstance(answer, StatesWritten) and loop.machine is not None:
            found = {at: one for at, one in answer.conflicts.items() if one is not None}
            loop.machine.context.states |= found
        return answer

    loop._execute = without_conflicts  # type: ignore[method-assign]


def earlier_lives_are_not_fenced(process: Process) -> None:
    admit = process.fence.admit

    def without_broker_epoch(controller_epoch: int, broker_epoch: int) -> None:
        admit(controller_epoch, NO_BROKER_EPOCH)

    process.fence.admit = without_broker_epoch  # type: ignore[method-assign]


def forged_epochs_are_believed(process: Process) -> None:
    process.registration.has_epochs = lambda *epochs: True  # type: ignore[method-assign]


def order_is_judged_by_a_server_that_lags(process: Process) -> None:
    without_sync(process, process.registration, "has_epochs")


def orders_that_were_sent_again_are_obeyed(process: Process) -> None:
    process.gate._connections.is_late = lambda *connection: False  # type: ignore[method-assign]


MUTANTS = [
    writes_are_not_fenced,
    orders_are_not_fenced,
    stands_only_once,
    role_is_resumed_unread,
    role_is_resumed_by_a_server_that_lags,
    election_that_waits_stands_for_the_next,
    machine_outlives_its_election,
    deleted_topics_are_kept,
    conflicts_are_not_announced,
    earlier_lives_are_not_fenced,
    forged_epochs_are_believed,
    order_is_judged_by_a_server_that_lags,
    orders_that_were_sent_again_are_obeyed,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_planted_fault_is_found(mutate: Callable[[Process], None]) -> None:
    for seed in range(MUTANT_HISTORIES):
        try:
            play(seed, mutate)
        except Violation:
            return
    raise AssertionError(f"{MUTANT_HISTORIES} histories did not find it")
