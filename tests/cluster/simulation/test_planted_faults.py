"""Faults that are planted into the objects of a broker: some history must end in a violation."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from plog.cluster.broker_registration import read_controller_epoch
from plog.cluster.control_fence import NO_BROKER_EPOCH
from plog.cluster.controller_events import Effect, Event, Feed, StatesWritten
from plog.cluster.partition import Partition
from plog.cluster.replica_manager import ReplicaManager
from plog.cluster.znodes import broker_path
from plog.coordinator.txn_events import Producer
from plog.protocol.messages.replication import (
    StopReplicaPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from plog.storage.log import Log
from plog.storage.log_manager import LogManager
from plog.storage.producer_state import Marker
from plog.types import NO_EPOCH, TopicPartition
from tests.cluster.simulation.broker import Process
from tests.cluster.simulation.cluster import Violation
from tests.cluster.simulation.real_replicas import RealReplicas
from tests.cluster.simulation.test_histories import Kind, play

MUTANT_HISTORIES = 3000
BROKEN_MUTANT = re.compile("(Type|Attribute|Name|Assertion)Error")
"""A fault of the mutant itself."""
NO_EARLIER_EPOCH = 1 << 20
"""A coordinator epoch that fences no other."""


# -- of controllers --------------------------------------------------------------------------------


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
    loop._topics._feed = feed


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


def orders_for_the_process_before_are_obeyed(process: Process) -> None:
    store, path = process.store, broker_path(process.broker.id)

    def has_epochs(controller_epoch: int, broker_epoch: int) -> bool:
        store.sync()
        found = store.exists(path)
        is_known = controller_epoch <= read_controller_epoch(store)
        return is_known and found is not None and broker_epoch <= found.czxid

    process.registration.has_epochs = has_epochs  # type: ignore[method-assign]


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
    events_are_fed_in_the_order_of_effects,
    deleted_topics_are_kept,
    conflicts_are_not_announced,
    earlier_lives_are_not_fenced,
    forged_epochs_are_believed,
    orders_for_the_process_before_are_obeyed,
    order_is_judged_by_a_server_that_lags,
    orders_that_were_sent_again_are_obeyed,
]


# -- of replicas -----------------------------------------------------------------------------------


def manager_of(process: Process) -> ReplicaManager:
    assert isinstance(process.replicas, RealReplicas)
    assert process.replicas.manager is not None
    return process.replicas.manager


def logs_of(process: Process) -> LogManager:
    return manager_of(process)._logs


def stale_leader_epochs_are_obeyed(process: Process) -> None:
    manager = manager_of(process)
    take_up = manager._take_up

    def forgetful(at: TopicPartition, *args: Any) -> Partition:
        known = manager.get(at)
        if known is not None:
            known._leadership = known._leadership._replace(leader_epoch=NO_EPOCH)
        return take_up(at, *args)

    manager._take_up = forgetful  # type: ignore[method-assign]


def replica_that_is_stopped_goes_on(process: Process) -> None:
    manager = manager_of(process)
    stop = manager._stop

    def stop_by_deletion_only(at: TopicPartition, state: StopReplicaPartitionState) -> bool:
        return state.delete_partition and stop(at, state)

    manager._stop = stop_by_deletion_only  # type: ignore[method-assign]


def strays_are_loaded(process: Process) -> None:
    assert isinstance(process.replicas, RealReplicas)
    process.replicas.find_strays = lambda topics: []  # type: ignore[method-assign]


def logs_outlive_their_topics(process: Process) -> None:
    """A recreated topic gets the log of the one before, under its own id."""
    logs = logs_of(process)

    def keep(at: TopicPartition) -> None:
        log = logs.get(at)
        assert log is not None
        log.topic_id = None

    logs.delete = keep  # type: ignore[method-assign]


def logs_lose_their_end(process: Process) -> None:
    manager = manager_of(process)
    log_of = manager.replica_logs.log_of

    def truncated(partition: Partition, *order: Any, **options: Any) -> Log:
        log = log_of(partition, *order, **options)
        log.truncate_to(max(0, log.native.log_end_offset - 1))
        return log

    manager.replica_logs.log_of = truncated  # type: ignore[method-assign]


def logs_are_not_writable(process: Process) -> None:
    manager_of(process)._give_role = (  # type: ignore[method-assign]
        lambda partition, leadership, log: partition.make_follower(leadership, log)
    )


# -- of transactions -------------------------------------------------------------------------------


def markers_of_earlier_connections_are_written(process: Process) -> None:
    process.txns.connections.is_late = lambda *connection: False  # type: ignore[method-assign]


def markers_of_earlier_coordinators_are_written(process: Process) -> None:
    assert isinstance(process.replicas, RealReplicas)
    write = process.replicas.append_marker

    def unfenced(partition: Partition, producer: Producer, marker: Marker) -> None:
        write(partition, producer, marker._replace(coordinator_epoch=NO_EARLIER_EPOCH))

    process.replicas.append_marker = unfenced  # type: ignore[method-assign]


MUTANTS_OF_REPLICAS = [
    stale_leader_epochs_are_obeyed,
    replica_that_is_stopped_goes_on,
    strays_are_loaded,
    logs_outlive_their_topics,
    logs_lose_their_end,
    logs_are_not_writable,
]
MUTANTS_OF_TRANSACTIONS = [
    markers_of_earlier_connections_are_written,
    markers_of_earlier_coordinators_are_written,
]
EVERY = [
    *((mutate, Kind.MODELS) for mutate in MUTANTS),
    *((mutate, Kind.DISKS) for mutate in MUTANTS_OF_REPLICAS),
    *((mutate, Kind.TRANSACTIONS) for mutate in MUTANTS_OF_TRANSACTIONS),
]


@pytest.mark.parametrize(
    ("mutate", "kind"), EVERY, ids=[f"{mutate.__name__}" for mutate, _ in EVERY]
)
def test_planted_fault_is_found(mutate: Callable[[Process], None], kind: Kind) -> None:
    check_is_found(mutate, kind, range(MUTANT_HISTORIES))


def check_is_found(mutate: Callable[[Process], None], kind: Kind, seeds: Iterable[int]) -> None:
    """Check that a history ends in a violation, and does not without the fault."""
    play(find(mutate, kind, seeds), kind)


def find(mutate: Callable[[Process], None], kind: Kind, seeds: Iterable[int]) -> int:
    """Return the first history that ends in a violation."""
    found = ((seed, text) for seed in seeds if (text := violation(seed, kind, mutate)) is not None)
    seed, text = next(found)
    print(f"history {seed}: {text}")
    assert not BROKEN_MUTANT.search(text), text
    return seed


def violation(seed: int, kind: Kind, mutate: Callable[[Process], None]) -> str | None:
    """Return what a history finds."""
    try:
        play(seed, kind, mutate)
    except Violation as found:
        return str(found).partition("\n")[0]
    return None
