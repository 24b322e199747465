"""The controller is killed, or suspended past its session, at every operation that it does."""

from __future__ import annotations

import pytest

from plog.cluster.topic_admin import NewTopic
from tests.cluster.simulation.cluster import SimCluster
from tests.cluster.simulation.zookeeper import SESSION_MS

SEED = 7


def first_controller() -> int:
    cluster = SimCluster(SEED)
    cluster.scheduler.run(1_000)
    return next(broker.id for broker in cluster.brokers if broker.is_controller)


FIRST = first_controller()


def rule(how: str = "", at: int = -1) -> tuple[SimCluster, int]:
    """Have topics come, grow and go and a broker lost, while the first controller rules.

    Return the cluster, and how many operations that controller did.
    """
    cluster = SimCluster(SEED)
    first = cluster.brokers[FIRST]
    assert first.process is not None
    process = first.process
    if how:
        setattr(process.store, how, at)
    run = cluster.scheduler.run
    run(1_000)
    cluster.topics.create(NewTopic("stays", 3, 2))
    cluster.topics.create(NewTopic("goes", 2, 2))
    run(1_000)
    cluster.topics.create_partitions("stays", 4)
    run(500)
    cluster.topics.delete("goes")
    run(1_000)
    cluster.brokers[FIRST - 1].kill()
    run(2 * SESSION_MS)
    cluster.brokers[FIRST - 1].start()
    run(2_000)
    return cluster, process.store.operations


def operations() -> int:
    cluster, count = rule()
    assert cluster.brokers[FIRST].is_controller
    cluster.check_converged()
    return count


OPERATIONS = operations()


@pytest.mark.parametrize("how", ["crash_at", "pause_at"])
def test_another_finishes_what_a_controller_has_begun(how: str) -> None:
    assert OPERATIONS > 40
    for at in range(1, OPERATIONS + 1):
        cluster, _ = rule(how, at)
        cluster.scheduler.run(3 * SESSION_MS)
        others = [broker for broker in cluster.brokers if broker.is_controller]
        assert len(others) == 1, f"{how} {at}: controllers are {others}"
        cluster.heal()
        cluster.check_converged()
        assert cluster.zookeeper.tree.children("/brokers/topics") == ["stays"], at
