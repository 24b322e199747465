"""Whether a broker may be restarted now: no partition loses its last replica in sync by that.

Pure, over what the brokers say of their cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from plog.client.cluster_admin import ClusterOverview
from plog.client.metadata import PartitionInfo
from plog.client.min_in_sync import MIN_IN_SYNC, needed_in_sync
from plog.errors import BrokerNotAvailable
from plog.types import TopicPartition, counted


def obstacles(
    cluster: ClusterOverview, least: Mapping[str, int], broker_id: int | None
) -> list[str]:
    """Return why a broker, or any of them (None), may not be restarted now.

    Args:
        least: min.insync.replicas of the topics with several replicas.

    Raises:
        BrokerNotAvailable: it is not in the cluster.
    """
    known = [one.node.node_id for one in cluster.brokers]
    if broker_id is not None and broker_id not in known:
        raise BrokerNotAvailable(f"broker {broker_id} is not in the cluster")
    found = [
        f"broker {one.node.node_id} does not answer: {one.fault}"
        for one in cluster.brokers
        if one.fault is not None
    ]
    if cluster.controller_id < 0:
        found.append("there is no controller")
    found += [f"broker {one} is away, with replicas" for one in cluster.away]
    found += [f"broker {one} gets no answer from ZooKeeper" for one in cluster.without_zookeeper]
    found += [f"{at} is offline" for at in cluster.offline]
    found += [f"{at} has replicas that are not in sync" for at in cluster.under_replicated]
    for one in known if broker_id is None else [broker_id]:
        found += _too_few(cluster, least, one)
    return found


def _too_few(cluster: ClusterOverview, least: Mapping[str, int], broker_id: int) -> Iterator[str]:
    for at, part in _replicated_on(cluster, broker_id):
        left = len(set(part.isr) - {broker_id})
        needed = needed_in_sync(least, at.topic, part)
        if len(part.replicas) > 1 and left < needed:
            yield (
                f"{at} would have {counted(left, 'replica')} in sync without broker {broker_id},"
                f" {MIN_IN_SYNC} is {needed}"
            )


def alone_on(cluster: ClusterOverview, broker_id: int) -> list[TopicPartition]:
    """Return the partitions that have no replica elsewhere: a restart takes them offline."""
    return [at for at, part in _replicated_on(cluster, broker_id) if len(part.replicas) == 1]


def _replicated_on(
    cluster: ClusterOverview, broker_id: int
) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
    for topic in cluster.topics:
        for index, part in sorted(topic.partitions.items()):
            if broker_id in part.replicas:
                yield TopicPartition(topic.name, index), part
