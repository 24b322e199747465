"""A fault at every operation of a controller: it is killed, suspended, or gets no response.

A suspended one loses its session. The response is lost with a server; the next one lags.
"""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from plog.cluster.controller_events import ElectionsAsked, ElectionType
from plog.cluster.topic_admin import NewTopic
from plog.cluster.znodes import BROKER_IDS
from tests.cluster.simulation.cluster import SimCluster
from tests.cluster.simulation.zookeeper import SESSION_MS

SEED = 7
LAG_MS = 3_000
FACTOR = 2


@pytest.fixture(scope="module")
def first() -> int:
    """The first controller."""
    cluster = SimCluster(SEED)
    cluster.scheduler.run(1_000)
    return next(broker.id for broker in cluster.brokers if broker.is_controller)


def rule(first: int, how: str = "", at: int = -1) -> tuple[SimCluster, int]:
    """Have topics come, grow and go, a broker killed and another stopped, in the first one's rule.

    Return the cluster, and how many operations the first controller did.
    """
    cluster = SimCluster(SEED)
    process = cluster.brokers[first].process
    assert process is not None
    if how:
        setattr(process.store, how, at)
    if how == "lose_at":
        process.store.lag(LAG_MS)
    run = cluster.scheduler.run
    run(1_000)
    while len(cluster.zookeeper.tree.children(BROKER_IDS)) < FACTOR:
        run(500)
    cluster.topics.create(NewTopic("stays", 3, FACTOR))
    cluster.topics.create(NewTopic("goes", 2, FACTOR))
    run(1_000)
    cluster.topics.create_partitions("stays", 4)
    run(500)
    cluster.topics.delete("goes")
    run(1_000)
    cluster.brokers[first - 1].kill()
    run(2 * SESSION_MS)
    cluster.brokers[first - 1].start()
    run(2 * SESSION_MS)
    cluster.brokers[first - 2].stop()
    run(SESSION_MS)
    cluster.brokers[first - 2].start()
    run(SESSION_MS)
    elect_preferred(cluster, first - 1)
    run(SESSION_MS)
    return cluster, process.store.operations


def elect_preferred(cluster: SimCluster, asker: int) -> None:
    """Ask for preferred leaders by a broker, as an administrator asks any."""
    process = cluster.brokers[asker].process
    if process is not None and process.is_running():
        process.ask_controller(
            lambda token: ElectionsAsked(ElectionType.PREFERRED, None, token), Future()
        )


@pytest.fixture(scope="module")
def operations(first: int) -> int:
    """How many operations the first controller does, if nothing happens to it."""
    cluster, count = rule(first)
    assert cluster.brokers[first].is_controller
    cluster.heal()
    cluster.check_converged()
    return count


@pytest.mark.parametrize("how", ["crash_at", "pause_at", "lose_at"])
def test_another_finishes_what_a_controller_has_begun(
    first: int, operations: int, how: str
) -> None:
    assert operations > 60
    for at in range(1, operations + 1):
        cluster, _ = rule(first, how, at)
        cluster.scheduler.run(3 * SESSION_MS)
        others = [broker for broker in cluster.brokers if broker.is_controller]
        assert len(others) == 1, f"{how} {at}: controllers are {others}"
        cluster.heal()
        cluster.check_converged()
        assert cluster.zookeeper.tree.children("/brokers/topics") == ["stays"], at
