"""Leader epochs that a lone broker does not begin: what an election elsewhere would do."""

from __future__ import annotations

from dataclasses import replace

from plog.cluster.embedded_store import EmbeddedStore
from plog.cluster.znodes import PartitionStateNode, partition_state_path
from plog.runtime.clock import SystemClock
from plog.types import TopicPartition
from tests.servers import BrokerProcess


def pass_epochs(broker: BrokerProcess, at: TopicPartition, epochs: int = 1) -> int:
    """Have a partition be led so many epochs later; the broker, which is stopped, begins at it.

    Returns that epoch. What is in the log keeps its own.
    """
    store = EmbeddedStore(broker.log_dirs, clock=SystemClock())
    try:
        path = partition_state_path(at)
        state = PartitionStateNode.decode(store.get(path)[0])
        leader_epoch: int = state.leader_epoch + epochs
        store.set(path, replace(state, leader_epoch=leader_epoch).encode())
    finally:
        store.close()
    return leader_epoch
