"""A broker that is suspended amid its start, goes on in another session, and is killed then."""

from __future__ import annotations

import pytest

from plog.cluster.znodes import broker_path
from tests.cluster.simulation.cluster import SimCluster

SEED = 7
STEP_MS = 100
MAX_STEPS = 400


@pytest.mark.parametrize("operation", range(1, 9))
def test_next_process_registers_at_once(operation: int) -> None:
    cluster = SimCluster(SEED, count=1)
    (broker,) = cluster.brokers
    process = broker.process
    assert process is not None
    process.store.pause_at = operation
    node = None
    for _ in range(MAX_STEPS):
        cluster.scheduler.run(STEP_MS)
        node = cluster.zookeeper.tree.exists(broker_path(broker.id))
        if node is not None and process.is_running():
            break
    assert node is not None
    assert len(process.store.sessions) == 2
    broker.kill()
    broker.start()
    cluster.scheduler.run(500)
    after = cluster.zookeeper.tree.exists(broker_path(broker.id))
    assert after is not None
    assert after.czxid > node.czxid
