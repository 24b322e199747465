"""Writes into the coordination store what the log directories hold and it does not know.

A store may be lost with all its copies, or with the end of its write-ahead log. Owns what
is made up where nothing is known: the topics and partitions that have directories, under
the ids they had; this broker as their leader, in the leader epoch that their logs know;
retention switched off, since nobody knows any more what it was; producer ids far above all
that were seen. Never takes anything out of the store: a topic is deleted in the
directories first.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from plog.cluster import znodes
from plog.cluster.producer_ids import raise_producer_ids
from plog.cluster.store import CreateOp, Op, SetOp, Store
from plog.cluster.topic_admin import INTERNAL_TOPICS
from plog.cluster.znodes import ConfigEntity, PartitionStateNode, TopicNode
from plog.storage.inventory import FoundReplica
from plog.types import TopicPartition, counted, new_topic_id

log = logging.getLogger(__name__)

KEEP_EVERYTHING = {"retention.bytes": "-1", "retention.ms": "-1"}
"""Configs of a topic whose own are lost: a default retention would delete what it should keep."""


def known_partitions(store: Store) -> dict[str, int]:
    """Return how many partitions the store knows of each topic. Raises MalformedNode."""
    return {
        name: len(TopicNode.decode(store.get(znodes.topic_path(name))[0]).partitions)
        for name in store.children(znodes.TOPICS)
    }


def rebuild_store(
    store: Store, broker_id: int, unknown: Sequence[FoundReplica], largest_producer_id: int = -1
) -> list[str]:
    """Take up partitions that the store does not know; return the topics that are new to it.

    A transaction for each topic, so that a start that is cut short can be done again. Nodes
    above them must exist already. `largest_producer_id`: what the other logs have seen.

    Raises:
        StoreError: the store cannot be written.
    """
    by_topic: dict[str, list[FoundReplica]] = {}
    for replica in unknown:
        by_topic.setdefault(replica.topic_partition.topic, []).append(replica)
    new: list[str] = []
    for topic, found in sorted(by_topic.items()):
        if store.exists(znodes.topic_path(topic)) is None:
            store.multi(_topic_ops(topic, found, broker_id))
            new.append(topic)
        else:
            _grow(store, topic, found, broker_id)
    largest = max([largest_producer_id, *(replica.largest_producer_id for replica in unknown)])
    if unknown or largest >= 0:
        raise_producer_ids(store, broker_id, largest)
    if new:
        log.warning(
            "recovered %s in the coordination store from the log directories; their configs are"
            " lost, and retention is off (retention.ms=-1, retention.bytes=-1) until you set"
            " them again: %s",
            counted(len(new), "topic"),
            ", ".join(new),
        )
    return new


def _grow(store: Store, topic: str, found: Sequence[FoundReplica], broker_id: int) -> None:
    """Take up partitions of a topic that has fewer in the store; not those of a namesake."""
    data, stat = store.get(znodes.topic_path(topic))
    node = TopicNode.decode(data)
    ours = [replica for replica in found if replica.topic_id == node.topic_id]
    for replica in found:
        if replica not in ours:
            log.warning(
                "%s in the log directories has topic id %s, not %s: ignored",
                replica.topic_partition,
                replica.topic_id,
                node.topic_id,
            )
    if not ours:
        return
    count = max(replica.topic_partition.partition for replica in ours) + 1
    more = range(len(node.partitions), count)
    grown = {**node.partitions, **dict.fromkeys(more, (broker_id,))}
    ops: list[Op] = [
        SetOp(
            znodes.topic_path(topic),
            TopicNode(node.topic_id, grown, node.adding_replicas, node.removing_replicas).encode(),
            stat.version,
        )
    ]
    epochs = _epochs(ours)
    store.multi(ops + [op for one in more for op in _state_ops(topic, one, epochs, broker_id)])
    log.warning(
        "recovered partitions of topic %s in the coordination store: it has %d again", topic, count
    )


def _configs(topic: str) -> dict[str, str]:
    compacted = {"cleanup.policy": "compact"} if topic in INTERNAL_TOPICS else {}
    return KEEP_EVERYTHING | compacted


def _topic_ops(topic: str, found: Sequence[FoundReplica], broker_id: int) -> list[Op]:
    epochs = _epochs(found)
    partitions = dict.fromkeys(range(max(epochs) + 1), (broker_id,))
    ops: list[Op] = [
        CreateOp(znodes.topic_path(topic), TopicNode(_topic_id(found), partitions).encode()),
        CreateOp(ConfigEntity.topic(topic).path, znodes.encode_config(_configs(topic))),
        CreateOp(znodes.partitions_path(topic)),
    ]
    for partition in partitions:
        ops += _state_ops(topic, partition, epochs, broker_id)
    return ops


def _epochs(found: Iterable[FoundReplica]) -> dict[int, int]:
    return {replica.topic_partition.partition: replica.leader_epoch for replica in found}


def _state_ops(
    topic: str, partition: int, epochs: Mapping[int, int], broker_id: int
) -> Iterator[Op]:
    at = TopicPartition(topic, partition)
    state = PartitionStateNode(
        controller_epoch=0,
        leader=broker_id,
        leader_epoch=max(epochs.get(partition, 0), 0),
        isr=(broker_id,),
    )
    yield CreateOp(znodes.partition_path(at))
    yield CreateOp(znodes.partition_state_path(at), state.encode())


def _topic_id(found: Sequence[FoundReplica]) -> uuid.UUID:
    """Return the id that most partitions have; a log of another id will be refused by name."""
    ids = Counter(replica.topic_id for replica in found if replica.topic_id is not None)
    return ids.most_common(1)[0][0] if ids else new_topic_id()


def broker_id_of_topics(store: Store) -> int | None:
    """Return the one broker that every topic's replicas are on; None when it is not one."""
    brokers: set[int] = set()
    for name in store.children(znodes.TOPICS):
        node = TopicNode.decode(store.get(znodes.topic_path(name))[0])
        brokers.update(broker for replicas in node.partitions.values() for broker in replicas)
    return brokers.pop() if len(brokers) == 1 else None
