"""Histories of a cluster that a seed draws: faults of every kind, then peace, then all must agree.

Every run plays 10,000 of replicas and 500 of controllers and logs. `--long` plays 20,000 and 5,000.
A failed history is played again by its number and kind alone.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from enum import Enum
from unittest.mock import patch
from uuid import UUID

import pytest

from plog.cluster import control_requests, controller_store, topic_admin, znodes
from plog.cluster.control_requests import Sender
from plog.cluster.controller_context import LiveBroker
from plog.cluster.controller_events import ElectionsAsked, ElectionType, SendUpdateMetadata
from plog.cluster.store import StoreError
from plog.cluster.topic_admin import NewTopic
from plog.cluster.znodes import Endpoint
from plog.errors import KafkaError
from tests.cluster.simulation.broker import FLUSH_MS, Process
from tests.cluster.simulation.cluster import SimCluster, Violation
from tests.cluster.simulation.zookeeper import SESSION_MS
from tests.memory import directory_in_memory

Action = Callable[[SimCluster, random.Random], None]

HISTORIES, LONG_HISTORIES = 500, 5_000
AT_ONCE = 25
REPLICA_HISTORIES, LONG_REPLICA_HISTORIES = 10_000, 20_000
REPLICAS_AT_ONCE = 100
IN_FULL = 10
"""Every tenth history has all of its peace: the others end soon after everything agrees."""
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


def stop(cluster: SimCluster, rng: random.Random) -> None:
    rng.choice(cluster.brokers).stop()


def lose_time(cluster: SimCluster, rng: random.Random) -> None:
    """Have a broker's directory become as it was before a topic was deleted.

    Not amid a deletion, of which the controller would believe that this broker has done its part.
    """
    broker = rng.choice(cluster.brokers)
    broker.kill()
    broker.back_up()
    broker.start()
    names = sorted({at.topic for at in broker.logs})
    if names:
        quietly(lambda: cluster.topics.delete(rng.choice(names)))

    def restore() -> None:
        if cluster.zookeeper.tree.children(znodes.DELETE_TOPICS):
            return
        broker.kill()
        broker.restore()
        broker.start()

    cluster.scheduler.after(rng.choice([3_000, 20_000]), "operator", restore)


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
        registered = cluster.zookeeper.tree.exists(znodes.broker_path(replicas[0]))
        moved = replace(
            state,
            leader=replicas[0],
            leader_epoch=state.leader_epoch + 1,
            leader_broker_epoch=registered.czxid if registered else -1,
        )
        cluster.scheduler.note(f"{at}: {moved}")
        path = znodes.partition_state_path(at)
        _, stat = cluster.zookeeper.tree.get(path)
        quietly(lambda: cluster.admin.set(path, moved.encode(), stat.version))


def swap_lead(cluster: SimCluster, rng: random.Random) -> None:
    """Elect the preferred leader of a partition, which then loses its session soon.

    The leader before may hear of neither, until it leads again.
    """
    led = [
        (at, state.leader, replicas[0])
        for at, (_, state, replicas) in cluster.written().items()
        if state.leader not in (-1, replicas[0]) and replicas[0] in state.isr
    ]
    active = [broker.process for broker in cluster.brokers if broker.is_controller]
    if not led or not active or active[0] is None:
        return
    at, leader, preferred = rng.choice(led)
    if rng.random() < 0.5:
        cluster.slow_brokers.add(leader)
    ask = active[0].controller.ask
    active[0].enqueue(
        "",
        lambda: ask(lambda token: ElectionsAsked(ElectionType.PREFERRED, (at,), token), Future()),
    )

    def expire() -> None:
        process = cluster.brokers[preferred].process
        if process is not None:
            cluster.zookeeper.expire(process.store.session_id)
            process.store.disconnect(50)
        cluster.slow_brokers.discard(leader)

    cluster.scheduler.after(rng.choice([300, 2_000]), "operator", expire)


def elect_again(cluster: SimCluster, rng: random.Random) -> None:
    """Remove the controller's node, as operators do to have another one elected."""
    quietly(lambda: cluster.admin.delete(znodes.CONTROLLER))


def unregister(cluster: SimCluster, rng: random.Random) -> None:
    """Remove a broker's registration, as by mistake."""
    path = znodes.broker_path(rng.choice(cluster.brokers).id)
    quietly(lambda: cluster.admin.delete(path))


def lose_power(cluster: SimCluster, rng: random.Random) -> None:
    rng.choice(cluster.brokers).lose_power()


def lose_all_power(cluster: SimCluster, rng: random.Random) -> None:
    for broker in cluster.brokers:
        broker.lose_power()


def replace_disk(cluster: SimCluster, rng: random.Random) -> None:
    """Replace a disk whose records others have, soon after it was to count, if there is one."""
    joining = [
        cluster.brokers[broker_id]
        for broker in cluster.brokers
        if broker.process is not None
        for broker_id in broker.process.joining()
    ]
    broker = rng.choice(joining or cluster.brokers)
    if cluster.can_spare(broker.id):
        broker.lose_disk()
        broker.start()


BY_ADMIN = [create, grow, delete, move_lead, elect_again, unregister]
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
FLUSHES_MS = [FLUSH_MS, FLUSH_MS, 3_000]
"""Drawn for each broker: a follower's disk may be far ahead of the leader's."""


class Kind(Enum):
    """What a history has beside controllers and sessions. Each kind has its own seeds."""

    MODELS = "models of replicas, without logs"
    DISKS = "logs, which may go back to before a topic was deleted"
    TRANSACTIONS = "logs and transactions"
    REPLICAS = "models of logs that followers fetch"


ON_DISKS: dict[Kind, list[Action]] = {
    Kind.MODELS: [],
    Kind.DISKS: [stop, lose_time],
    Kind.TRANSACTIONS: [stop],
    Kind.REPLICAS: [stop, lose_power, lose_all_power, replace_disk, swap_lead],
}


def draw_actions(rng: random.Random, kind: Kind) -> list[Action]:
    """Return the actions of a history, each as often as it is likely."""
    possible = BY_ADMIN + FAULTS + ON_DISKS[kind]
    weights = {action: rng.choice(WEIGHTS) for action in possible}
    weights[create] += 2
    weights[start] += 1
    return [action for action, weight in weights.items() for _ in range(weight)]


def play(seed: int, kind: Kind, mutate: Callable[[Process], None] | None = None) -> list[str]:
    """Play one history; return its log. Raises Violation."""
    ids = random.Random(seed)
    with ExitStack() as undo:
        for module in (topic_admin, controller_store):
            undo.enter_context(
                patch.object(module, "new_topic_id", lambda: UUID(int=ids.getrandbits(128)))
            )
        directory = None
        if kind in (Kind.DISKS, Kind.TRANSACTIONS):
            directory = undo.enter_context(directory_in_memory())
        cluster = SimCluster(
            seed,
            count=2 + seed % 2,
            mutate=mutate,
            directory=directory,
            is_replicated=kind is Kind.REPLICAS,
        )
        undo.callback(cluster.close)
        if kind is Kind.TRANSACTIONS:
            cluster.transactions.start()
        _play(cluster, seed, kind)
        return cluster.scheduler.log


def _play(cluster: SimCluster, seed: int, kind: Kind) -> None:
    rng = cluster.random
    cluster.slow_orders = rng.choice([0.0, 0.05, 0.3])
    for broker in cluster.brokers:
        broker.flush_ms = rng.choice(FLUSHES_MS)
    actions = draw_actions(rng, kind)
    pauses_ms = rng.choice(PAUSES_MS)
    cluster.scheduler.run(2_000)
    for _ in range(rng.randint(10, 40)):
        action = rng.choice(actions)
        if cluster.zookeeper.is_up or action not in BY_ADMIN:
            cluster.scheduler.note(f"-- {action.__name__}")
            action(cluster, rng)
        cluster.scheduler.run(rng.choice(pauses_ms))
    try:
        cluster.check_steps()
        # Where disks go back in time, they do so up to 20 s after all is well.
        cluster.heal(ends_early=kind is Kind.REPLICAS and seed % IN_FULL != 0)
        cluster.check_converged()
    except Violation as violation:
        lines = "\n".join(cluster.scheduler.log[-60:])
        raise Violation(f"history {seed}: {violation}\n{lines}") from None


@pytest.fixture(autouse=True)
def _without_log_lines() -> Iterator[None]:
    """Spare pytest the brokers' log lines, thousands in a test: a history has its own log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.long] if first >= HISTORIES else [])
        for first in range(0, LONG_HISTORIES, AT_ONCE)
    ],
)
def test_brokers_agree_after_any_history(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        play(seed, Kind.DISKS if seed % 4 < 2 else Kind.TRANSACTIONS)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.long] if first >= REPLICA_HISTORIES else [])
        for first in range(0, LONG_REPLICA_HISTORIES, REPLICAS_AT_ONCE)
    ],
)
def test_no_record_that_clients_know_is_lost_after_any_history(first: int) -> None:
    for seed in range(first, first + REPLICAS_AT_ONCE):
        play(seed, Kind.REPLICAS)
