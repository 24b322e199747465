"""The coordinators of groups and transactions, with what they write and read by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from plog.cluster.change_bells import ChangeBells
from plog.cluster.led_transactions import LedTransactions
from plog.cluster.metadata_cache import MetadataCache
from plog.cluster.own_appends import OwnAppends
from plog.cluster.peers import Peers
from plog.cluster.replica_manager import ReplicaManager
from plog.coordinator.group_coordinator import OFFSETS_TOPIC, GroupCoordinator
from plog.coordinator.load_queue import LoadQueue
from plog.coordinator.partition_count import PartitionCount
from plog.coordinator.txn_coordinator import TRANSACTIONS_TOPIC, TxnCoordinator
from plog.coordinator.txn_partitions import TxnPartitions
from plog.coordinator.txn_verifier import TIMEOUT_MS, TxnVerifier
from plog.runtime.purgatory import Purgatory
from plog.types import TopicPartition
from plog.wiring.base import Base


class Coordinators(NamedTuple):
    """Both coordinators, and the way to those of other brokers."""

    groups: GroupCoordinator
    transactions: TxnCoordinator
    verifier: TxnVerifier


def make_coordinators(
    base: Base,
    *,
    peers: Callable[..., Peers],
    replicas: ReplicaManager,
    metadata: MetadataCache,
    purgatory: Purgatory[TopicPartition],
    bells: ChangeBells,
    new_producer_id: Callable[[], Awaitable[int]],
    undo: AsyncExitStack,
) -> Coordinators:
    """Make both coordinators, which hear from now on what this broker leads.

    Args:
        peers: returns the other brokers, for a purpose, and with a timeout.
    """
    static, clock, broker_id = base.static, base.clock, base.cluster.broker_id
    loop = asyncio.get_running_loop()
    led = LedTransactions(replicas)
    appends = OwnAppends(
        replicas=replicas,
        logs=base.logs,
        purgatory=purgatory,
        bells=bells,
        clock=clock,
        timeout_ms=static.offsets_commit_timeout_ms,
    )
    loads = LoadQueue()
    undo.callback(loads.close)

    def partitions(topic: str, planned: int) -> PartitionCount:
        count = PartitionCount(metadata, topic, planned)
        undo.callback(count.close)
        return count

    groups = GroupCoordinator(
        loop,
        appends=appends,
        settings=static,
        settings_of=base.settings.group,
        clock=clock,
        trusted_time=base.logs.trusted_time,
        partitions=partitions(OFFSETS_TOPIC, static.offsets_topic_num_partitions),
        loads=loads,
    )
    undo.callback(groups.close)
    replicas.on_leadership(groups.shards.on_leadership)
    groups.shards.may_lead = replicas.may_lead
    groups.shards.is_fresh = replicas.is_fresh
    transactions = TxnCoordinator(
        loop,
        appends=appends,
        led=led,
        txn_partitions=TxnPartitions(
            broker_id, led=led, metadata=metadata, peers=peers("markers to")
        ),
        metadata=metadata,
        settings=static,
        clock=clock,
        trusted_time=base.logs.trusted_time,
        partitions=partitions(TRANSACTIONS_TOPIC, static.transaction_state_log_num_partitions),
        new_producer_id=new_producer_id,
        marker_written=groups.on_marker,
        loads=loads,
    )
    undo.callback(transactions.close)
    replicas.on_leadership(transactions.shards.on_leadership)
    transactions.shards.may_lead = replicas.may_lead
    transactions.shards.is_fresh = replicas.is_fresh
    verifier = TxnVerifier(
        broker_id,
        here=transactions,
        metadata=metadata,
        peers=peers("verification by", timeout_ms=TIMEOUT_MS),
    )
    return Coordinators(groups, transactions, verifier)
